"""Tries a document of the rules API out: with all other documents it must make a book, which is checked and compared.

In a thread, as rules are loaded. The book of a trial answers no request.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from ratelimit_service.errors import ApiError, ComparisonError, Problem, RulesError
from ratelimit_service.rules.book import ANY_DOMAIN, RuleBook, free_books
from ratelimit_service.rules.checks.diff import diff
from ratelimit_service.rules.checks.report import Findings, changes_as_json, finding, findings
from ratelimit_service.rules.data_files import read_data_file
from ratelimit_service.rules.loading import Loading, Parse
from ratelimit_service.rules.problems import quoted
from ratelimit_service.rules.rule import Rule
from ratelimit_service.rules.sources import open_document
from ratelimit_service.rules.syntax.document import Document
from ratelimit_service.rules.versions import RuleStore, RuleVersion, place_of
from ratelimit_service.settings.fields import SourceKind
from ratelimit_service.system.background import DaemonExecutor

_MAX_WAITING: Final = 16
"""Trials that wait for the thread: each takes as long as a load of all rules, 0.5 s for ten thousand."""

MAX_CHANGES: Final = 1000
"""The changes of a comparison that are listed; all are counted."""

_T = TypeVar("_T")


class TrialOptions(NamedTuple):
    """What the settings say of the checks, as `findings` takes it."""

    parse: Parse
    precedence: Sequence[SourceKind]
    has_home: bool
    counts_as_envoyproxy: Callable[[Rule], bool] | None


class Draft(NamedTuple):
    """A document that may become the one of its domain."""

    domain: str
    kind: str
    """Empty: the domain has none."""
    text: bytes

    @property
    def document(self) -> Document | None:
        """It, as a source gives it."""
        return open_document(self.kind, SourceKind.API, place_of(self.domain), self.text) if self.kind else None


class RulesTrial:
    """Tries drafts out with the documents in force of the other sources, and with those that the store knows."""

    def __init__(self, loading: Loading, store: RuleStore | None, options: TrialOptions) -> None:
        self._loading = loading
        self._store = store
        self._options = options
        self._thread = DaemonExecutor()
        self._waiting = 0

    def check_owner(self, domain: str) -> None:
        """Raise ApiError if another source has rules of this domain."""
        book = self._loading.book
        root = None if book is None else book.domains.get(domain)
        if root is None or root.source is SourceKind.API or self._comes_before(root.source):
            return
        raise ApiError(409, f"the rules of domain {quoted(domain)} are in {root.place}", owner=root.source)

    def _comes_before(self, source: SourceKind) -> bool:
        """Whether a domain that both have comes from the API."""
        named = self._options.precedence
        return SourceKind.API in named and source not in named[: named.index(SourceKind.API)]

    async def load(self, draft: Draft) -> None:
        """Raise RulesError if the rules with the draft cannot be loaded: with all that is wrong."""
        await self._in_thread(lambda: free_books([self._book(draft)]))

    async def check(self, draft: Draft) -> dict[str, Any]:
        """What `ratelimit check` says, of the draft."""
        return await self._in_thread(partial(self._check, draft))

    async def diff(self, draft: Draft) -> dict[str, Any]:
        """What `ratelimit diff` says, of the rules in force and those with the draft. RulesError as for `load`."""
        return await self._in_thread(partial(self._diff, draft))

    async def _in_thread(self, work: Callable[[], _T]) -> _T:
        if self._waiting >= _MAX_WAITING:
            raise ApiError(503, "too many documents are tried out at once")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        finally:
            self._waiting -= 1

    def _book(self, draft: Draft) -> RuleBook:
        parse, loading, document = self._options.parse, self._loading, draft.document
        known = {} if self._store is None else self._store.known or {}
        documents = [each for each in loading.documents or () if each.source is not SourceKind.API]
        documents += [
            opened(made) for domain, made in sorted(known.items()) if domain != draft.domain and not made.deleted
        ]
        documents += [] if document is None else [document]
        data = {} if loading.book is None else loading.book.data

        def read_data(path: str) -> bytes:
            return data[path].text if path in data else read_data_file(path)

        book = parse(documents, previous=loading.book, read_data=read_data)
        if document is not None and (problem := _domain_problem(draft, book)) is not None:
            free_books([book])
            raise RulesError([problem])
        return book

    def _check(self, draft: Draft) -> dict[str, Any]:
        try:
            book = self._book(draft)
        except RulesError as error:
            return Findings(error.problems).as_json(None) | {"errors": problems_as_json(draft, error.problems)}
        _, _, has_home, counts_as_envoyproxy = self._options
        found = findings(book, has_home=has_home, counts_as_envoyproxy=counts_as_envoyproxy)
        place = place_of(draft.domain)
        own = Findings(
            (), *([each for each in some if _is_in(place, each.path)] for some in (found.warnings, found.notes))
        )
        shown = own.as_json(book)
        free_books([book])
        return shown

    def _diff(self, draft: Draft) -> dict[str, Any]:
        old, new = self._loading.book or RuleBook({}), self._book(draft)
        books = [_part(book, draft.domain) for book in (old, new)]
        try:
            return changes_as_json(diff(*books), books, MAX_CHANGES)
        except ComparisonError as error:
            raise ApiError(422, str(error)) from error


def opened(made: RuleVersion) -> Document:
    """The document of a version."""
    return open_document(made.kind, SourceKind.API, made.place, made.text.encode())


def problems_as_json(draft: Draft, problems: Sequence[Problem]) -> list[dict[str, Any]]:
    """The problems; of those in JSON the path within the document apart from its name."""
    place, found = place_of(draft.domain), []
    for problem in problems:
        shown = finding(problem)
        if draft.kind == "json" and problem.path.startswith(f"{place}/"):
            shown |= {"file": place, "pointer": problem.path.removeprefix(place)}
        found.append(shown)
    return found


def _domain_problem(draft: Draft, book: RuleBook) -> Problem | None:
    """The problem of a document that has rules of another domain."""
    place = place_of(draft.domain)
    for domain, root in book.domains.items():
        if root.place is not None and _is_in(place, root.place.path):
            if domain == draft.domain:
                return None
            return Problem(*root.place, f"domain {quoted(domain)} is not the one of the path, {quoted(draft.domain)}")
    return Problem(place, 0, 0, f"its domain is not the one of the path, {quoted(draft.domain)}")


def _is_in(place: str, path: str) -> bool:
    return path == place or path.startswith(f"{place}/")


def _part(book: RuleBook, domain: str) -> RuleBook:
    """The rules of one domain, and those of domains without any."""
    return RuleBook({name: root for name, root in book.domains.items() if name in {domain, ANY_DOMAIN}})
