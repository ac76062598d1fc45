"""Token bucket: tokens are added at a constant rate; a request takes as many as it costs, or is denied.

The bucket gets L tokens per window W and holds at most B (`burst`, by default L). After a pause B tokens can be taken
at once; in the long run L per window.

The only value stored is the moment at which the bucket will be full (GCRA). The time until then tells how many tokens
are missing: each token taken moves the moment W/L into the future. W/L need not be a whole number of microseconds, so
time is counted in L-ths of a microsecond: a token is W of them, a microsecond L. Nothing is ever rounded.

State: the moment, rounded up to a microsecond, and how many L-ths of the last microsecond belong to it; 0 means all of
them. Hot path.
"""

from struct import Struct
from typing import Final

from ratelimit_service.algorithms.lease import length_of_term, next_term
from ratelimit_service.model import MAX_WINDOW, NEVER, Decision, Limit

name: Final = "token_bucket"
leases: Final = True

STATE: Final = Struct("qq")


def problem(limit: Limit) -> str | None:
    """The reason why this limit is not supported, or None: its moments would exceed Lua's integers."""
    if limit.most * limit.window > limit.requests * MAX_WINDOW and limit.requests:
        return f"a bucket of {limit.most} that gets {limit.requests} in a window would take over 100 years to fill"
    return None


def room_after(limit: Limit, reset_after: int) -> int:
    """Microseconds until the next token, in a bucket that is full after `reset_after`; rounded up."""
    if not limit.requests or reset_after <= 0:
        return reset_after
    return reset_after - (missing_tokens(limit, reset_after) - 1) * limit.window // limit.requests


def missing_tokens(limit: Limit, reset_after: int) -> int:
    """The tokens that are missing from a bucket that is full after `reset_after`, rounded up; debts are among them."""
    if not limit.requests or reset_after <= 0:
        return 0
    # The reset is rounded up to a microsecond, so up to rate - 1 of its L-ths are none of the tokens' time.
    return -(-(reset_after * limit.requests - limit.requests + 1) // limit.window)


def hit(state: bytes | None, limit: Limit, cost: int, now: int) -> tuple[bytes | None, Decision]:
    """Take `cost` tokens."""
    rate = limit.requests
    window = limit.window
    reset = before = 0
    if state is not None:
        moment, part = STATE.unpack(state)
        if moment > now:
            reset = moment - now
            before = reset * rate
            if 0 < part < rate:
                before += part - rate
        else:
            state = None
    if not rate:  # a bucket that gets no tokens
        return state, Decision(cost <= 0, 0, cost if cost > 0 else 0, reset, NEVER if cost > 0 else 0)

    burst = limit.burst or rate
    most = burst + limit.exceed
    full = most * window
    deepest = 2 * full + rate * window
    if before > deepest:
        # No charge leads to such a debt, even with a clock a window ahead: the clock or the limit has changed.
        before = deepest
        reset = -(-before // rate)
        state = STATE.pack(now + reset, before % rate)
    price = cost * window
    after = before + price
    over = 0
    if cost > 0 and after > burst * window:
        room = burst * window - before
        over = cost - room // window if room > 0 else cost

    if cost > 0 and after <= full:
        reset = -(-after // rate)
        return STATE.pack(now + reset, after % rate), Decision(True, (full - after) // window, over, reset, 0)

    allowed = after <= full
    missing = before
    if cost < 0:
        allowed = True
        missing = after if after > 0 else 0
    elif not allowed and limit.count_refused and cost <= most:
        # Bounded, so that a client that pauses is allowed again after at most the time that fills the bucket.
        missing = max(before, min(after, 2 * full))
    if missing != before:
        reset = -(-missing // rate)
        state = STATE.pack(now + reset, missing % rate) if missing else None

    left = (full - missing) // window
    retry = 0
    if not allowed:
        retry = NEVER if cost > most else -((full - missing - price) // rate)
    return state, Decision(allowed, left if left > 0 else 0, over, reset, retry)


def owe(state: bytes | None, limit: Limit, cost: int, now: int) -> bytes | None:
    """As algorithm.py says: beyond an empty bucket a window's tokens, or as many as it holds."""
    return owed(state, limit, cost, _most_owed(limit), now)


def owed(state: bytes | None, limit: Limit, cost: int, most: int, now: int) -> bytes | None:
    """The state with a cost charged whatever there is room for, until so many L-ths are missing at most."""
    if not limit.requests:
        return state
    before = missing_at(state, limit.requests, now)
    return state_of(max(before, min(before + cost * limit.window, most)), limit.requests, now)


def owes_most(state: bytes | None, limit: Limit, now: int) -> bool:
    """Whether the debt is the largest one: it may have been cut."""
    return state is not None and missing_at(state, limit.requests, now) >= _most_owed(limit)


def _most_owed(limit: Limit) -> int:
    """What is missing with the largest debt, in L-ths."""
    full = limit.most * limit.window
    return full + max(full, limit.requests * limit.window)


def missing_until(moment: int, part: int, rate: int, now: int) -> int:
    """L-ths of a microsecond until the moment of a state, which is to come. `hit` has it in its own lines: 60 ns."""
    return (moment - now) * rate + (part - rate if 0 < part < rate else 0)


def missing_at(state: bytes | None, rate: int, now: int) -> int:
    """L-ths of a microsecond until a bucket is full; 0 for one that is."""
    if state is None:
        return 0
    moment, part = STATE.unpack(state)
    return missing_until(moment, part, rate, now) if moment > now else 0


def state_of(missing: int, rate: int, now: int) -> bytes | None:
    """The state of a bucket in which so much is missing, in L-ths; None of a full one."""
    return STATE.pack(now - -missing // rate, missing % rate) if missing > 0 else None


def term(limit: Limit) -> int:
    """As Leasing says; a bucket takes the place of its window as long as it takes to fill.

    Of that a quarter at most: what it regains until the term's end is not granted, and it shall grant most of itself.
    """
    if limit.burst and limit.longest_term:
        return limit.longest_term  # the same whatever part of the burst and of the rate home may grant
    fill = limit.capacity * limit.window // limit.requests
    return length_of_term(fill, fill, min(limit.longest_term, fill // 4))


def staggered(_limit: Limit) -> bool:
    """As Leasing says; terms that end at other moments for others would make room twice for what is given back."""
    return False


def term_end(_state: bytes | None, limit: Limit, now: int, _phase: int) -> int:
    """As Leasing says."""
    return next_term(term(limit), now)


def leased_from(state: bytes | None, term_end: int) -> bytes | None:
    """As Leasing says: as if at the term's end, or the bucket would regain tokens while the lease is held."""
    return state if state is not None and STATE.unpack(state)[0] > term_end else STATE.pack(term_end, 0)


def give(state: bytes | None, limit: Limit, units: int, term_end: int, now: int) -> bytes | None:
    """As Leasing says, without the tokens that time has given back already.

    Until the term ends the state is at its end or later, and all of them are missing. Later it may have been full, as
    far as the end of the present term, from which others may have taken a lease.
    """
    missing = missing_at(state, limit.requests, now)
    if not missing:
        return state
    back = units * limit.window - max(0, next_term(term(limit), now) - term_end) * limit.requests
    return state_of(missing - back, limit.requests, now) if back > 0 else state
