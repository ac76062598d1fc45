"""Shapes: plans of requests that differ in some values alone, without decoding or planning them. Hot path.

Requests for two users have the same domain, keys and rules; only a name differs. Where a rule asks for the key of an
entry and not for its value, that value is a slot in the bytes of the request. A shape is what stands between the slots,
with the plan of one of its requests: that of another one is a copy with other keys of counters.

Law: the plan of a shape is the one that the planner makes. Requests have none if their plans depend on values in
another way (lists, patterns, addresses, secrets, places, metrics by value), or on more than their bytes and the book.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from ratelimit_service.api.request import DESCRIPTOR, DOMAIN, ENTRY, KEY, VALUE
from ratelimit_service.api.wire import field
from ratelimit_service.limiter.plan import Plan
from ratelimit_service.model import Request
from ratelimit_service.rules.book import Node, RuleBook
from ratelimit_service.rules.rule import MAX_KEY_LENGTH, Rule, counter_key, escaped

MOST_OF_SIZE: Final = 8
"""Shapes of requests of one size that are kept, of 2 KB each: 8 MB in all. A value of another length makes another."""

SHORTEST_PAUSE: Final = 16
"""So many requests without a shape come before one is learnt from, which takes several times as long as its plan."""

LONGEST_PAUSE: Final = 1024
"""So many while those that are looked at have no shape: then that takes 1 % of the time."""

_FIRST_MARK: Final = 0xE000
"""The first of the characters that stand for slots while the key of a counter is made."""

_MAX_SLOTS: Final = 64
"""The values of one request that may differ."""


class _Slot(NamedTuple):
    """The place of a value in a request."""

    start: int
    end: int
    prefix: str
    others: Mapping[str, Node]
    """Nodes by the prefix and a value: for these values there are other rules."""


class _PlanShape(NamedTuple):
    """The part that is the same in all requests of this shape."""

    fixed: Sequence[tuple[int, int, bytes]]
    """The bytes between the slots, each piece with its place."""
    slots: Sequence[_Slot]
    plan: Plan
    keys: Sequence[tuple[str, Sequence[int]]]
    """For each hit the format of its counter's key, and the slots in it."""


class Shapes:
    """The shapes of requests by the rules in force."""

    def __init__(self, pause: int = SHORTEST_PAUSE) -> None:
        self._shortest_pause = self._pause = self._left = pause
        self._edition: object = None
        self._of_size: dict[int, list[_PlanShape]] = {}
        """Those of each size in bytes, one that was asked for lately first."""
        self._by_key: dict[tuple[Node, str], Mapping[str, Node] | None] = {}
        """What `_others` has found: it looks at all that is below a node."""

    def plan(self, body: bytes, edition: object) -> Plan | None:
        """The plan of a request that has a shape; else None."""
        shapes = self._of_size.get(len(body))
        if shapes is None or edition is not self._edition:
            return None
        for number, shape in enumerate(shapes):
            for start, end, piece in shape.fixed:
                if body[start:end] != piece:
                    break
            else:
                if number:
                    shapes[number], shapes[number - 1] = shapes[number - 1], shape
                return _filled(shape, body)
        return None

    def learn(self, body: bytes, request: Request, plan: Plan, book: RuleBook) -> None:
        """Keep the shape of some of the requests that had none, if they have one."""
        self._left -= 1
        if self._left > 0:
            return
        if plan.edition is not self._edition:
            self._edition = plan.edition
            self._of_size.clear()
            self._by_key.clear()
            self._pause = self._shortest_pause
        shape = self._shape_of(body, request, plan, book)
        self._pause = min(2 * self._pause, LONGEST_PAUSE) if shape is None else self._shortest_pause
        self._left = self._pause
        if shape is not None:
            shapes = self._of_size.setdefault(len(body), [])
            del shapes[MOST_OF_SIZE - 1 :]
            shapes.append(shape)

    def _shape_of(self, body: bytes, request: Request, plan: Plan, book: RuleBook) -> _PlanShape | None:
        """The shape of the request in `body`, or None if it has none."""
        root, places = book.domains.get(request.domain), _places_of_values(body, request)
        if root is None or places is None or root.lookups or root.address_keys or not plan.is_plain:
            return None
        slots: list[_Slot] = []
        keys: list[tuple[str, Sequence[int]]] = []
        for hit, descriptor, of_values in zip(plan.charged, request.descriptors, places, strict=True):
            if not _depends_on_keys(hit.rule):
                return None
            node: Node = root
            marked = []
            for (key, value), place in zip(descriptor.entries, of_values, strict=True):
                child = node.child(key, value, root.secrets)
                if child is None or any(map(_is_mark, key + value)):
                    return None
                others = self._others(node, key) if child is node.children.get(key) else None
                if others is None:
                    marked.append((key, value))
                else:
                    marked.append((key, chr(_FIRST_MARK + len(slots))))
                    slots.append(_Slot(*place, f"{key}_", others))
                node = child
            keys.append(_format_of(counter_key(hit.rule, tuple(marked))))
        if not 0 < len(slots) <= _MAX_SLOTS:
            return None
        begins, ends = [0, *(slot.end for slot in slots)], [*(slot.start for slot in slots), len(body)]
        fixed = [(begin, end, body[begin:end]) for begin, end in zip(begins, ends, strict=True)]
        return _PlanShape(fixed, slots, plan.again(), keys)

    def _others(self, node: Node, key: str) -> Mapping[str, Node] | None:
        """The nodes by the key and a value, if some match one value of it; None if more is asked of its values."""
        known = node, key
        if known not in self._by_key:
            starts = (name.startswith(f"{key}_") for name in node.children)
            self._by_key[known] = None if node.asks(key) else node.children if any(starts) else {}
        return self._by_key[known]


def _filled(shape: _PlanShape, body: bytes) -> Plan | None:
    """The plan of this request; None if a value of it is not like those of the shape."""
    values = []
    try:
        for start, end, prefix, others in shape.slots:
            value = body[start:end].decode()
            if others and prefix + value in others:
                return None
            values.append(value if value.isalnum() else escaped(value))
    except UnicodeDecodeError:
        return None
    plan = shape.plan.again()
    for hit, (form, slots) in zip(plan.charged, shape.keys, strict=True):
        hit.key = key = form % tuple([values[slot] for slot in slots])
        if len(key) > MAX_KEY_LENGTH:
            return None
    return plan


def _depends_on_keys(rule: Rule) -> bool:
    """Whether its hits differ in nothing but their counters' keys, whatever the values are."""
    return not (rule.tallies is not None or rule.secrets.keys or rule.holder >= 0)


def _is_mark(character: str) -> bool:
    return _FIRST_MARK <= ord(character) < _FIRST_MARK + _MAX_SLOTS


def _format_of(key: str) -> tuple[str, Sequence[int]]:
    """The format of a key with marks, and the numbers of its slots."""
    slots = [ord(character) - _FIRST_MARK for character in key if _is_mark(character)]
    return "".join("%s" if _is_mark(each) else each for each in key.replace("%", "%%")), slots


def _places_of_values(body: bytes, request: Request) -> Sequence[Sequence[tuple[int, int]]] | None:
    """The places of the values of each descriptor, in bytes as Envoy writes them; None if they are other ones.

    So no descriptor has anything but entries, such as a cost or a limit of its own.
    """
    found = []
    text = field(DOMAIN, request.domain.encode())
    for descriptor in request.descriptors:
        entries, places = b"", []
        for key, value in descriptor.entries:
            ends_so = value.encode()
            entries += field(ENTRY, field(KEY, key.encode()) + field(VALUE, ends_so))
            places.append((len(entries) - len(ends_so), len(entries)))
        text += field(DESCRIPTOR, entries)
        begin = len(text) - len(entries)
        found.append([(begin + start, begin + end) for start, end in places])
    return found if body.startswith(text) else None
