"""`KEY_FORMAT=envoyproxy`: fixed windows under the names that envoyproxy/ratelimit gives their counters.

While its instances are replaced by ours one by one, both count on the same keys, `domain_key_value_1700000000` with the
window's start in seconds, and a limit holds for all instances together. As in envoyproxy, the window is that of the
service's clock, not of Redis's, and names are not escaped: two rules may share a counter.
"""

from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha1
from pathlib import Path
from random import random
from typing import Any, Final
from urllib.parse import unquote

from ratelimit_service.algorithms import fixed_window
from ratelimit_service.model import PLAIN, Limit
from ratelimit_service.rules.rule import ALONE, Rule
from ratelimit_service.stores.hit import Hit, OnCounter
from ratelimit_service.stores.redis.leases import Ask
from ratelimit_service.stores.redis.replies import MISFIT, integers, misfit
from ratelimit_service.stores.redis.script import Answer, Encoded, Run, Sent
from ratelimit_service.system.clock import SECOND, Clock, system_clock

_FILE: Final = Path(__file__).with_suffix(".lua")


class EnvoyproxyScript:
    """Charges hits on envoyproxy's counters."""

    def __init__(self, prefix: str, jitter_seconds: int, clock: Clock = system_clock) -> None:
        self.text = _FILE.read_text(encoding="utf-8")
        self.sha = sha1(self.text.encode(), usedforsecurity=False).hexdigest()
        self._prefix = prefix
        self._jitter = jitter_seconds
        self._clock = clock

    def key(self, hit: OnCounter) -> str:
        """The name of its counter now."""
        return envoyproxy_key(self._prefix, hit, self._clock())

    def kept(self, hit: Hit) -> Sequence[str]:
        """As Script says: what has a block is counted elsewhere."""
        return (self.key(hit),)

    def encode(self, parts: Sequence[Sent], asks: Sequence[Ask] = ()) -> Encoded:
        """A run for each hit; none of their limits leases."""
        now = self._clock()
        hits = [hit for part in parts for hit in part.hits]
        keys: list[str] = []
        for part in parts:
            keys += part.names or [envoyproxy_key(self._prefix, hit, now) for hit in part.hits]
        arguments: list[int] = []
        runs: list[Run] = []
        for hit, key in zip(hits, keys, strict=True):
            limit = hit.limit
            seconds = -(-limit.window // SECOND) + int(random() * self._jitter)  # noqa: S311 - no secret
            moment = _moment_of(key, limit, now)
            arguments += (moment, hit.cost, limit.ceiling, seconds, int(limit.count_refused or limit.owes))
            runs.append((hit,))
        return Encoded(keys, arguments, runs)

    def decode(self, reply: Any, runs: Sequence[Run], asks: Sequence[Ask] = ()) -> Answer:
        """As Script says; decides by what was counted before."""
        changed = []
        try:
            moments, counted = [*map(int, reply[::2])], integers(reply[1::2], len(runs))
            for (hit,), now, before in zip(runs, moments, counted, strict=True):
                limit = hit.limit
                end = now - now % limit.window + limit.window
                state = (end, before) if before > 0 else None
                if limit.owes:
                    *_, hit.decision = PLAIN.owe(fixed_window, state, None, limit, hit.cost, now)
                else:
                    _, hit.decision = fixed_window.hit(state, limit, hit.cost, now)
                if not hit.decision.allowed or hit.cost < 0:
                    changed.append(hit)
        except MISFIT as error:
            raise misfit("the script") from error
        return Answer(moments[0], changed)


def envoyproxy_key(prefix: str, hit: OnCounter, now: int) -> str:
    """The name of its counter at that moment."""
    return f"{prefix}{_stem(hit.rule, hit.key)}{(now - now % hit.limit.window) // SECOND}"


def _moment_of(key: str, limit: Limit, now: int) -> int:
    """The moment to charge a counter of that name: now, or the last moment of its window if that has ended since."""
    start = int(key.rpartition("_")[2]) * SECOND
    return max(start, min(now, start + limit.window - 1))


def counts_as_envoyproxy(rule: Rule) -> bool:
    """Whether the rule counts as envoyproxy does: in aligned windows of one unit, with a single limit without blocks.

    It has no default of a domain, and no addresses: its names could not tell one from a text, as our own do.

    The name has the start of the window, and not its length: several limits of a descriptor would share a counter
    whenever their windows start at one moment, such as those of a minute and an hour.
    """
    limit = rule.limit
    return (
        limit is not None
        and rule.algorithm.name == "fixed_window"
        and limit.epoch_aligned
        and rule.together == ALONE
        and not rule.path_suffix
        and limit.kind is PLAIN
        and not rule.default
        and limit.window == limit.unit.window
        and not limit.is_central
        and all(level.as_envoyproxy for level in rule.levels)
    )


@lru_cache(10_000)
def _stem(rule: Rule, key: str) -> str:
    """Envoyproxy's name without the window: domain, then key and value of each entry, or a shared level's pattern.

    A key that is too long is replaced by its digest, as in our own names; envoyproxy's name is then another one.
    """
    domain, *parts = key.removesuffix(rule.key_suffix).split("|")
    names = [unquote(domain)]
    for index, part in enumerate(parts):
        name, equals, value = part.partition("=")
        if equals:
            names += (unquote(name), unquote(value))
        elif "~" in part:
            names += (unquote(part.partition("~")[0]), rule.levels[index].shared or "")
        else:
            names.append(part)
    return "_".join(names) + "_"
