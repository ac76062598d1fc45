"""`ratelimit counters`: what is in the counters in Redis, and a fresh allowance for whoever should have one."""

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

from ratelimit_service.commands.counters_table import Seen, as_json, entries_in_words, many, notes, table
from ratelimit_service.commands.entries import Entry, EntryType, one_descriptor
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
    "BACKEND_TYPE is memory: counters are in the memory of each service, where no command sees them; the page and "
    "/metrics of a service tell how often each rule has answered, `ratelimit explain DOMAIN KEY=VALUE --at HOST:6070` "
    "looks at counters, and a restart resets them all. For counters in Redis set REDIS_URL as the service has it"
)
_REMEMBERED: Final = "Services that remember a refusal ask again within 5 s."

_T = TypeVar("_T")


@dataclass
class Asked:
    """Which counters the command is about."""

    settings: Settings
    book: RuleBook
    domain: str
    entries: Entries
    rules: Sequence[Rule]
    """With entries, those that limit them; without, those that were named, or none for the whole domain."""
    by_name: bool
    """Rules were named, so that limits sent with a request are not meant."""

    def __str__(self) -> str:
        if self.entries:
            return f"{entries_in_words(self.entries)} in domain {printable(self.domain)}"
        if self.rules:
            return ", ".join(printable(".".join(rule.path)) for rule in self.rules)
        return f"domain {printable(self.domain)}"

    async def batches(self, counters: Counters) -> AsyncIterator[CounterBatch]:
        """All of them, some at a time."""
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
    help="Only of this rule: its name in metrics and on the page, its place in the files, or its name there.",
)
@click.option("--limit", "most", type=click.IntRange(0), default=20, show_default=True, help="How many to show.")
@click.option("--reset", is_flag=True, help="Remove the counters, after asking: all begin anew.")
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
    """Look at counters in Redis, or reset them.

    Shows the counters of a domain, of some of its rules, or of one descriptor, the fullest first; looking charges
    nothing. With --reset they are removed, and whoever was refused is let in again. Redis and rules are those of the
    service's settings: run it with the same environment.
    """
    if not domain:
        raise click.UsageError("the domain is empty: name the one whose counters are meant")
    descriptor = one_descriptor(entries, "counters")
    if reset and not yes and not sys.stdin.isatty():
        raise click.UsageError("--reset asks before it removes anything, and nobody is there to answer: add --yes")
    asked = _asked(domain, descriptor, names, rules, env_file)
    if not reset:
        seen = _run(asked, lambda counters: _look(counters, asked, most))
        _check_domain(asked, seen.total + seen.untouched)
        if json_wanted:
            click.echo(json.dumps(as_json(domain, seen), indent=2, ensure_ascii=False))
        else:
            click.echo(table(seen) if seen.total else _nothing(asked, seen))
        return

    if not yes:
        count = _run(asked, lambda counters: _count(counters, asked))
        _check_domain(asked, count)
        if count and not click.confirm(f"Reset {many(count)} of {asked}?", err=True):
            click.echo("Nothing was reset.", err=True)
            sys.exit(_FAILED)
    done = _run(asked, lambda counters: _reset(counters, asked))
    _check_domain(asked, done.reset)
    if json_wanted:
        click.echo(json.dumps({"domain": domain, **done._asdict()}, indent=2, ensure_ascii=False))
        return
    click.echo(f"{many(done.reset)} of {asked} reset")
    for line in notes(left_out=done.left_out, moved=done.slots_moved):
        click.echo(line)
    for line in [_REMEMBERED] if done.reset else _without_value(asked):
        click.echo(line)


def _asked(domain: str, entries: Entries, names: Sequence[str], rules: Path | None, env_file: Path | None) -> Asked:
    settings, _ = read_settings({"rules_path": rules}, env_file)
    if settings.backend_type is not Backend.REDIS:
        raise SettingsError([_IN_MEMORY])
    book = read_book(settings)
    named = [rule for name in names for rule in _named(book, domain, name)]
    if not entries:
        return Asked(settings, book, domain, (), named, bool(names))
    first = book.match(domain, entries)
    met = () if first is None else (first, *first.beside)
    limiting = [rule for rule in met if rule.limit is not None and (not names or rule in named)]
    if names and not limiting:
        called = " ".join(names)
        raise click.UsageError(f"{called} does not limit {entries_in_words(entries)}; `ratelimit explain` tells why")
    return Asked(settings, book, domain, entries, limiting, bool(names))


def _named(book: RuleBook, domain: str, name: str) -> list[Rule]:
    """The rules that are called so: of several limits of one descriptor all, unless the name has the window."""
    known = _names(book, domain)
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


def _names(book: RuleBook, domain: str) -> dict[str, list[Rule]]:
    """All that the domain's rules are called."""
    known: dict[str, list[Rule]] = {}
    for rule in book.rules:
        if rule.domain == domain:
            path = ".".join(rule.path)
            levels = ".".join(rule.path[: len(rule.path) - len(rule.span)])
            places = _places(rule.place) if rule.place else ()
            for each in {path, levels, rule.name, *places}:
                known.setdefault(each, []).append(rule)
    known.pop("", None)
    return known


def _places(place: Place) -> Iterator[str]:
    """`config/shop.yaml:7:5`, as errors have it, `config/shop.yaml:7` as on the page, and by the file's name alone."""
    for path in (place.path, Path(place.path).name):
        yield f"{path}:{place.line}:{place.column}"
        yield f"{path}:{place.line}"


def _check_domain(asked: Asked, count: int) -> None:
    """A domain that has neither rules nor counters is most likely misspelt."""
    domains = asked.book.domains
    if count or asked.domain in domains:
        return
    near = get_close_matches(asked.domain, domains, 1)
    hint = f"; did you mean {near[0]}?" if near else f"; there are: {', '.join(domains)}" if domains else ""
    click.echo(f"ratelimit: there is no domain {printable(asked.domain)}, and no counter of it{hint}", err=True)
    sys.exit(_FAILED)


def _nothing(asked: Asked, seen: Seen) -> str:
    """What there is to say when there is no counter."""
    if asked.entries and not asked.rules:
        lines = [f"No rule limits {asked}; `ratelimit explain` tells why."]
    elif asked.entries:
        limits = "; ".join(limit_in_words(rule.limit) for rule in asked.rules)
        lines = [f"There is no counter of {asked}: nothing is charged to it ({limits})."]
    else:
        lines = [f"There are no counters of {asked}."]
    more = notes(untouched=seen.untouched, left_out=seen.left_out, moved=seen.moved)
    return "\n".join([*lines, *more, *_without_value(asked)])


def _without_value(asked: Asked) -> Iterator[str]:
    """A rule's name that was taken as a descriptor's key, most likely."""
    known = _names(asked.book, asked.domain)
    for key, value in asked.entries:
        if not value:
            hint = f": --rule {key} takes all counters of that rule" if _find(known, asked.domain, key) else ""
            yield printable(f"{key}= has no value{hint}")


def _run(asked: Asked, act: Callable[[Counters], Awaitable[_T]]) -> _T:
    async def run() -> _T:
        async with aclosing(Counters(asked.settings, asked.book)) as counters:
            return await act(counters)

    return uvloop.run(run())


async def _look(counters: Counters, asked: Asked, most: int) -> Seen:
    seen = Seen(most)
    async for batch in asked.batches(counters):
        seen.left_out += batch.left_out
        for counter, content in await counters.read(batch):
            if content is not None:
                seen.add(counter, content)
    seen.moved = counters.slots_moved
    return seen


async def _count(counters: Counters, asked: Asked) -> int:
    if asked.entries:
        seen = await _look(counters, asked, 0)
        return seen.total + seen.untouched
    return sum([len(batch.counters) async for batch in asked.batches(counters)])


class _Done(NamedTuple):
    """What came of a reset, as JSON has it."""

    reset: int
    left_out: int
    slots_moved: bool


async def _reset(counters: Counters, asked: Asked) -> _Done:
    reset = left_out = 0
    failure: StoreError | None = None
    try:
        async for batch in asked.batches(counters):
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
        raise StoreError(f"{failure}; before that, {many(reset)} of {asked} reset") from failure
    return _Done(reset, left_out, counters.slots_moved)
