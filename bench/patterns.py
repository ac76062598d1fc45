"""How long patterns take for the values that are worst for them, and so keep other calls waiting.

`python bench/patterns.py` prints for each set of rules the time that the plan of a new request takes, the shortest of
five, with the worst of some values of each length.
"""

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ratelimit_service.limiter.limiter import Limiter
from ratelimit_service.model import Descriptor, Request
from ratelimit_service.stores.memory import MemoryStore
from tests.books import book

_TIMES = 5
_RULES = {
    "select…{0,400}…from": ["regex: '(?i).*(select|insert|update|delete|union).{0,400}(from|into|where).*'"],
    "/.*/.{1,200}/edit": ["regex: '/.*/.{1,200}/edit'"],
    "[ab]*a[ab]{900}c": ["regex: '[ab]*a[ab]{900}c'"],
    ".*(a.{0,300}b){2}.*x": ["regex: '.*(a.{0,300}b){2}.*x'"],
    "100 × .*evil1[0-9]+x.*": [f"regex: '.*evil{at}[0-9]+x.*'" for at in range(100)],
    "32 × *bot1x*": [f"value: '*bot{at}x*'" for at in range(32)],
    "2,000 × *bot1x*": [f"value: '*bot{at}x*'" for at in range(2000)],
}


def _values(length: int) -> Iterator[tuple[str, str]]:
    """Values of this length, each with a name."""
    chance = random.Random(0)
    yield "select", "select" * length
    yield "a/", "".join(chance.choices("a/", k=length))
    yield "ab", "".join(chance.choices("ab", k=length))
    yield "bot1", "bot1" * length
    yield "bots", "".join(f"ot{at}x" for at in range(1000, 1000 + length))
    yield "evil", "".join(f"evil{at % 100}7" for at in range(length))


def main() -> None:
    """Print a line for each set of rules and length of value, with the worst of the values."""
    for name, patterns in _RULES.items():
        level = "".join(f"- {{key: k, {pattern}, rate_limit: {{deny: true}}}}\n" for pattern in patterns)
        rules = book(f"domain: d\ndescriptors:\n{level}")
        limiter = Limiter(MemoryStore(100))
        limiter.book = rules
        for length in (100, 1000, 2048, 8192, 30_000, 60_000):
            worst = max((_plan_ms(limiter, f"/{value}"[:length]), text) for text, value in _values(length))
            print(f"{name:24} {length:6,} bytes  {worst[0]:7.2f} ms  {worst[1]}")


def _plan_ms(limiter: Limiter, value: str) -> float:
    times = []
    for _ in range(_TIMES):
        request = Request("d", [Descriptor((("k", value),))])
        began = perf_counter()
        limiter.plan(request)
        times.append(perf_counter() - began)
    return min(times) * 1000


if __name__ == "__main__":
    main()
