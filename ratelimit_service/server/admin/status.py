"""The status of the service as JSON, for the page at `/`."""

import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import nlargest
from math import ceil
from operator import itemgetter
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from ratelimit_service import __version__
from ratelimit_service.model import PLAIN
from ratelimit_service.rules.bans import Ban
from ratelimit_service.rules.loading import Feed
from ratelimit_service.rules.rule import Rule, amount_in_words, counting_in_words, entries_in_words, rule_in_words
from ratelimit_service.rules.sources.source import SourceConnection
from ratelimit_service.server.admin.recent_counts import RecentCounts
from ratelimit_service.server.admin.troubles import troubles
from ratelimit_service.server.events import EventLog
from ratelimit_service.server.history import History, named
from ratelimit_service.server.per_minute import MINUTES, Numbers
from ratelimit_service.server.series import CONTROL, domain_numbers
from ratelimit_service.server.state import ServiceState
from ratelimit_service.server.top_descriptors import TopDescriptors
from ratelimit_service.system.clock import SECOND, system_clock
from ratelimit_service.system.cpus import cpu_seconds
from ratelimit_service.telemetry.gauges import NO_GAUGES, Gauges
from ratelimit_service.telemetry.heavy_hitters import HeavyNames
from ratelimit_service.telemetry.metric import value_of
from ratelimit_service.telemetry.reservations import Reservations, in_words
from ratelimit_service.telemetry.tally import OUTCOMES, POLICY_NUMBERS, Tallies, Tally, parted

_MAX_TALLIES: Final = 20
_BLOCK: Final = 20
"""Rules in one block of text: a tenth of a millisecond."""


class Listening(NamedTuple):
    """A protocol and the address where the service listens for it."""

    what: str
    address: str


class StatusPage:
    """The text of `/status`; times in it are seconds since the epoch."""

    def __init__(self, state: ServiceState, history: History, hot: TopDescriptors, events: EventLog) -> None:
        self.listening: Sequence[Listening] = ()
        self._state = state
        self._history = history
        self._hot = hot
        self._events = events
        self._recent = RecentCounts()
        self._started = system_clock()

    def text(self) -> Iterator[str]:
        """One JSON object, in blocks."""
        now = self._rules_now()
        yield json.dumps(self._service())[:-1]
        yield ', "rules": ['
        yield from _listed(now.rules, lambda rule: json.dumps(now.described(rule)))
        yield '], "history": '
        yield from self.history()
        yield "}\n"

    def rules(self) -> Iterator[str]:
        """The part of `text` about the rules, without their counts: it changes with `edition` only."""
        now = self._rules_now()
        yield f'{{"edition": {json.dumps(now.edition)}, "rules": ['
        yield from _listed(now.rules, lambda rule: json.dumps(_description(rule)))
        yield "]}\n"

    def now(self) -> Iterator[str]:
        """The same as `text`, with only the counts of the rules: a list in the order of `columns`, or 0 if all are."""
        now = self._rules_now()
        yield json.dumps(self._service())[:-1]
        yield f', {now.head()}, "counts": ['
        yield from _listed(now.rules, lambda rule: _packed(now.counts(rule)))
        yield '], "history": '
        yield from self.history()
        yield "}\n"

    def recent(self) -> Iterator[str]:
        """The same as `now`, but of the rules the counts of those that changed after the look `since`, by index.

        Of the history it has the last minute that is over, and the running one: no other changes.
        """
        now, recent = self._rules_now(), self._recent
        rules = now.rules
        recent.begin(rules, len(now.columns))
        yield json.dumps(self._service())[:-1]
        yield f', {now.head()}, "look": {recent.look}, "since": {recent.since}, "counts": {{'
        separator = ""
        for start in range(0, len(rules), _BLOCK):
            counted = ((index, now.counts(rules[index])) for index in range(start, min(start + _BLOCK, len(rules))))
            found = [f'"{index}":{_json_of(counts)}' for index, counts in counted if recent.changed(index, counts)]
            yield separator + ",".join(found) if found else ""  # that took its time too
            separator = "," if found else separator
        yield '}, "history": '
        yield from self.history(2)
        yield "}\n"

    def _rules_now(self) -> "RulesNow":
        counted = self._state.counted
        book, edition = counted.book, f"{self._started}.{self._state.loading.successes}"
        if book is None:
            return RulesNow((), edition)
        gauges = counted.gauges if book.gauges else {}
        return RulesNow(book.rules, edition, book.gauges, gauges, reserving=bool(book.reserving))

    def history(self, minutes: int = MINUTES) -> Iterator[str]:
        """The requests of each of the last minutes as a JSON object, in blocks: the last minute is running.

        As `last_minute` saw them, which is asked for before.
        """
        domains = self._history.domains
        latency = {f"p{percent}": self._history.latency(percent / 100, minutes) for percent in (50, 99)}
        of_all = {"minutes": minutes, "minute": self._history.minute, "latency": latency}
        yield json.dumps(self._minutes() | of_all)[:-1] + ', "domains": {'
        for index, domain in enumerate(domains.keys):
            columns = named(OUTCOMES, (row[-minutes:] for row in domains.rows(domain)))
            yield f"{', ' if index else ''}{json.dumps(CONTROL.sub('_', domain))}: {json.dumps(columns)}"
        yield "}}"

    async def history_of(self, domain: str, rule: str | None) -> str:
        """The part of `history` about one domain, or of a rule by its name; RpcError if there is nothing to say."""
        history = self._history
        columns = await (history.of_domain(domain) if rule is None else history.of_rule(domain, rule))
        more = {} if rule is None else {"reservations": self._reservations(domain, rule)}
        return json.dumps(self._minutes() | {"columns": columns} | more) + "\n"

    def _reservations(self, domain: str, name: str) -> Mapping[str, str]:
        """What became of the reservations of a rule, in words; nothing of one that does not reserve."""
        book = self._state.counted.book
        rules = () if book is None else book.reserving
        rule = next((rule for rule in rules if rule.domain == domain and ".".join(rule.path[1:]) == name), None)
        return {} if rule is None or rule.limit is None else in_words(rule.reservations, rule.limit.kind.estimate)

    def _minutes(self) -> dict[str, Any]:
        now, running = system_clock() / SECOND, self._history.running_seconds
        marks = self._events.marks(now - running - 60 * (MINUTES - 1))
        return {"now": now, "minutes": MINUTES, "running_seconds": running, "marks": marks}

    def _service(self) -> dict[str, Any]:
        counted, method, loading, health, metrics, workers = self._state
        store, now, bans = counted.store, system_clock(), counted.ban_summary
        by_domain = {domain: domain_numbers(tally)[: len(OUTCOMES)] for domain, tally in counted.domains.items()}
        return {
            "version": __version__,
            "python": platform.python_version(),
            "now": now / SECOND,
            "started": self._started / SECOND,
            "serving": health.serving,
            "draining": health.draining_since is not None,
            "troubles": [trouble._asdict() for trouble in troubles(self._state, now)],
            "listening": [listening._asdict() for listening in self.listening],
            "store": {
                "name": store.name,
                "healthy": store.healthy,
                "counters": store.counters,
                "evicted": store.evicted,
            },
            "process": {
                "pid": os.getpid(),
                "connections": None if workers else value_of(metrics(), "ratelimit_grpc_connections"),
                "cpu_seconds": cpu_seconds(os.getpid()),
                "age_seconds": (now - self._started) / SECOND,
            },
            "workers": [
                {
                    "number": worker.number,
                    "pid": worker.pid,
                    "ready": worker.ready,
                    "connections": worker.connections,
                    "cpu_seconds": cpu_seconds(worker.pid),
                    "age_seconds": worker.age_seconds,
                    "restarts": worker.restarts,
                }
                for worker in (() if workers is None else workers.alive)
            ],
            "calls": {
                "total": method.calls,
                "service_errors": counted.totals.service_errors,
                "store_errors": counted.totals.store_errors,
                "shadowed": counted.totals.global_shadow_mode,
                "outcomes": dict(zip(OUTCOMES, map(sum, zip(*by_domain.values(), strict=True)), strict=True)),
                "latency": method.latency.buckets(),
            },
            "last_minute": _last_minute(self._history),
            "reload": {
                "path": loading.name,
                "sources": [_shown_source(feed) for feed in loading.feeds],
                "successes": loading.successes,
                "failures": loading.failures,
                "current": loading.successes > 0 and not loading.problems,
                "last_success": _seconds(loading.last_success),
                "last_failure": _seconds(loading.last_failure),
            },
            "bans": {"total": bans.total, "newest": [_shown_ban(ban) for ban in bans.newest]},
            "hot": self._hot.as_json(),
            "domains": _requests(by_domain),
            "unmatched": _most_seen(counted.unmatched),
            "unknown_domains": _max_hit(counted.unknown_domains),
            "overrides": _max_hit(counted.overrides),
        }


def _shown_source(feed: Feed) -> dict[str, Any]:
    return {
        "kind": feed.source.kind,
        "name": feed.source.name,
        "version": feed.version,
        "documents": 0 if feed.good is None else len(feed.good.documents),
        "current": feed.good is not None and not feed.problems,
        "last_success": _seconds(feed.last_success),
        "connection": _connection(feed.source.connection),
    }


def _listed(rules: Sequence[Rule], show: Callable[[Rule], str]) -> Iterator[str]:
    """The elements of a JSON list, in blocks."""
    for start in range(0, len(rules), _BLOCK):
        yield ("," if start else "") + ",".join([show(rule) for rule in rules[start : start + _BLOCK]])


def _last_minute(history: History) -> dict[str, Any]:
    minute = history.last_minute()
    return {
        "seconds": minute.seconds,
        "calls": minute.calls,
        "outcomes": dict(zip(OUTCOMES, minute.outcomes, strict=True)),
        "latency": minute.latency.buckets(),
        "store": {"requests": minute.waits.calls, "latency": minute.waits.buckets(), "errors": minute.errors},
        "loop_lag": None if minute.lag is None else {"timers": minute.lag.calls, "latency": minute.lag.buckets()},
    }


COUNTS: Final = (
    *("total", "over", "near", "within", "exceeded", "spared", "shadow", "charges_dropped"),
    *("policy_allowed", "policy_refused", "failed"),
)
"""`total` is the sum of `within`, `over` (the cost of denied hits), `exceeded` and `spared`; `shadow` and
`charges_dropped` are parts of `over`, and `near` of what was below the limit. The last three are what the failure
policy answered, and in none of the others."""


class RulesNow(NamedTuple):
    """The rules in force, and what is true of them now."""

    rules: Sequence[Rule]
    edition: str = ""
    gauge_names: Sequence[str] = ()
    """Of those that some rules have."""
    gauges: Mapping[Tally, Gauges] = MappingProxyType({})
    reserving: bool = False
    """Some rules reserve."""

    @property
    def columns(self) -> Sequence[str]:
        """The names of the numbers in `counts`."""
        return (*COUNTS, *self.gauge_names, *(Reservations._fields if self.reserving else ()))

    def counts(self, rule: Rule) -> Sequence[float]:
        """The counts of a rule, its gauges, and its reservations."""
        counts = _counts(rule)
        if self.gauge_names:
            gauges = self.gauges.get(rule.tally, NO_GAUGES)
            counts = (*counts, *[getattr(gauges, name) for name in self.gauge_names])
        return (*counts, *rule.reservations) if self.reserving else counts

    def described(self, rule: Rule) -> dict[str, Any]:
        """The rule with its numbers, the sum of its values if it counts them apart."""
        return _description(rule) | dict(zip(self.columns, self.counts(rule), strict=True))

    def head(self) -> str:
        """The fields before the counts."""
        return f'"edition": {json.dumps(self.edition)}, "columns": {json.dumps(self.columns)}'


def _description(rule: Rule) -> dict[str, Any]:
    kind = PLAIN if rule.limit is None else rule.limit.kind
    return {
        "domain": rule.domain,
        "path": rule.path[1:],
        "limit": _limit(rule),
        "per_second": _per_second(rule),
        "options": _options(rule),
        "place": "" if rule.place is None else rule.place.short,
        **({"estimate": kind.estimate} if kind.reserves else {}),
    }


def _counts(rule: Rule) -> tuple[float, ...]:
    tallies = [rule.tally] if rule.tallies is None else [tally for _, tally in rule.tallies.items()]
    return (
        sum(tally.total_hits + tally.unlimited for tally in tallies),
        sum(tally.over_limit + tally.denied_below_limit for tally in tallies),
        sum(tally.near_limit for tally in tallies),
        sum(tally.within_limit + tally.unlimited for tally in tallies),
        sum(tally.exceeded for tally in tallies),
        sum(tally.spared for tally in tallies),
        sum(tally.shadow_mode + tally.shadow_below_limit for tally in tallies),
        sum(tally.charges_dropped for tally in tallies),
        *(sum(tally.by_policy(outcome) for tally in tallies) for outcome in POLICY_NUMBERS),
    )


def _packed(counts: Sequence[float]) -> str:
    return _json_of(counts) if any(counts) else "0"


def _json_of(counts: Sequence[float]) -> str:
    return json.dumps(counts, separators=(",", ":"))


def _limit(rule: Rule) -> str:
    limit = rule.limit
    return rule_in_words(rule) if limit is None else amount_in_words(limit)


def _per_second(rule: Rule) -> float | None:
    """The rate by which limits of different windows are sorted; None if there is no such number."""
    limit = rule.limit
    if limit is None:
        return 0 if rule.deny else None
    return float(f"{limit.requests * SECOND / limit.window:.9g}") if limit.kind.in_windows else None


def _options(rule: Rule) -> list[str]:
    options = []
    if rule.name:
        options.append(f"name {rule.name}")
    options += counting_in_words(rule)
    if rule.shadow:
        options.append("shadow")
    if rule.quota:
        options.append("quota")
    if any(level.shared is not None for level in rule.levels):
        options.append("shared")
    if rule.tallies is not None:
        options.append("metrics by value")
    if rule.replaces:
        options.append(f"replaces {', '.join(sorted(rule.replaces))}")
    return options


def _shown_ban(ban: Ban) -> dict[str, Any]:
    """A ban; the entries are text of requests, and the rest may be from another program.

    `named` has the entries that lift it, or None if they cannot be shown as they are.
    """
    texts = {"domain": ban.domain, "entries": entries_in_words(ban.entries), "who": ban.who, "why": ban.why}
    shown: dict[str, Any] = {name: CONTROL.sub("_", text) for name, text in texts.items()}
    found = ban.as_json()
    clean = (shown["domain"], shown["entries"]) == (ban.domain, texts["entries"])
    return shown | {"named": found["entries"] if clean else None, "until": found["until"]}


def _max_hit(tallies: Tallies) -> list[dict[str, Any]]:
    most = nlargest(_MAX_TALLIES, tallies.items(), key=lambda item: item[1].total_hits)
    return [
        {
            "path": [CONTROL.sub("_", part) for part in path],
            "total": tally.total_hits + sum(map(tally.by_policy, POLICY_NUMBERS)),
            "over": tally.over_limit + tally.denied_below_limit + tally.by_policy("refused"),
        }
        for path, tally in most
    ]


def _most_seen(names: HeavyNames) -> list[dict[str, Any]]:
    """The paths of names, with how many there were at least."""
    counts = names.seen().counts
    return [
        {"path": [CONTROL.sub("_", part) for part in parted(name)], "total": ceil(counts[name])}
        for name in nlargest(_MAX_TALLIES, counts, key=counts.__getitem__)
    ]


def _requests(by_domain: Mapping[str, Numbers]) -> list[dict[str, Any]]:
    """The requests of the busiest domains by outcome."""
    found = [
        {"domain": domain, **dict(zip(OUTCOMES, numbers, strict=True)), "total": sum(numbers)}
        for domain, numbers in by_domain.items()
        if any(numbers)
    ]
    return nlargest(_MAX_TALLIES, found, key=itemgetter("total"))


def _connection(connection: SourceConnection | None) -> dict[str, Any] | None:
    """The connection to a control plane; None with rules from files."""
    if connection is None:
        return None
    texts = {"version": CONTROL.sub("_", connection.version), "why": CONTROL.sub("_", connection.why)}
    return connection._asdict() | texts | {"since": connection.since / SECOND}


def _seconds(moment: int | None) -> float | None:
    return None if moment is None else moment / SECOND
