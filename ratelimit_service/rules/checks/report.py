"""What is wrong with rules, and what differs between two books, as commands and the API report it."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from ratelimit_service.errors import Problem
from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.checks.diff import RuleChange, limits_in_words
from ratelimit_service.rules.checks.envoy import envoy_notes
from ratelimit_service.rules.checks.lint import lint
from ratelimit_service.rules.checks.region_notes import region_notes, without_home
from ratelimit_service.rules.checks.review import queue_notes, shared_keys
from ratelimit_service.rules.problems import LintWarning
from ratelimit_service.rules.rule import Entries, Rule

CHANGES: Final = ("added", "removed", "changed")
"""The kinds of a change."""


class Findings(NamedTuple):
    """The findings about rules."""

    errors: Sequence[Problem] = ()
    warnings: Sequence[LintWarning] = ()
    """What is allowed, but probably not intended."""
    notes: Sequence[LintWarning] = ()
    """What others need, such as Envoy's timeout."""

    def as_json(self, book: RuleBook | None) -> dict[str, Any]:
        """All of them; the book is that of the rules, if they have no errors."""
        return {
            "rules": None if book is None else len(book.rules),
            "domains": None if book is None else len(book.domains),
            "errors": [finding(error) for error in self.errors],
            "warnings": [{"kind": warning.kind, **finding(warning)} for warning in self.warnings],
            "notes": [finding(note) for note in self.notes],
        }


def findings(book: RuleBook, *, has_home: bool, counts_as_envoyproxy: Callable[[Rule], bool] | None = None) -> Findings:
    """The warnings and notes about a book.

    `has_home`: there is a home Redis, or it is not known whether. With the format of envoyproxy's keys,
    `counts_as_envoyproxy` tells which rules have such keys.
    """
    found = lint(book)
    if not has_home:
        found += without_home(book)
    if counts_as_envoyproxy is not None:
        found += shared_keys(book, counts_as_envoyproxy)
    found.sort(key=lambda warning: warning[:3])
    return Findings((), found, [*queue_notes(book), *envoy_notes(book), *region_notes(book)])


def finding(problem: Problem | LintWarning) -> dict[str, Any]:
    """One of them."""
    return {"file": problem.path, "line": problem.line, "column": problem.column, "message": problem.message}


def changes_as_json(
    changes: Sequence[RuleChange], books: Sequence[RuleBook], most: int | None = None
) -> dict[str, Any]:
    """The changes from the first book to the second one, so many at most; the counts are of all."""
    numbers = Counter(change.kind for change in changes)
    return {
        "same": not changes,
        **{kind: numbers[kind] for kind in CHANGES},
        "rules": [len(book.rules) for book in books],
        "changes": [
            {
                "kind": change.kind,
                "domain": change.domain,
                "descriptors": list(change.names),
                "request": [{"key": key, "value": value} for key, value in _shown_request(change, books)],
                "old": _described(change.old),
                "new": _described(change.new),
                "differences": [difference._asdict() for difference in change.differences],
                "counters": change.counters or None,
            }
            for change in changes[:most]
        ],
    }


def _described(rule: Rule | None) -> dict[str, Any] | None:
    if rule is None:
        return None
    place = None if rule.place is None else str(rule.place)
    requests = None if rule.limit is None else rule.limit.requests
    return {"rule": ".".join(rule.path), "place": place, "limit": limits_in_words(rule), "requests": requests}


def _shown_request(change: RuleChange, books: Sequence[RuleBook]) -> Entries:
    """The request of a change, with digests in place of values that are secret before or now."""
    entries = change.entries
    for book in books:
        entries = book.shown(change.domain, entries)
    return entries
