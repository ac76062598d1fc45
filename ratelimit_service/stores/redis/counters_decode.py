"""Whose counter is this key? What names in Redis tell of the domain, the descriptor and the rule. Pure.

Our own names tell all of it, without doubt, unless they are so long that a digest stands for the descriptor. Those of
`KEY_FORMAT=envoyproxy` are not escaped and have nothing that marks them: `a_b_c_d_1700000000` may be domain `a` or
domain `a_b`. There the rulebook decides: such a name belongs to the rule of any domain that fits it with the most
literal text, and a name that fits none is left alone, for it may be anybody's.

What a counter holds, out of the bytes that the algorithms' twins have left in Redis. Pure: it charges nothing.

The bytes are read as `batch.lua` and `sliding_log.lua` write them, and the algorithm itself says what they mean, by a
hit of cost 0 whose new state nobody keeps.
"""

import re
from array import array
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from struct import Struct, error
from typing import Final, NamedTuple
from urllib.parse import unquote

from ratelimit_service.algorithms import NAMES, State, expiry, open_algorithm, sliding_window, token_bucket
from ratelimit_service.model import Limit, Unit
from ratelimit_service.rules.book import Node, RuleBook
from ratelimit_service.rules.rule import Rule, counter_key
from ratelimit_service.stores.redis.keys import VERSION
from ratelimit_service.system.clock import SECOND


class Counter(NamedTuple):
    """A key, as far as its name tells."""

    key: bytes
    domain: str
    descriptor: str
    """Its entries, `user=ada path=/cart`; upstream's names without the domain, `user_ada`; empty for a digest."""
    rule: Rule | None
    """Which of the present rules charges it."""
    algorithm: str
    """Empty when this release does not know it."""
    limit: Limit
    """The rule's. Without a rule only what the name tells: its window, never how many."""
    end: int = 0
    """Of upstream's counters: the end of the window."""

    @property
    def may_be_sent(self) -> bool:
        """No present rule charges it, and a limit that comes with requests would have this name."""
        return self.rule is None and self.algorithm == "fixed_window" and not self.limit.first_request


class OwnNames:
    """Our names of one domain's counters; `is_charged` says whether a rule counts under such a name on this Redis."""

    def __init__(
        self,
        book: RuleBook,
        domain: str,
        prefix: str,
        read: Callable[[str], str | None],
        is_charged: Callable[[Rule], bool],
    ) -> None:
        self._book = book
        self._domain = domain
        # As every rule of the domain would begin its keys.
        self._start = Rule(domain, (), None, open_algorithm("fixed_window")).start
        self._prefix = prefix
        self._read = read
        self._is_charged = is_charged

    def pattern(self, ending: str = "", *, tagged: bool = False) -> str:
        """What they fit, for SCAN. With a hash tag before the domain, those of other domains may fit it too."""
        tag = "*" if tagged else ""
        return f"{escaped(self._prefix + VERSION)}{tag}{escaped(self._start)}|*{escaped(ending)}"

    def counter(self, key: bytes, _now: int) -> Counter | None:
        """The counter, or None when it is not of this domain."""
        try:
            name = self._read(key.decode())
        except UnicodeDecodeError:
            return None
        if name is None or not name.startswith(self._start + "|"):
            return None
        *parts, ending = name[len(self._start) + 1 :].split("|")
        algorithm, limit = _read_ending(ending)
        parsed = [_read_part(part) for part in parts]
        entries = [part for part in parsed if part is not None]
        if len(entries) < len(parsed):
            return Counter(key, self._domain, "", None, algorithm, limit)
        words = " ".join(f"{name}={values[0]}" for name, values in entries)
        rule = self._rule(entries, name)
        if rule is None or rule.limit is None:
            return Counter(key, self._domain, words, None, algorithm, limit)
        return Counter(key, self._domain, words, rule, algorithm, rule.limit)

    def _rule(self, entries: "list[_Part]", name: str) -> Rule | None:
        """The rule that would count these entries under this name."""
        for values in product(*(values for _, values in entries)):
            tried = tuple((key, value) for (key, _), value in zip(entries, values, strict=True))
            first = self._book.match(self._domain, tried)
            for rule in () if first is None else (first, *first.beside):
                if rule.limit is not None and counter_key(rule, tried) == name and self._is_charged(rule):
                    return rule
        return None


_Part = tuple[str, tuple[str, ...]]
"""An entry's key, and its value; of a shared level values that are likely to fit the pattern."""


def _read_part(part: str) -> _Part | None:
    """One entry of a name; None for the digest of all."""
    name, equals, value = part.partition("=")
    if equals:
        return unquote(name), (unquote(value),)
    name, tilde, level = map(unquote, part.partition("~"))
    if not tilde:
        return None
    if level.startswith(f"{name}_"):  # all but those whose key has a * too
        return name, (level[len(name) + 1 :],)
    return name, (level.partition("_")[2], "")


def _read_ending(ending: str) -> tuple[str, Limit]:
    """How a counter is charged: by which algorithm, in what window."""
    algorithm, window, option = [*ending.split("/"), "", ""][:3]
    known = algorithm in NAMES and _NUMBER.fullmatch(window) is not None
    limit = Limit(
        0,
        Unit.SECOND,
        int(window) if known else SECOND,
        parts=int(option) if _NUMBER.fullmatch(option) else 10,
        first_request=option == "first_request",
    )
    return algorithm if known else "", limit


_NUMBER: Final = re.compile("[1-9][0-9]{0,17}")


class _Shape(NamedTuple):
    """What upstream's names of a rule's counters look like, without prefix and window."""

    rule: Rule
    fits: re.Pattern[str]
    literal: int


class UpstreamNames:
    """Names as envoyproxy/ratelimit gives them, of one domain's counters."""

    def __init__(self, book: RuleBook, domain: str, prefix: str, is_charged: Callable[[Rule], bool]) -> None:
        self._domain = domain
        self._prefix = prefix
        self._shapes: dict[int, dict[str, list[_Shape]]] = {}
        """By the literal text that they begin with, as `Wildcards` has patterns."""
        for name, root in book.domains.items():
            if name == domain or _begins(name, domain) or _begins(domain, name):
                for rule, pieces in _walk(root, ()):
                    if is_charged(rule):
                        self._add(rule, pieces)

    def pattern(self) -> str:
        """What they fit, for SCAN."""
        return f"{escaped(self._prefix + self._domain)}_*"

    def counter(self, key: bytes, now: int) -> Counter | None:
        """The counter, or None when it is not one of this domain's that is charged now."""
        try:
            name = key.decode()
        except UnicodeDecodeError:
            return None
        stem, _, second = name[len(self._prefix) :].rpartition("_")
        if not name.startswith(self._prefix) or not second.isdecimal() or len(second) > _LONGEST_SECOND:
            return None
        start = int(second) * SECOND
        shape = max(self._fitting(stem, start, now), key=lambda shape: shape.literal, default=None)
        if shape is None or shape.rule.domain != self._domain:
            return None
        limit = shape.rule.limit
        assert limit is not None, "an unlimited rule has no counter"
        descriptor = stem[len(self._domain) + 1 :]
        return Counter(key, self._domain, descriptor, shape.rule, "fixed_window", limit, end=start + limit.window)

    def _add(self, rule: Rule, pieces: "tuple[_Piece, ...]") -> None:
        joined = [rule.domain]  # literal texts with anything between them
        for piece in pieces:
            joined[-1] += f"_{piece[0]}"
            joined += piece[1:]
        fits = re.compile(".*".join(map(re.escape, joined)), re.DOTALL)
        start = joined[0]
        shape = _Shape(rule, fits, sum(map(len, joined)))
        self._shapes.setdefault(len(start), {}).setdefault(start, []).append(shape)

    def _fitting(self, stem: str, start: int, now: int) -> Iterator[_Shape]:
        for length, shapes in self._shapes.items():
            for shape in shapes.get(stem[:length], ()):
                limit = shape.rule.limit
                assert limit is not None, "an unlimited rule has no counter"
                window = limit.window
                # A service's clock may be ahead of Redis's, but not by much.
                if start % window == 0 and now - window < start <= now + window and shape.fits.fullmatch(stem):
                    yield shape


_LONGEST_SECOND: Final = 12
_Piece = tuple[str, ...]
"""The literal texts of one level, with anything between them."""


def _walk(node: Node, above: tuple[_Piece, ...]) -> Iterator[tuple[Rule, tuple[_Piece, ...]]]:
    """All rules below, each with the levels that lead to it."""
    for name, child in node.children.items():
        rule = child.rule
        shared = _shared_at(child, len(above))
        if shared is not None:
            key = name if name == shared else name[: -len(shared) - 1]
            pieces = (*key.split("*")[:-1], f"{key.split('*')[-1]}_{shared}")
        elif child.bare and "*" not in name:
            pieces = (f"{name}_", "")
        else:
            pieces = tuple(name.split("*"))
        levels = (*above, pieces)
        if rule is not None:
            for each in (rule, *rule.beside):
                yield each, levels
        yield from _walk(child, levels)


def _shared_at(node: Node, level: int) -> str | None:
    """The pattern for which all values count, if the level that leads to the node shares its threshold."""
    if node.rule is not None:
        return node.rule.levels[level].shared
    patterns = (_shared_at(child, level) for child in node.children.values())
    return next((pattern for pattern in patterns if pattern is not None), None)


def _begins(longer: str, shorter: str) -> bool:
    return longer.startswith(f"{shorter}_")


_SPECIAL: Final = re.compile(r"([*?\[\]\\])")


def escaped(text: str) -> str:
    """The text as a pattern of Redis that only it fits."""
    return _SPECIAL.sub(r"\\\1", text)


_BUCKETS: Final = frozenset({"token_bucket", "leaky_bucket"})
_MANY: Final = 2**52
"""A limit of so many leaves room for any count, and what is missing from it is the count."""

_HEADER: Final = Struct(">7sIIIHH")
_NUMBERS: Final = 65_536
_INTEGERS: Final = {
    0xCC: Struct(">B"),
    0xCD: Struct(">H"),
    0xCE: Struct(">I"),
    0xCF: Struct(">Q"),
}
"""How MessagePack writes integers that are not negative and need more than a byte."""

_PACKED: Final = {
    "sliding_window": sliding_window.STATE,
    "token_bucket": token_bucket.STATE,
    "leaky_bucket": token_bucket.STATE,
}
"""States that are bytes in Python."""


class Content(NamedTuple):
    """What is in a counter; times are microseconds from the moment at which it was read."""

    used: int | None
    """None of a bucket whose limit is not known, and of what cannot be read."""
    remaining: int | None
    """What a call would be told; None without a rule."""
    reset_after: int
    """Until it is as if untouched, or its window ends."""
    retry_after: int | None
    """Until a hit of 1 is allowed: 0 when it is now, `NEVER` when it cannot be; None without a rule."""
    expires_after: int | None
    """Until Redis forgets the key; None when it never does, or has no such key."""

    @property
    def fullness(self) -> float:
        """Which part of its limit is used; below 0 when that cannot be said."""
        if self.used is None or self.remaining is None:
            return -1.0
        total = self.used + self.remaining
        return self.used / total if total else 1.0


def content(counter: Counter, stored: bytes | None, milliseconds: int, now: int) -> Content:
    """What the counter holds at that moment; without bytes it is untouched."""
    expires = milliseconds * 1000 if milliseconds >= 0 else None
    state, readable = _state(counter, stored)
    if not readable or not counter.algorithm:
        return Content(None, None, 0, None, expires)
    limit = counter.limit
    hit = open_algorithm(counter.algorithm).hit
    bucket = counter.algorithm in _BUCKETS
    used = None
    if not bucket:
        endless = replace(limit, requests=_MANY, exceed=0)
        used = _MANY - hit(state, endless, 0, now)[1].remaining
    if counter.rule is None:
        reset = expiry(state) - now if state is not None else 0
        return Content(used, None, max(0, reset), None, expires)
    look = hit(state, limit, 0, now)[1]
    if bucket:
        used = (limit.burst or limit.requests) + limit.exceed - look.remaining
    retry = hit(state, limit, 1, now)[1].retry_after
    return Content(used, max(0, look.remaining - limit.exceed), look.reset_after, retry, expires)


def _state(counter: Counter, stored: bytes | None) -> tuple[State | None, bool]:
    """The state, and whether it could be read."""
    if stored is None:
        return None, True
    try:
        if counter.end:
            return (counter.end, int(stored)), True
        if counter.algorithm == "sliding_log":
            return _log(stored, counter.limit.window), True
        state = _integers(stored)
        if counter.algorithm in _PACKED:
            return _PACKED[counter.algorithm].pack(*state), True
    except (KeyError, ValueError, error):
        return None, False
    return state, len(state) > 1


def _integers(packed: bytes) -> State:
    """MessagePack, of which nothing but integers is used."""
    numbers: list[int] = []
    at = 0
    while at < len(packed):
        head = packed[at]
        at += 1
        if head < 0x80:
            numbers.append(head)
        else:
            form = _INTEGERS[head]
            numbers += form.unpack_from(packed, at)
            at += form.size
    return tuple(numbers)


def _log(stored: bytes, window: int) -> State:
    """The ring of `sliding_log.lua` as the state of `sliding_log.py`, which has moments that end their window."""
    newest, first, count, size, base, top = _HEADER.unpack_from(stored)
    expiry = int.from_bytes(newest, "big")
    width = 5 if window < 2**39 else 7
    slot = width + 2
    end = _HEADER.size + size * slot
    if not 0 < count <= size or first >= size or len(stored) < end:
        raise ValueError("no ring of moments")
    ring = [stored[at : at + slot] for at in range(_HEADER.size, end, slot)]
    entries = (ring + ring)[first : first + count]
    whole = 1 << 8 * width  # the moments are modulo this, and none is older than the newest by half of it
    newest_moment = expiry - window
    moments = [expiry - (newest_moment - int.from_bytes(entry[:width], "big")) % whole for entry in reversed(entries)]
    numbers = [(int.from_bytes(entry[width:], "big") - base) % _NUMBERS for entry in entries[1:]]
    return array("q", moments).tobytes() + array("I", [(top - base) % _NUMBERS, *reversed(numbers), 0]).tobytes()
