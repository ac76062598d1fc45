"""The troubles of the service now: the banners of its page, and of `ratelimit status`."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.loading import Loading
from ratelimit_service.rules.rule import Rule, plural
from ratelimit_service.rules.sources.source import SourceConnection
from ratelimit_service.server.state import ServiceState, Workers
from ratelimit_service.stores.store import LostServer
from ratelimit_service.system.clock import MINUTE, SECOND

_NO_RULES: Final = "there are no rules in force, and calls fail"
_MAX_PROBLEMS: Final = 100
_CRASH_WINDOW: Final = 15 * MINUTE
_MIN_CRASHES: Final = 2
"""Workers that ended unexpectedly within that time. One may be chance; the log has it."""

_MEANWHILE: Final = {
    "error": "requests end with UNAVAILABLE, and the caller decides (in Envoy, failure_mode_deny)",
    "open": "requests are allowed, as if no counter had been charged yet",
    "closed": "requests are refused",
    "local": "each process counts in its own memory, with its share of the limits",
}


_WHICH: Final = {
    "error": "which answers UNAVAILABLE",
    "open": "which lets pass",
    "closed": "which refuses",
    "local": "which counts in the memory of each process",
}
_MAX_NAMED: Final = 3
"""Rules of one policy."""


class Trouble(NamedTuple):
    """One thing that is wrong; a banner of the page."""

    what: str
    since: float | None
    """Seconds since the epoch."""
    why: str
    meanwhile: str
    """What the service answers, or does, until it is over."""
    details: Sequence[str] = ()


def troubles(state: ServiceState, now: int) -> Iterator[Trouble]:
    """Everything that is wrong at the time `now`, the most urgent first."""
    health, loading = state.health, state.loading
    if health.draining_since is not None:
        yield Trouble(
            "The service is draining",
            health.draining_since / SECOND,
            "it received the signal to stop",
            "health says NOT_SERVING; calls are still answered until the ports close",
        )
    for lost in state.counted.store.lost:
        yield Trouble(f"Redis at {lost.server} is lost", lost.since, lost.words, _answered(lost, state.counted.book))
    for warning in state.counted.store.warnings:
        yield Trouble("Regions have the same name, or do not agree", None, warning, "they go on as they are set")
    if loading.problems:
        yield _not_loaded(loading)
    for feed in loading.feeds:
        if (connection := feed.source.connection) is not None:
            yield from _away(connection, loading.book)
    if state.workers is not None:
        yield from _deaths(state.workers, now)


def _answered(lost: LostServer, book: RuleBook | None) -> str:
    """The words for what is answered without that server, by the settings and by rules that say otherwise."""
    answered = _MEANWHILE[lost.policy]
    by_policy = {} if book is None else book.by_policy
    if lost.at_home:
        answered = f"only limits that regions share need it: those with a floor keep it, and of the others {answered}"
        by_policy = {policy: [rule for rule in rules if _needs_home(rule)] for policy, rules in by_policy.items()}
    number = sum(len(by_policy.get(policy, ())) for policy in ("", lost.policy))
    others = [
        f"{policy}, {_WHICH[policy]}, for {plural(len(rules), 'rule')}: {_named(rules)}"
        for policy, rules in by_policy.items()
        if rules and policy not in {"", lost.policy}
    ]
    but = f"; but {'; '.join(others)}" if others else ""
    return f"{answered} (ON_STORE_FAILURE={lost.policy}, {plural(number, 'rule')}){but}"


def _needs_home(rule: Rule) -> bool:
    return rule.limit is not None and rule.limit.needs_home


def _named(rules: Sequence[Rule]) -> str:
    names = [".".join(rule.path) for rule in rules[:_MAX_NAMED]]
    more = len(rules) - len(names)
    return ", ".join(names) + (f" and {more:,} more" if more else "")


def _not_loaded(loading: Loading) -> Trouble:
    more = len(loading.problems) - _MAX_PROBLEMS
    details = [str(problem) for problem in loading.problems[:_MAX_PROBLEMS]]
    return Trouble(
        "The newest rules could not be loaded",
        None if loading.failing_since is None else loading.failing_since / SECOND,
        f"{loading.name} has problems",
        _NO_RULES if loading.book is None else "the old ones stay in force",
        details + ([f"and {more:,} more"] if more > 0 else []),
    )


def _away(connection: SourceConnection, book: RuleBook | None) -> Iterator[Trouble]:
    """A control plane that is lost, or has sent nothing yet."""
    meanwhile = _NO_RULES if book is None else "the rules in force stay"
    if connection.kept:
        meanwhile = f"the rules of its last snapshot are in force, from {connection.kept}"
    if not connection.connected:
        what = f"The control plane {connection.address} is lost"
        yield Trouble(what, connection.since / SECOND, connection.why or "it does not answer yet", meanwhile)
    elif book is None or connection.kept:
        why = "it has nothing for this node, or none of it could be loaded"
        yield Trouble(f"No rules yet from {connection.address}", connection.since / SECOND, why, meanwhile)


def _deaths(workers: Workers, now: int) -> Iterator[Trouble]:
    recent = [death for death in workers.last_deaths if death.when >= now - _CRASH_WINDOW]
    if len(recent) >= _MIN_CRASHES:
        first, last = recent[0], recent[-1]
        yield Trouble(
            f"{len(recent)} workers ended unexpectedly in the last {_CRASH_WINDOW // MINUTE} minutes",
            first.when / SECOND,
            f"the last one, worker {last.number}, {last.how}",
            "each is replaced, after a longer pause each time; its clients connect again",
        )
