"""What a call costs between the transport and back: `python bench/hot_path.py [--calls 20000] [--keys 1000]`.

Nanoseconds of each step and of whole calls, from bytes to bytes, with the memory store: the least of several rounds of
processor time, so that other work on the machine counts little. A call whose bytes came before is charged, judged and
encoded; only a new one is decoded and planned.
"""

import argparse
import gc
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import cycle, islice
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ratelimit_service.algorithms import NAMES
from ratelimit_service.api.generated.envoy.extensions.common.ratelimit.v3.ratelimit_pb2 import RateLimitDescriptor
from ratelimit_service.api.generated.envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest
from ratelimit_service.api.ratelimit import ShouldRateLimit
from ratelimit_service.api.request import decode
from ratelimit_service.api.response import ResponseEncoder
from ratelimit_service.limiter.limiter import Limiter
from ratelimit_service.rules.book import RuleBook
from ratelimit_service.stores.memory import MemoryStore
from tests.books import book

ROUNDS = 7


def rules(algorithm: str = "fixed_window", others: int = 0, *, top: str = "", requests: int = 1000) -> RuleBook:
    """Limits for each value of key0 … key3, also with further entries; and as many rules in other domains.

    `top` stands at the top of the file.
    """
    limit = f"rate_limit: {{unit: minute, requests_per_unit: {requests}, algorithm: {algorithm}}}"
    keys = "".join(
        f"- key: key{number}\n  {limit}\n  descriptors: [{{key: path, descriptors: [{{key: method, {limit}}}]}}]\n"
        for number in range(4)
    )
    more = (
        f"domain: other{domain}\ndescriptors:\n"
        + "".join(f"- {{key: user, value: u{number}, {limit}}}\n" for number in range(100))
        for domain in range(others // 100)
    )
    return book(f"domain: bench\n{top}\ndescriptors:\n{keys}", *more)


def requests(keys: int, descriptors: int = 1, entries: int = 1) -> list[bytes]:
    """A request for each of `keys` values; descriptors have 1 or 3 entries."""
    further = [RateLimitDescriptor.Entry(key=key, value=f"{key}s") for key in ("path", "method")]
    return [
        RateLimitRequest(
            domain="bench",
            descriptors=[
                RateLimitDescriptor(
                    entries=[
                        RateLimitDescriptor.Entry(key=f"key{index}", value=f"value{number}"),
                        *further[: entries - 1],
                    ]
                )
                for index in range(descriptors)
            ],
        ).SerializeToString()
        for number in range(keys)
    ]


def of_addresses(values: Iterable[str]) -> list[bytes]:
    """A request for each of these addresses."""
    return [
        RateLimitRequest(
            domain="bench",
            descriptors=[RateLimitDescriptor(entries=[RateLimitDescriptor.Entry(key="ip", value=value)])],
        ).SerializeToString()
        for value in values
    ]


def lists() -> RuleBook:
    """A list of 100,000 addresses, 10,000 networks, and a limit for each other /64."""
    limit = "rate_limit: {unit: minute, requests_per_unit: 1000}"
    addresses = ", ".join(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}" for number in range(100_000))
    networks = ", ".join(f"2001:db8:{number:x}::/48" for number in range(10_000))
    return book(
        "domain: bench\ndescriptors:\n"
        f"- {{key: ip, values: [{addresses}], {limit}}}\n"
        f"- {{key: ip, cidr: [{networks}], {limit}}}\n"
        f"- {{key: ip, prefix: {{ipv6: 64}}, {limit}}}\n"
    )


def nanoseconds(step: Callable[[Any], object], given: Iterable[Any], calls: int, rounds: int = ROUNDS) -> float:
    """Of one step, on each in turn."""
    found = list(islice(cycle(given), calls))
    Random(1).shuffle(found)
    best = float("inf")
    for _ in range(rounds):
        began = time.thread_time_ns()
        for each in found:
            step(each)
        best = min(best, (time.thread_time_ns() - began) / calls)
    return best


def method(rulebook: RuleBook) -> tuple[ShouldRateLimit, Limiter]:
    """Bytes in, bytes out."""
    limiter = Limiter(MemoryStore(2_000_000))
    limiter.book = rulebook
    gc.freeze()  # as the service does when it has loaded rules
    return ShouldRateLimit(limiter, ResponseEncoder()), limiter


def asking(tested: ShouldRateLimit) -> Callable[[bytes], object]:
    """A call whose response is dropped."""
    return lambda body: tested.call(body, ignore)


def call_nanoseconds(rulebook: RuleBook, bodies: list[bytes], calls: int) -> float:
    """Of a whole call."""
    tested, _ = method(rulebook)
    return nanoseconds(asking(tested), bodies, calls)


def algorithms_nanoseconds(bodies: list[bytes], calls: int) -> dict[str, float]:
    """Of a whole call by each algorithm; in turns, so that a machine that gets slower does so for all."""
    tested = {name: asking(method(rules(name))[0]) for name in NAMES}
    best = dict.fromkeys(NAMES, float("inf"))
    for _ in range(ROUNDS):
        for name, ask in tested.items():
            best[name] = min(best[name], nanoseconds(ask, bodies, calls, 1))
    return best


HEADERS = {
    "no headers": "",
    "`ratelimit`": "headers: [ratelimit]",
    "`x_ratelimit`": "headers: [x_ratelimit]",
    "`ietf`": "headers: [ietf]",
    "all headers, `Retry-After`, body, `rule_metadata`": "headers: [ratelimit, x_ratelimit, ietf]\n"
    "retry_after: true\nretry_after_jitter: 10%\nproblem_body: true\nrule_metadata: true",
}


def headers_nanoseconds(bodies: list[bytes], calls: int, requests: int) -> dict[str, float]:
    """Of a whole call with each kind of response headers, in turns; with 1 request a minute, of refusals."""
    tested = {name: asking(method(rules(top=top, requests=requests))[0]) for name, top in HEADERS.items()}
    best = dict.fromkeys(HEADERS, float("inf"))
    for _ in range(ROUNDS):
        for name, ask in tested.items():
            best[name] = min(best[name], nanoseconds(ask, bodies, calls, 1))
    return best


def new_nanoseconds(rulebook: RuleBook, calls: int, bodies: Sequence[bytes] = ()) -> float:
    """Of a call whose bytes were not seen before; `bodies` are for all rounds."""
    tested, _ = method(rulebook)
    bodies = bodies or requests(calls * ROUNDS)
    rounds = (bodies[first : first + calls] for first in range(0, len(bodies), calls))
    best = float("inf")
    for some in rounds:
        began = time.thread_time_ns()
        for body in some:
            tested.call(body, ignore)
        best = min(best, (time.thread_time_ns() - began) / calls)
    return best


def ignore(_: object) -> None:
    """Drop the response."""


def show(name: str, cost: float) -> None:
    """A line of the table."""
    print(f"| {name} | {cost:,.0f} |", flush=True)


def main() -> None:
    """Prints both tables."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--calls", type=int, default=20_000)
    options.add_argument("--keys", type=int, default=1000)
    chosen = options.parse_args()
    calls, keys = chosen.calls, chosen.keys
    rulebook, bodies = rules(), requests(keys)

    print("| step | ns |\n| --- | --- |")
    _, limiter = method(rulebook)
    asked = [decode(body) for body in bodies]
    plans = [limiter.plan(request) for request in asked]
    assert limiter.store.charge is not None
    show("decode", nanoseconds(decode, bodies, calls))
    show("plan", nanoseconds(limiter.plan, asked, calls))
    charge = nanoseconds(limiter.store.charge, [plan.charged for plan in plans], calls)
    show("charge", charge)
    answer = ResponseEncoder()
    decide = nanoseconds(lambda plan: limiter.decide_now(plan, answer.encode, b""), plans, calls)
    show("judge, count and encode", decide - charge)

    print("\n| call | ns |\n| --- | --- |")
    show("one descriptor", call_nanoseconds(rulebook, bodies, calls))
    show("four descriptors of three entries", call_nanoseconds(rulebook, requests(keys, 4, 3), calls))
    show("never asked before", new_nanoseconds(rulebook, calls))
    show("10,000 rules more", call_nanoseconds(rules(others=10_000), bodies, calls))
    listed = lists()
    everyone = range(calls * ROUNDS)
    rotating = of_addresses(f"2a00::{number >> 16:x}:{number & 0xFFFF:x}" for number in everyone)
    show("a new address of one /64, a list of 100,000", new_nanoseconds(listed, calls, rotating))
    networked = of_addresses(f"2001:db8:{number % 10_000:x}::{number // 10_000 + 1:x}" for number in everyone)
    show("a new address in 10,000 networks", new_nanoseconds(listed, calls, networked))
    for name, cost in algorithms_nanoseconds(bodies, calls).items():
        show(f"`{name}`", cost)
    for name, cost in headers_nanoseconds(bodies, calls, 100_000_000).items():
        show(f"allowed, {name}", cost)
    for name, cost in headers_nanoseconds(bodies, calls, 1).items():
        show(f"refused, {name}", cost)


if __name__ == "__main__":
    main()
