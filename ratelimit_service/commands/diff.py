"""`ratelimit diff`: which descriptors get another limit from new rules than from old ones."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

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
from ratelimit_service.rules.checks.diff import AFRESH, KEPT, diff
from ratelimit_service.rules.checks.report import changes_as_json
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
    found = changes_as_json(changes, books)
    if as_json:
        echo_json(found)
    else:
        echo(*change_lines(found))
    if changes:
        sys.exit(DIFFERENT)


_MARKS: Final = {"added": ("+", GREEN), "removed": ("-", RED), "changed": ("~", YELLOW)}
_COUNTERS: Final = {KEPT: "counters are kept", AFRESH: "counters start afresh"}


def change_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """The changes of `changes_as_json` as text."""
    for change in found["changes"]:
        mark, style = _MARKS[change["kind"]]
        differences = "; ".join(
            f"{'' if what == 'limit' else f'{what}: '}{old} → {new}"
            for what, old, new in (each.values() for each in change["differences"])
        )
        yield style(f"{mark} {'.'.join((change['domain'], *change['descriptors']))}: {differences}")
        if change["descriptors"]:
            yield f"    {'; '.join(_details(change))}"
    if (more := _count(found) - len(found["changes"])) > 0:
        yield f"and {more:,} more"
    old, new = [plural(number, "rule") for number in found["rules"]]
    yield f"{_summary(found)} ({old} → {new})"


def _details(change: Mapping[str, Any]) -> Iterator[str]:
    old, new = change["old"], change["new"]
    yield " → ".join(str(rule["place"]) for rule in (old, new) if rule is not None)
    if old is not None and new is not None and old["rule"] != new["rule"]:
        yield f"{old['rule']} before, {new['rule']} now"
    if change["counters"]:
        yield _COUNTERS[change["counters"]]
    yield f"such as {entries_in_words(tuple((each['key'], each['value']) for each in change['request']))}"


def _summary(found: Mapping[str, Any]) -> str:
    if found["same"]:
        return "no descriptor gets another limit"
    kinds = ", ".join(f"{found[kind]:,} {kind}" for kind in _MARKS if found[kind])
    return f"{plural(_count(found), 'descriptor')} with another limit: {kinds}"


def _count(found: Mapping[str, Any]) -> int:
    return sum(found[kind] for kind in _MARKS)
