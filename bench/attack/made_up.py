"""Names that clients make up: what is kept of them, shown, reported and measured, and who is not kept for it."""

import json

from attack.attacker import Attacker
from attack.catalogue import Need, attack
from attack.frames import descriptor, message, request, user
from attack.http1 import CLOSE, again, fetch, get, json_request
from attack.messages import OWN_LIMIT, fresh
from attack.wire import Wire

MUCH = 2**32 - 1
FEW = 5
"""What the rule `few` allows."""


async def _ask(attacker: Attacker, wire: Wire, key: str, times: int) -> int:
    """The status of the last of so many equal calls and one by HTTP, 429 if it is refused."""
    for _ in range(times):
        await wire.call(attacker.block(), message(request(descriptor((key.encode(), b"honest")))))
    status, _ = await fetch(attacker, json_request(key, "honest", CLOSE))
    return status


@attack(Need.RATE_LIMITS, Need.WORKERS, Need.OURS)
async def workers_reports(attacker: Attacker) -> None:
    """Six connections: new domains, keys without a rule and limits of their own, of 900 characters of four bytes."""

    def make() -> bytes:
        name = b"%x" % attacker.random.getrandbits(64) + "😀".encode() * 900
        match attacker.random.randrange(3):
            case 0:
                return request(user(b"x"), domain=name)
            case 1:
                return request(descriptor((name, b"x")))
            case _:
                return request(descriptor((b"own", name), limit=OWN_LIMIT))

    await attacker.each(6, lambda wire: fresh(attacker, wire, make))


@attack(Need.RATE_LIMITS, Need.HTTP, Need.OURS, seconds=4, settings={"METRICS_MAX_VALUES": "6000"})
async def metrics_by_value(attacker: Attacker) -> None:
    """6,000 values of 880 characters in metrics, which six clients read as fast as they are answered."""

    async def fill(wire: Wire) -> None:
        for first in range(0, 6000, 50):
            values = (b"%d" % at + b"x" * 875 for at in range(first, first + 50))
            body = request(*(descriptor((b"detailed", value)) for value in values))
            await wire.call(attacker.block(), message(body))

    await fill(await attacker.open())
    await attacker.each(6, lambda wire: again(wire, get(b"/metrics")), attacker.open_http)


@attack(Need.RATE_LIMITS, Need.HTTP, Need.DEBUG, Need.OURS)
async def hot_poisoned(attacker: Attacker) -> None:
    """30 requests that cost four billion, on 600 names: who is refused most often must be listed all the same."""
    wire = await attacker.open()
    await _ask(attacker, wire, "few", 200)
    for number in range(30):
        body = request(*(user(b"%d %d" % (number, at)) for at in range(20)), cost=MUCH)
        await wire.call(attacker.block(), message(body))
    _, text = await fetch(attacker, get(b"/status/hot", CLOSE), debug=True)
    found = json.loads(text)
    for kind in ("most_hits", "most_refused"):
        if not any(one["entries"] == [["few", "honest"]] for one in found[kind]):
            attacker.harm(f"it is not in {kind}")


@attack(Need.RATE_LIMITS, Need.HTTP, Need.DEBUG, Need.OURS)
async def unmatched_poisoned(attacker: Attacker) -> None:
    """1,100 made-up keys: a key that is asked about 20 times and matches no rule must be listed all the same."""
    wire = await attacker.open()
    for first in range(0, 1100, 100):
        body = request(*(descriptor((b"made up %d" % at, b"x")) for at in range(first, first + 100)))
        await wire.call(attacker.block(), message(body))
    await _ask(attacker, wire, "forgotten", 20)
    _, text = await fetch(attacker, get(b"/status", CLOSE), debug=True)
    if not any(one["path"] == ["shop", "forgotten"] for one in json.loads(text)["unmatched"]):
        attacker.harm("it is not listed")


@attack(Need.RATE_LIMITS, Need.HTTP, Need.OURS, seconds=8, settings={"MEMORY_MAX_COUNTERS": "20000"})
async def evict_own_counter(attacker: Attacker) -> None:
    """A client that is refused fills the memory of counters three times over: it must be refused all the same."""
    wire = await attacker.open()
    await _ask(attacker, wire, "few", FEW)
    for first in range(0, 60_000, 50):
        body = request(*(descriptor((b"few", b"%d" % at)) for at in range(first, first + 50)))
        await wire.call(attacker.block(), message(body))
    if await _ask(attacker, wire, "few", 0) != 429:
        attacker.harm("it is allowed again")
