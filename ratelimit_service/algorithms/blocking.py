"""Blocks: after a denial, a counter denies every hit for a time, whatever algorithm counts.

The first denied hit blocks the counter for `block_for`. Until the block ends nothing is charged, also with
`count_refused`, so denied hits do not prolong it. A refund is charged as ever and does not end it; a look, which costs
0, is denied and starts none.

With `block_up_to` a next block is twice as long as the last one, up to that, if it starts before the last one has been
over for as long as it was.

A block is apart from the state of its counter, which stays as it is when `block_for` comes into a rule or goes.
State: when the block is forgotten, when it ends, and its length. The Lua twin is `blocking.lua`.
"""

from dataclasses import replace
from functools import lru_cache

from ratelimit_service.algorithms.algorithm import Algorithm, State
from ratelimit_service.model import NEVER, Blocked, Decision, Limit

Block = tuple[int, int, int]


def hit(
    algorithm: Algorithm, state: State | None, block: Block | None, limit: Limit, cost: int, now: int
) -> tuple[State | None, Block | None, Decision]:
    """Charge `cost` unless the counter is blocked: the new state, the new block, and the decision."""
    block = _in_force(block, now)
    if block is not None and block[1] > now:
        rest = block[1] - now
        after, look = algorithm.hit(state, limit, min(cost, 0), now)
        if cost < 0:
            return after, block, Blocked(True, 0, 0, max(rest, look.reset_after), 0, rest)
        _, tried = algorithm.hit(state, _uncounted(limit) if limit.count_refused else limit, cost, now)
        return after, block, _denial(tried.retry_after, cost, look.reset_after, rest)
    state, decision = algorithm.hit(state, limit, cost, now)
    if decision.allowed or cost == 0:
        return state, block, decision
    block = start(block, limit, now)
    return state, block, _denial(decision.retry_after, decision.over, decision.reset_after, block[2])


def start(block: Block | None, limit: Limit, now: int) -> Block:
    """The block that a denial starts, after an earlier one."""
    block = _in_force(block, now)
    length = limit.block_for
    if block is not None:
        length = max(length, min(2 * block[2], limit.block_up_to))
    end = now + length
    return (end + length if limit.block_up_to > limit.block_for else end), end, length


def rest(block: Block | None, now: int) -> int:
    """The time until the block ends; 0 without one."""
    block = _in_force(block, now)
    return max(0, block[1] - now) if block is not None else 0


@lru_cache(1024)
def _uncounted(limit: Limit) -> Limit:
    """The limit by which a hit on a blocked counter is tried: it is not charged, and makes no later one wait longer."""
    return replace(limit, count_refused=False)


def _in_force(block: Block | None, now: int) -> Block | None:
    """The block unless it is forgotten. One that lasts too long was started by a clock that was ahead: it is cut."""
    if block is None or block[0] <= now:
        return None
    forgotten, end, length = block
    if end - now > 2 * length:
        return now + length + forgotten - end, now + length, length
    return block


def _denial(retry: int, over: int, reset: int, rest: int) -> Blocked:
    return Blocked(False, 0, over, max(rest, reset), retry if retry == NEVER else max(rest, retry), rest)
