"""`ratelimit diff`: which descriptors get another limit from new rules than from old ones."""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import click

from ratelimit_service.commands.sources import (
    env_file_option,
    exit_broken,
    merge_option,
    read_books,
    read_region_options,
    read_settings,
    rules_flags,
)
from ratelimit_service.commands.terminal import GREEN, RED, YELLOW, echo, echo_json
from ratelimit_service.errors import ComparisonError, Problem, RulesError
from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.checks.diff import AFRESH, KEPT, RuleChange, diff
from ratelimit_service.rules.checks.report import changes_as_json, shown_request
from ratelimit_service.rules.rule import entries_in_words, plural
from ratelimit_service.settings import Section

DIFFERENT: Final = 1
"""Exit code; 0: every request gets the same limit from both; `BROKEN`: one of them cannot be read or compared."""


@click.command(
    short_help="Show which requests get another limit from new rules.",
    epilog="""\b
Examples:
  ratelimit diff config new
  ratelimit diff config/example.yaml new/example.yaml --json

\b
The rules of a branch against those of another:
  git worktree add ../main main && ratelimit diff ../main/config config""",
)
@click.argument("old", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
@env_file_option
@merge_option
@click.option("--json", "as_json", is_flag=True, help="Print the changes as JSON.")
def command(*, old: Path, new: Path, env_file: Path | None, merge_domains: bool, as_json: bool) -> None:
    """Show which descriptors get another limit from the rules in NEW than from those in OLD.

    OLD and NEW are folders or files. The rules are compared, not their text: order, layout and places do not count,
    unless they change which limit a request gets. For each change the command shows such a request, both limits with
    their places, and whether the counters are kept or start afresh.

    Exits with 0 when every request gets the same limit, 1 when one gets another, 2 when OLD or NEW cannot be read.
    """
    settings, _ = read_settings(rules_flags(None, merge_domains=merge_domains), env_file, Section.RULES)
    try:
        books = read_books([old, new], settings, read_region_options(env_file))
        changes = diff(*books)
    except RulesError as error:
        exit_broken(error, as_json=as_json)
    except ComparisonError as error:
        exit_broken(RulesError([Problem(str(new), 0, 0, str(error))]), as_json=as_json)
    if as_json:
        echo_json(changes_as_json(changes, books))
    else:
        echo(*_lines(changes, books))
    if changes:
        sys.exit(DIFFERENT)


_MARKS: Final = {"added": ("+", GREEN), "removed": ("-", RED), "changed": ("~", YELLOW)}
_COUNTERS: Final = {KEPT: "counters are kept", AFRESH: "counters start afresh"}


def _lines(changes: Sequence[RuleChange], books: Sequence[RuleBook]) -> Iterator[str]:
    for change in changes:
        mark, style = _MARKS[change.kind]
        differences = "; ".join(
            f"{'' if what == 'limit' else f'{what}: '}{old} → {new}" for what, old, new in change.differences
        )
        yield style(f"{mark} {'.'.join((change.domain, *change.names))}: {differences}")
        if change.names:
            yield f"    {'; '.join(_details(change, books))}"
    old, new = [plural(len(book.rules), "rule") for book in books]
    yield f"{_summary(changes)} ({old} → {new})"


def _details(change: RuleChange, books: Sequence[RuleBook]) -> Iterator[str]:
    old, new = change.old, change.new
    yield " → ".join(str(rule.place) for rule in (old, new) if rule is not None)
    if old is not None and new is not None and old.path != new.path:
        yield f"{'.'.join(old.path)} before, {'.'.join(new.path)} now"
    if change.counters:
        yield _COUNTERS[change.counters]
    yield f"such as {entries_in_words(shown_request(change, books))}"


def _summary(changes: Sequence[RuleChange]) -> str:
    if not changes:
        return "no descriptor gets another limit"
    numbers = Counter(change.kind for change in changes)
    kinds = ", ".join(f"{numbers[kind]:,} {kind}" for kind in _MARKS if numbers[kind])
    return f"{plural(len(changes), 'descriptor')} with another limit: {kinds}"
