"""`ratelimit counters`: shows counters in Redis, and resets them."""

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from difflib import get_close_matches
from heapq import heappush, heappushpop
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import click
import uvloop

from ratelimit_service.commands.counters_at import reset_at
from ratelimit_service.commands.operator_port import (
    AccessFiles,
    PortAccess,
    access_options,
    at_option,
    read_access,
    with_rules,
)
from ratelimit_service.commands.request import Entry, EntryType, one_descriptor
from ratelimit_service.commands.sources import env_file_option, read_book, read_settings, rules_option
from ratelimit_service.commands.table import aligned
from ratelimit_service.commands.terminal import echo, echo_json
from ratelimit_service.errors import SettingsError, StoreError
from ratelimit_service.rules.address import from_operator
from ratelimit_service.rules.book import ANY_DOMAIN, RuleBook
from ratelimit_service.rules.problems import Place, printable
from ratelimit_service.rules.rule import Entries, Rule, entries_in_words, limit_in_words, plural, rule_in_words
from ratelimit_service.settings import Settings
from ratelimit_service.settings.fields import Backend
from ratelimit_service.stores.descriptor import limiting_rules
from ratelimit_service.stores.redis.counter_looks import Content
from ratelimit_service.stores.redis.counter_names import Counter
from ratelimit_service.stores.redis.counters import CounterBatch, Counters
from ratelimit_service.system.clock import SECOND, duration_in_words

_FAILED: Final = 1

_IN_MEMORY: Final = (
    "BACKEND_TYPE is memory: counters are in the memory of each service, where this command cannot read them. "
    "`ratelimit explain DOMAIN KEY=VALUE --at HOST:6070` shows counters of a running service, and `ratelimit counters "
    "DOMAIN KEY=VALUE --reset --at HOST:6070` resets them; its page and /metrics show the answers of each rule. For "
    "counters in Redis set REDIS_URL as for the service"
)
_RESETS_ONE: Final = (
    "--at resets the counters of one descriptor by the service's own rules: give KEY=VALUE and --reset, and leave "
    "--rule and --rules out; `ratelimit explain --at` shows them"
)
_DENIALS_REMEMBERED: Final = "Services that remember a refusal ask again within 5 s."
_DIGEST: Final = "(too long: a digest)"

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
            return _words(self.domain, self.book.shown(self.domain, self.entries))
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


class Row(NamedTuple):
    """A counter in the table. Rows are ordered by fullness, then by what is used: heapq evicts the least of them."""

    fullness: float
    used: int
    number: int
    counter: Counter
    content: Content


@dataclass
class Listing:
    """The fullest counters, `most` of them, and how many there are of each kind."""

    most: int
    rows: list[Row] = field(default_factory=list)
    total: int = 0
    untouched: int = 0
    """Not in `total`: keys of which nothing is used, because the window is over or all was refunded. They expire."""
    without_rule: int = 0
    digests: int = 0
    left_out: int = 0
    slots_moved: bool = False

    def add(self, counter: Counter, content: Content) -> None:
        """Count the counter, and keep it if it is among the fullest."""
        if content.used == 0 and not content.blocked_for:
            self.untouched += 1
            return
        self.total += 1
        if not counter.descriptor:
            self.digests += 1
        elif counter.rule is None and not counter.ambiguous:
            self.without_rule += 1
        row = Row(content.fullness, content.used or 0, -self.total, counter, content)
        if len(self.rows) < self.most:
            heappush(self.rows, row)
        elif self.most:
            heappushpop(self.rows, row)

    @property
    def fullest(self) -> list[Row]:
        """The rows in the order of the table."""
        return sorted(self.rows, key=lambda row: (-row.fullness, -row.used, row.counter.key))


@click.command(
    epilog="""\b
Examples:
  ratelimit counters shop                       (the fullest of the domain)
  ratelimit counters shop plan=free user=ada    (those of one descriptor)
  ratelimit counters shop --rule shop.user --limit 100 --json
  ratelimit counters shop user=ada --reset --yes
  ratelimit counters shop user=ada --reset --yes --at localhost:6070"""
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
@at_option("Debug port of a service, which resets its counters, in memory too.")
@access_options
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
    at: str | None,
    access_files: AccessFiles,
) -> None:
    """Show counters in Redis, or reset them.

    Shows the counters of a domain, of some of its rules, or of one descriptor, the fullest first. Nothing is charged or
    written. Redis spends 1.3 to 1.8 s on each 100,000 counters, in slices of at most 3 ms between which it serves
    others. A counter that no present rule charges shows what was used, but not what is left. With --reset they are
    removed, and denied requests are allowed again. Redis and rules are those of the service's settings: run this with
    the same environment. With --at a running service resets the counters of a descriptor, in memory too; `ratelimit
    explain --at` shows them.
    """
    if not domain:
        raise click.UsageError("the domain is empty: name the one whose counters are meant")
    descriptor = one_descriptor(entries, "counters")
    if reset and not yes and not sys.stdin.isatty():
        raise click.UsageError("--reset asks for confirmation, and the input is not a terminal: add --yes")
    access = read_access(access_files, env_file)
    if at is not None:
        if not reset or not descriptor or names or rules is not None:
            raise click.UsageError(_RESETS_ONE)
        if not yes:
            _confirm(f"the counters of {_words(domain, descriptor)}")
        found = reset_at(at, access, domain, descriptor)
        shown = tuple([(entry["key"], entry["value"]) for entry in found["entries"]])
        lines = [f"{plural(found['reset'], 'counter')} of {_words(domain, shown)} reset"]
        if found["reset"] and found["store"] != Backend.MEMORY:
            lines.append(_DENIALS_REMEMBERED)
        _print(found, "\n".join(lines), json_wanted)
        return
    selection = _select(domain, descriptor, names, rules, env_file, access)
    if reset:
        _reset_here(selection, yes=yes, json_wanted=json_wanted)
        return
    listing = _run(selection, lambda counters: _list(counters, selection, most))
    _check_domain(selection, listing.total + listing.untouched)
    _print(_as_json(domain, listing), _as_table(listing) if listing.total else _empty(selection, listing), json_wanted)


def _print(found: Mapping[str, Any], text: str, json_wanted: bool) -> None:
    if json_wanted:
        echo_json(found)
    else:
        echo(*text.split("\n"))


def _reset_here(selection: Selection, *, yes: bool, json_wanted: bool) -> None:
    """Reset the selected counters in the Redis of the settings."""
    if not yes:
        count = _run(selection, lambda counters: _count(counters, selection))
        _check_domain(selection, count)
        if count:
            _confirm(f"{plural(count, 'counter')} of {selection}")
    done = _run(selection, lambda counters: _reset(counters, selection))
    _check_domain(selection, done.reset)
    lines = [
        f"{plural(done.reset, 'counter')} of {selection} reset",
        *_notes(left_out=done.left_out, slots_moved=done.slots_moved),
        *([_DENIALS_REMEMBERED] if done.reset else _without_value(selection)),
    ]
    _print({"domain": selection.domain, **done._asdict()}, "\n".join(lines), json_wanted)


def _words(domain: str, entries: Entries) -> str:
    return f"{printable(entries_in_words(entries))} in domain {printable(domain)}"


def _confirm(what: str) -> None:
    """Exit unless the user says that this shall be reset."""
    if not click.confirm(f"Reset {what}?", err=True):
        echo("Nothing was reset.", err=True)
        sys.exit(_FAILED)


def _select(
    domain: str,
    entries: Entries,
    names: Sequence[str],
    rules: Path | None,
    env_file: Path | None,
    access: PortAccess,
) -> Selection:
    settings, _ = read_settings({"rules_path": rules}, env_file)
    if settings.backend_type is not Backend.REDIS:
        raise SettingsError([_IN_MEMORY])
    settings = with_rules(settings, access)
    book, entries = read_book(settings), from_operator(entries)
    named = [rule for name in names for rule in _named(book, domain, name)]
    if not entries:
        return Selection(settings, book, domain, (), named, bool(names))
    limiting = [rule for rule in limiting_rules(book, domain, entries) if not names or rule in named]
    if names and not limiting:
        called = " ".join(names)
        shown = printable(entries_in_words(book.shown(domain, entries)))
        raise click.UsageError(f"{called} does not limit {shown}; `ratelimit explain` shows why")
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
        raise click.UsageError(f"rule {name} is {rule_in_words(found[0])}: it has no counters")
    return limiting


def _find(known: Mapping[str, list[Rule]], domain: str, name: str) -> list[Rule]:
    return known.get(name) or known.get(f"{domain}.{name}") or known.get(f"{ANY_DOMAIN}.{name}") or []


def _rules_by_name(book: RuleBook, domain: str) -> dict[str, list[Rule]]:
    """The domain's rules by each name that --rule takes."""
    known: dict[str, list[Rule]] = {}
    for rule in book.rules_in(domain):
        path = ".".join(rule.path)
        levels = ".".join(rule.path[: len(rule.path) - len(rule.path_suffix)])
        places = _places(rule.place) if rule.place else ()
        for each in {path, levels, rule.name, *places}:
            known.setdefault(each, []).append(rule)
    known.pop("", None)
    return known


def _places(place: Place) -> Iterator[str]:
    """`config/shop.yaml:7:5` as in errors, `config/shop.yaml:7` as on the page, and both with the file's name alone."""
    for each in (place, place._replace(path=Path(place.path).name)):
        yield f"{each}"
        yield each.short


def _check_domain(selection: Selection, count: int) -> None:
    """Exit if the domain has neither rules nor counters: most likely it is misspelt."""
    domains = selection.book.domains
    if count or selection.book.name_of(selection.domain):
        return
    near = get_close_matches(selection.domain, domains, 1)
    hint = f"; did you mean {near[0]}?" if near else f"; there are: {', '.join(domains)}" if domains else ""
    echo(f"ratelimit: there is no domain {selection.domain}, and no counter of it{hint}", err=True)
    sys.exit(_FAILED)


def _empty(selection: Selection, listing: Listing) -> str:
    """The text in place of a table without rows."""
    if selection.entries and not selection.rules:
        lines = [f"No rule limits {selection}; `ratelimit explain` shows why."]
    elif selection.entries:
        limits = "; ".join(limit_in_words(rule.limit) for rule in selection.rules)
        lines = [f"There is no counter of {selection}: nothing is charged to it ({limits})."]
    else:
        lines = [f"There are no counters of {selection}."]
    more = _notes(untouched=listing.untouched, left_out=listing.left_out, slots_moved=listing.slots_moved)
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
            if content.exists or content.blocked_for:
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
        raise StoreError(f"{failure}; before that, {plural(reset, 'counter')} of {selection} reset") from failure
    return _ResetResult(reset, left_out, counters.slots_moved)


def _as_table(listing: Listing) -> str:
    """The table as text; there is at least one counter."""
    rows = [_HEADER, *(_cells(row.counter, row.content) for row in listing.fullest)]
    lines = aligned(rows, right=_RIGHT) if listing.rows else []
    lines.append(f"{plural(listing.total, 'counter')}{_shown(len(listing.rows), listing.total)}")
    if listing.without_rule:
        lines.append(
            f"{listing.without_rule:,} of them charged by none of the present rules: by limits sent with requests, or "
            "by rules that were changed or are gone"
        )
    if listing.digests:
        lines.append(f"{listing.digests:,} of them under a digest: the name was too long to tell the descriptor")
    return "\n".join(
        [*lines, *_notes(untouched=listing.untouched, left_out=listing.left_out, slots_moved=listing.slots_moved)]
    )


def _shown(rows: int, total: int) -> str:
    if rows == total:
        return ""
    if rows == 0:
        return ", none of them shown"
    return ", the fullest is shown" if rows == 1 else f", the {rows:,} fullest are shown"


def _notes(*, untouched: int = 0, left_out: int, slots_moved: bool) -> Iterator[str]:
    """Lines below the table."""
    if untouched:
        yield f"{untouched:,} more to which nothing is charged now: Redis removes them by itself"
    if left_out:
        yield (
            f"{plural(left_out, 'counter')} besides may be of that rule: a digest stands for too long a descriptor. "
            "Ask for the descriptor itself, or for the whole domain"
        )
    if slots_moved:
        yield "Slots of the cluster moved meanwhile: some counters may have been missed. Run it again"


def _as_json(domain: str, listing: Listing) -> dict[str, Any]:
    """The listing as JSON; times are seconds."""
    return {
        "domain": domain,
        "total": listing.total,
        "untouched": listing.untouched,
        "without_rule": listing.without_rule,
        "digests": listing.digests,
        "left_out": listing.left_out,
        "slots_moved": listing.slots_moved,
        "counters": [_row_as_json(row.counter, row.content) for row in listing.fullest],
    }


_HEADER: Final = ("used", "left", "resets in", "expires in", "algorithm", "rule", "descriptor")
_RIGHT: Final = 4
"""The first columns, numbers and times, are aligned to the right."""


def _cells(counter: Counter, content: Content) -> tuple[str, ...]:
    rule = counter.rule
    used = "?" if content.used is None else f"{content.used:,}"
    if rule is not None:
        name = ".".join(rule.path)
    else:
        name = "(one of several)" if counter.ambiguous else "(sent with requests?)" if counter.may_be_sent else "(none)"
    return (
        used if rule is None else f"{used} of {counter.capacity:,}",
        "blocked" if content.blocked_for else "?" if content.remaining is None else f"{content.remaining:,}",
        duration_in_words(content.reset_after),
        "never" if content.expires_after is None else duration_in_words(content.expires_after),
        counter.algorithm.replace("_", " ") or "?",
        printable(name),
        printable(counter.descriptor) or _DIGEST,
    )


def _row_as_json(counter: Counter, content: Content) -> dict[str, Any]:
    rule, limit = counter.rule, counter.limit
    return {
        "key": counter.key.decode(errors="replace"),
        "descriptor": counter.descriptor or None,
        "rule": None if rule is None else ".".join(rule.path),
        "place": str(rule.place) if rule is not None and rule.place else None,
        "algorithm": counter.algorithm or None,
        "limit": None if rule is None else limit_in_words(limit),
        "capacity": None if rule is None else counter.capacity,
        "used": content.used,
        "remaining": content.remaining,
        "reset_after": content.reset_after / SECOND,
        "retry_after": _retry(content.retry_after),
        "blocked_for": content.blocked_for / SECOND if content.blocked_for else None,
        "expires_after": None if content.expires_after is None else content.expires_after / SECOND,
    }


def _retry(microseconds: int | None) -> float | None:
    """Seconds until a hit of cost 1 is allowed; None if it never is, or if that is not known."""
    return None if microseconds is None or microseconds < 0 else microseconds / SECOND
