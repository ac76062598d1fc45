"""Blocks: after a denial, a counter denies every hit for a time, whatever algorithm counts.

The first denied hit blocks the counter for `block_for`. Until the block ends nothing is charged, also with
`count_refused`, so denied hits do not prolong it. A refund is charged as ever and does not end it; a look, which costs
0, is denied and starts none.

With `block_up_to` a next block is twice as long as the last one, up to that, if it starts before the last one has been
over for as long as it was.

A block is apart from the state of its counter, which stays as it is when `block_for` comes into a rule or goes.
State: when the block is forgotten, when it ends, and its length. The Lua twin is `block.lua`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from ratelimit_service.model import NEVER, PLAIN, Algorithm, Blocked, Charge, Decision, Kind, Limit, State
from ratelimit_service.system.clock import duration_in_words

BlockState = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Block(Kind):
    """A denial blocks the counter."""

    block_for: int
    """Microseconds for which a denial blocks the counter."""
    block_up_to: int = 0
    """The length up to which a next block is twice as long as the last one; 0: all are `block_for` long."""

    twin = "block"
    composite = has_second = True
    ending = "|block"
    in_runs = False
    why_not_leased = "block_for: each refused request has to reach Redis"
    tallied = ("blocked",)

    def hit(
        self, charge: Charge, state: State | None, second: BlockState | None, limit: Limit, cost: int, now: int
    ) -> tuple[State | None, BlockState | None, Decision]:
        """Charge `cost` unless the counter is blocked: the new state, the new block, and the decision."""
        block = _in_force(second, now)
        if block is not None and block[1] > now:
            rest = block[1] - now
            after, look = charge(state, limit, min(cost, 0), now)
            if cost < 0:
                return after, block, Blocked(True, 0, 0, max(rest, look.reset_after), 0, rest)
            _, tried = charge(state, _uncounted(limit) if limit.count_refused else limit, cost, now)
            return after, block, _denial(tried.retry_after, cost, look.reset_after, rest)
        state, decision = charge(state, limit, cost, now)
        if decision.allowed or cost == 0:
            return state, block, decision
        block = self._start(block, now)
        return state, block, _denial(decision.retry_after, decision.over, decision.reset_after, block[2])

    def owe(
        self,
        algorithm: Algorithm,
        state: State | None,
        second: BlockState | None,
        limit: Limit,
        cost: int,
        now: int,
    ) -> tuple[State | None, BlockState | None, Decision]:
        """As Kind says. What leaves the counter above its limit starts a block; it prolongs none."""
        state, _, look = PLAIN.owe(algorithm, state, None, limit, cost, now)
        block, rest = _in_force(second, now), self.rest(second, now)
        if not rest and cost and not look.allowed:
            block = self._start(block, now)
            rest = block[2]
        return state, block, _denial(look.retry_after, look.over, look.reset_after, rest) if rest else look

    def deny(
        self, second: BlockState | None, limit: Limit, cost: int, charged: int, now: int
    ) -> tuple[BlockState | None, int]:
        """A hit that is denied starts a block; on a blocked counter nothing is charged."""
        if cost <= 0:
            return second, charged
        return (second, 0) if self.rest(second, now) else (self._start(second, now), charged)

    def rest(self, second: BlockState | None, now: int) -> int:
        """The time until the block ends; 0 without one."""
        block = _in_force(second, now)
        return max(0, block[1] - now) if block is not None else 0

    def numbers(self, limit: Limit, algorithm: Algorithm, interval: int) -> tuple[int, ...]:
        """Its own."""
        return self.block_for, self.block_up_to

    def words(self, limit: Limit, holder: str) -> Mapping[str, str]:
        """`a denial blocks for 15 min, doubling up to 1 h`."""
        longest = f", doubling up to {duration_in_words(self.block_up_to)}" if self.block_up_to else ""
        return {"block": f"a denial blocks for {duration_in_words(self.block_for)}{longest}"}

    def options(self, limit: Limit, holder: str) -> Mapping[str, Any]:
        """Its own."""
        return {"block_for": self.block_for, "block_up_to": self.block_up_to}

    def lint(self, limit: Limit, algorithm: str) -> Iterator[tuple[str, str]]:
        """Warns of a block that ends before the window does."""
        longest = max(self.block_for, self.block_up_to)
        if algorithm == "fixed_window" and longest < limit.window:
            message = (
                f"a block of {duration_in_words(longest)} is shorter than the window of "
                f"{duration_in_words(limit.window)}: a counter that denies does so until its window ends, which is "
                "mostly later; write a longer block_for, or a shorter unit"
            )
            yield "short-block", message

    def _start(self, block: BlockState | None, now: int) -> BlockState:
        """The block that a denial starts, after an earlier one."""
        block = _in_force(block, now)
        length = self.block_for
        if block is not None:
            length = max(length, min(2 * block[2], self.block_up_to))
        end = now + length
        return (end + length if self.block_up_to > self.block_for else end), end, length


@lru_cache(1024)
def _uncounted(limit: Limit) -> Limit:
    """The limit by which a hit on a blocked counter is tried: it is not charged, and makes no later one wait longer."""
    return replace(limit, count_refused=False)


def _in_force(block: BlockState | None, now: int) -> BlockState | None:
    """The block unless it is forgotten. One that lasts too long was started by a clock that was ahead: it is cut."""
    if block is None or block[0] <= now:
        return None
    forgotten, end, length = block
    if end - now > 2 * length:
        return now + length + forgotten - end, now + length, length
    return block


def _denial(retry: int, over: int, reset: int, rest: int) -> Blocked:
    return Blocked(False, 0, over, max(rest, reset), retry if retry == NEVER else max(rest, retry), rest)
