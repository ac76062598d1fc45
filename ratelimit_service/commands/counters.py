"""`ratelimit counters`: shows counters in Redis, and resets them."""

import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import click
import uvloop

from ratelimit_service.commands.counters_table import (
    Listing,
    as_json,
    as_table,
    counters_in_words,
    entries_in_words,
    notes,
)
from ratelimit_service.commands.request import Entry, EntryType, one_descriptor
from ratelimit_service.commands.sources import env_file_option, read_book, read_settings, rules_option
from ratelimit_service.errors import SettingsError, StoreError
from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.report import printable
from ratelimit_service.rules.rule import Entries, Place, Rule, limit_in_words
from ratelimit_service.settings import Settings
from ratelimit_service.settings.fields import Backend
from ratelimit_service.stores.redis.counters import CounterBatch, Counters

_FAILED: Final = 1

_IN_MEMORY: Final = (
    "BACKEND_TYPE is memory: counters are in the memory of each service, where this command cannot read them. "
    "`ratelimit explain DOMAIN KEY=VALUE --at HOST:6070` shows counters of a running service, its page and /metrics "
    "show the answers of each rule, and a restart resets all. For counters in Redis set REDIS_URL as for the service"
)
_DENIALS_REMEMBERED: Final = "Services that remember a refusal ask again within 5 s."

_T = TypeVar("_T")


@dataclass
class Selection:
    """The counters that the command line selects."""

    settings: Settings
    book: RuleBook
    domain: str
    entries: Entries
    rules: Sequence[Rule]
    """With entries, the rules that limit them. Without, the rules of --rule; none of them selects the whole domain."""
    by_name: bool
    """--rule is given: counters of limits sent with a request are not selected."""

    def __str__(self) -> str:
        if self.entries:
            return f"{entries_in_words(self.entries)} in domain {printable(self.domain)}"
        if self.rules:
            return ", ".join(printable(".".join(rule.path)) for rule in self.rules)
        return f"domain {printable(self.domain)}"

    async def batches(self, counters: Counters) -> AsyncIterator[CounterBatch]:
        """All selected counters."""
        if self.entries:
            for batch in await counters.of_descriptor(
                self.domain, self.entries, self.rules, overriding=not self.by_name
            ):
                yield batch
        else:
            async for batch in counters.find(self.domain, self.rules):
                yield batch


@click.command(
    epilog="""\b
Examples:
  ratelimit counters shop                       (the fullest of the domain)
  ratelimit counters shop plan=free user=ada    (those of one descriptor)
  ratelimit counters shop --rule shop.user --limit 100 --json
  ratelimit counters shop user=ada --reset --yes"""
)
@click.argument("domain")
@click.argument("entries", metavar="[KEY=VALUE...]", nargs=-1, type=EntryType("; --rule {} takes a whole rule"))
@click.option(
    "--rule",
    "names",
    multiple=True,
    metavar="RULE",
    help="Only counters of this rule: its name in metrics and on the page, its FILE:LINE, or its `name` in the file.",
)
@click.option("--limit", "most", type=click.IntRange(0), default=20, show_default=True, help="How many to show.")
@click.option("--reset", is_flag=True, help="Remove the counters, after a question: their whole limits are free again.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "json_wanted", is_flag=True, help="Print JSON.")
@rules_option
@env_file_option
def command(
    *,
    domain: str,
    entries: Sequence[Entry | None],
    names: Sequence[str],
    most: int,
    reset: bool,
    yes: bool,
    json_wanted: bool,
    rules: Path | None,
    env_file: Path | None,
) -> None:
    """Show counters in Redis, or reset them.

    Shows the counters of a domain, of some of its rules, or of one descriptor, the fullest first. Nothing is charged.
    With --reset they are removed, and denied requests are allowed again. Redis and rules are those of the service's
    settings: run this with the same environment.
    """
    if not domain:
        raise click.UsageError("the domain is empty: name the one whose counters are meant")
    descriptor = one_descriptor(entries, "counters")
    if reset and not yes and not sys.stdin.isatty():
        raise click.UsageError("--reset asks before it removes anything, and nobody is there to answer: add --yes")
    selection = _select(domain, descriptor, names, rules, env_file)
    if not reset:
        listing = _run(selection, lambda counters: _list(counters, selection, most))
        _check_domain(selection, listing.total + listing.untouched)
        if json_wanted:
            click.echo(json.dumps(as_json(domain, listing), indent=2, ensure_ascii=False))
        else:
            click.echo(as_table(listing) if listing.total else _empty(selection, listing))
        return

    if not yes:
        count = _run(selection, lambda counters: _count(counters, selection))
        _check_domain(selection, count)
        if count and not click.confirm(f"Reset {counters_in_words(count)} of {selection}?", err=True):
            click.echo("Nothing was reset.", err=True)
            sys.exit(_FAILED)
    done = _run(selection, lambda counters: _reset(counters, selection))
    _check_domain(selection, done.reset)
    if json_wanted:
        click.echo(json.dumps({"domain": domain, **done._asdict()}, indent=2, ensure_ascii=False))
        return
    click.echo(f"{counters_in_words(done.reset)} of {selection} reset")
    for line in notes(left_out=done.left_out, slots_moved=done.slots_moved):
        click.echo(line)
    for line in [_DENIALS_REMEMBERED] if done.reset else _without_value(selection):
        click.echo(line)


def _select(
    domain: str, entries: Entries, names: Sequence[str], rules: Path | None, env_file: Path | None
) -> Selection:
    settings, _ = read_settings({"rules_path": rules}, env_file)
    if settings.backend_type is not Backend.REDIS:
        raise SettingsError([_IN_MEMORY])
    book = read_book(settings)
    named = [rule for name in names for rule in _named(book, domain, name)]
    if not entries:
        return Selection(settings, book, domain, (), named, bool(names))
    first = book.match(domain, entries)
    matched = () if first is None else (first, *first.beside)
    limiting = [rule for rule in matched if rule.limit is not None and (not names or rule in named)]
    if names and not limiting:
        called = " ".join(names)
        raise click.UsageError(f"{called} does not limit {entries_in_words(entries)}; `ratelimit explain` tells why")
    return Selection(settings, book, domain, entries, limiting, bool(names))


def _named(book: RuleBook, domain: str, name: str) -> list[Rule]:
    """The rules with this name: all limits of one descriptor, or one of them if the name has the window."""
    known = _rules_by_name(book, domain)
    found = _find(known, domain, name)
    if not found:
        near = get_close_matches(name, known, 1) or get_close_matches(f"{domain}.{name}", known, 1)
        raise click.UsageError(f"domain {domain} has no rule {name!r}" + (f"; did you mean {near[0]}?" if near else ""))
    limiting = [rule for rule in found if rule.limit is not None]
    if not limiting:
        raise click.UsageError(f"rule {name} is unlimited: it has no counters")
    return limiting


def _find(known: Mapping[str, list[Rule]], domain: str, name: str) -> list[Rule]:
    return known.get(name) or known.get(f"{domain}.{name}") or []


def _rules_by_name(book: RuleBook, domain: str) -> dict[str, list[Rule]]:
    """The domain's rules by each name that --rule takes."""
    known: dict[str, list[Rule]] = {}
    for rule in book.rules:
        if rule.domain == domain:
            path = ".".join(rule.path)
            levels = ".".join(rule.path[: len(rule.path) - len(rule.path_suffix)])
            places = _places(rule.place) if rule.place else ()
            for each in {path, levels, rule.name, *places}:
                known.setdefault(each, []).append(rule)
    known.pop("", None)
    return known


def _places(place: Place) -> Iterator[str]:
    """`config/shop.yaml:7:5` as in errors, `config/shop.yaml:7` as on the page, and both with the file's name alone."""
    for path in (place.path, Path(place.path).name):
        yield f"{path}:{place.line}:{place.column}"
        yield f"{path}:{place.line}"


def _check_domain(selection: Selection, count: int) -> None:
    """Exit if the domain has neither rules nor counters: most likely it is misspelt."""
    domains = selection.book.domains
    if count or selection.domain in domains:
        return
    near = get_close_matches(selection.domain, domains, 1)
    hint = f"; did you mean {near[0]}?" if near else f"; there are: {', '.join(domains)}" if domains else ""
    click.echo(f"ratelimit: there is no domain {printable(selection.domain)}, and no counter of it{hint}", err=True)
    sys.exit(_FAILED)


def _empty(selection: Selection, listing: Listing) -> str:
    """The text in place of a table without rows."""
    if selection.entries and not selection.rules:
        lines = [f"No rule limits {selection}; `ratelimit explain` tells why."]
    elif selection.entries:
        limits = "; ".join(limit_in_words(rule.limit) for rule in selection.rules)
        lines = [f"There is no counter of {selection}: nothing is charged to it ({limits})."]
    else:
        lines = [f"There are no counters of {selection}."]
    more = notes(untouched=listing.untouched, left_out=listing.left_out, slots_moved=listing.slots_moved)
    return "\n".join([*lines, *more, *_without_value(selection)])


def _without_value(selection: Selection) -> Iterator[str]:
    """Hints for entries without a value: most likely they are names of rules."""
    known = _rules_by_name(selection.book, selection.domain)
    for key, value in selection.entries:
        if not value:
            hint = f": --rule {key} takes all counters of that rule" if _find(known, selection.domain, key) else ""
            yield printable(f"{key}= has no value{hint}")


def _run(selection: Selection, use: Callable[[Counters], Awaitable[_T]]) -> _T:
    async def run() -> _T:
        async with aclosing(Counters(selection.settings, selection.book)) as counters:
            return await use(counters)

    return uvloop.run(run())


async def _list(counters: Counters, selection: Selection, most: int) -> Listing:
    listing = Listing(most)
    async for batch in selection.batches(counters):
        listing.left_out += batch.left_out
        for counter, content in await counters.read(batch):
            if content is not None:
                listing.add(counter, content)
    listing.slots_moved = counters.slots_moved
    return listing


async def _count(counters: Counters, selection: Selection) -> int:
    if selection.entries:
        listing = await _list(counters, selection, 0)
        return listing.total + listing.untouched
    return sum([len(batch.counters) async for batch in selection.batches(counters)])


class _ResetResult(NamedTuple):
    """The result of a reset, as in JSON."""

    reset: int
    left_out: int
    slots_moved: bool


async def _reset(counters: Counters, selection: Selection) -> _ResetResult:
    reset = left_out = 0
    failure: StoreError | None = None
    try:
        async for batch in selection.batches(counters):
            reset += await counters.reset(batch)
            left_out += batch.left_out
    except StoreError as error:
        failure = error
    if reset:
        try:
            await counters.announce_resets()
        except StoreError as error:
            failure = failure or error
    if failure is not None:
        raise StoreError(f"{failure}; before that, {counters_in_words(reset)} of {selection} reset") from failure
    return _ResetResult(reset, left_out, counters.slots_moved)
