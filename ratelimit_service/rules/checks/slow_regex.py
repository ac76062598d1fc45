"""Warnings about regular expressions that take long for the longest values that they are tried on.

A match takes a time linear in the value, but of a few patterns a thousand times as much as of others. Which ones, is
measured, on values made of what the pattern itself looks for: of texts that match, and of their parts in any order.
"""

import re
from collections.abc import Iterator
from itertools import combinations
from random import Random
from time import thread_time_ns
from typing import Final

from ratelimit_service.rules.book import Node, RuleBook, all_nodes
from ratelimit_service.rules.checks.regex_examples import examples
from ratelimit_service.rules.matching import Fit
from ratelimit_service.rules.pattern_work import DEFAULT_BOUNDS, longest_value, unbounded
from ratelimit_service.rules.problems import LintWarning, quoted, warning_at

SLOW_NS: Final = 1_000_000
"""A request may have several such values, and keeps no other from its answer for more than 10 ms."""

_TRIES: Final = 2
"""The tries of each text: the first may have waited for memory."""

_WORDS: Final = re.compile(r"[^\W\d_]{2,}")


def slow_regexes(book: RuleBook) -> Iterator[LintWarning]:
    """A warning for each regex that is slow on the worst of some values."""
    for root in book.domains.values():
        for node in all_nodes(root):
            if node.fit is not None and node.fit.kind == "regex":
                yield from _slow(node, node.fit)


def _slow(node: Node, fit: Fit) -> Iterator[LintWarning]:
    length = longest_value(fit.weight, DEFAULT_BOUNDS)
    longest = next((time for text in _worst(fit.pattern, length) if (time := _time(fit, text)) > SLOW_NS), 0)
    if longest:
        message = (
            f"regex {quoted(fit.pattern)} takes {longest / 1e6:.1f} ms for some value of {length:,} bytes, in which no "
            "other request is answered; a counted repetition such as {1,200} makes it slow: * or + instead does not"
        )
        yield warning_at(node.place, "slow-regex", message)


def _worst(pattern: str, length: int) -> Iterator[str]:
    """Values of this length on which the pattern has much to remember: each a mix of two of its words or letters."""
    random = Random(0)  # noqa: S311 - the same values each time
    found = next((text for text in examples(pattern) if text), "")
    starts = sorted({found[: len(found) * quarters // 4] for quarters in range(4)})
    parts = list(dict.fromkeys([*_WORDS.findall(pattern), *filter(_is_literal, pattern)]))[:_MAX_PARTS]
    for pair in combinations([*parts, _OTHER], 2):
        mix = "".join(random.choices(pair, k=length))
        for start in starts:
            yield (start + mix).encode()[:length].decode(errors="ignore")


_MAX_PARTS: Final = 12
_OTHER: Final = "~"


def _is_literal(character: str) -> bool:
    return character.isalnum() or character in "/-_ @:;,=&%"


def _time(fit: Fit, text: str) -> int:
    """The nanoseconds of the processor that it takes."""
    times = []
    for _ in range(_TRIES):
        work = unbounded()
        work.bytes_of(text)
        began = thread_time_ns()
        fit.search(text, work)
        times.append(thread_time_ns() - began)
    return min(times)
