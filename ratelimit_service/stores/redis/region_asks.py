"""A region's asks to home, and their answers: between the replies of one script and the calls of the next. Pure.

A reply of the region's Redis names asks (`script.py` makes `RegionAsk` of them). One goes to the home Redis as an ask
of a lease (`at_home`), by the script that counts there too. What home has granted is deposited in the region's counter,
and what is left of an ended lease is collected there, by a small script of its own, `deposit.lua`.
"""

from collections.abc import Sequence
from hashlib import sha1
from typing import Any, ClassVar, Final, NamedTuple, Self

from ratelimit_service.algorithms.kinds.leased import ASK_LIFE, LEAST_DENY, Deposit, home_of, term
from ratelimit_service.algorithms.lease import Granted, Wanted
from ratelimit_service.model import Limit
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.hit import Hit
from ratelimit_service.stores.redis.leases import Ask, LeasedCounter
from ratelimit_service.stores.redis.replies import fitting, integers
from ratelimit_service.stores.redis.script_text import script_text
from ratelimit_service.system.clock import Clock

HOME: Final = "|home"
"""The end of the key of a counter at home; no key of a region's counter ends so."""

Command = tuple[Sequence[str], Sequence[str]]
"""Keys and arguments of a script."""


class RegionAsk(NamedTuple):
    """The ask of a region to home about one counter."""

    rule: Rule
    limit: Limit
    """That of the hits: how regions share it is in its `regions`."""
    key: str
    """Of the region's counter."""
    name: str
    """The same as it is named in the region's Redis."""
    numbers: Sequence[int]
    """As the twin of the limit has written them; of a leased one: back, back_end, least, extra."""
    now: int
    """When the region's script ran, by the clock of its Redis."""

    @classmethod
    def read(cls, hit: Hit, name: str, numbers: Any, now: int) -> Self:
        """One about the counter of the hit; ValueError or TypeError if its limit has other numbers."""
        integers(numbers, hit.limit.kind.asks_home)
        return cls(hit.rule, hit.limit, hit.key, name, numbers, now)


def at_home(ask: RegionAsk) -> Ask:
    """The ask as the script that counts at home takes it."""
    length = term(ask.rule.algorithm, ask.limit)
    return Ask(LeasedCounter(ask.rule, home_of(ask.limit), ask.key + HOME, length, 0), *Wanted._make(ask.numbers))


class StepScript:
    """A script of one step between two Redises, at the time of the one that takes it; in tests of `clock`."""

    twins: ClassVar[Sequence[str]]
    """Those that it opens."""
    name: ClassVar[str]
    """Of its file."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.text = script_text(self.twins, self.name)
        self.sha = sha1(self.text.encode(), usedforsecurity=False).hexdigest()
        self._clock = clock

    def now(self) -> int:
        """As the script takes it: 0 for the time of Redis."""
        return 0 if self._clock is None else self._clock()


class RegionScript(StepScript):
    """Deposits and collects in a region's Redis."""

    twins, name = ("leased", "lease"), "deposit.lua"

    def deposit(self, ask: RegionAsk, granted: Granted | None) -> Command:
        """Bring the region what home has answered; None: home cannot be reached, and the floor is all there is."""
        return self._command(ask, deposit_of(ask, granted))

    def collect(self, ask: RegionAsk) -> Command:
        """Take out what is left of the lease, if it has ended."""
        return self._command(ask, ())

    @fitting("the script of regions")
    def collected(self, ask: RegionAsk, reply: Any) -> RegionAsk | None:
        """The units to give back to home, as an ask for nothing; None if nothing was left. Raises Fault."""
        units, term_end = integers(reply, 2)
        return ask._replace(numbers=(units, term_end, 0, 0)) if units else None

    def _command(self, ask: RegionAsk, numbers: Sequence[int]) -> Command:
        return [ask.name], [str([self.now(), term(ask.rule.algorithm, ask.limit), *numbers])]


def deposit_of(ask: RegionAsk, granted: Granted | None) -> Deposit:
    """The answer of home, by the clock of the region's Redis."""
    if granted is None:
        later = ask.now + ASK_LIFE
        return Deposit(ask.now, 0, 0, 0, later, later, later)
    end = granted.end(ask.now)
    retry = ask.now + granted.retry_after
    reset = ask.now + granted.reset_after
    denied = granted.units < ask.numbers[_LEAST]
    # Others give back when the term ends.
    deny_until = min(retry, ask.now + granted.term_end - granted.store_now + LEAST_DENY) if denied else 0
    return Deposit(ask.now, granted.units, end, granted.term_end, deny_until, retry, reset)


_LEAST: Final = 2
"""The index, in the numbers of an ask, of the least units."""
