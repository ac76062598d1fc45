"""Kuadrant's RateLimitService, by the rules and counters of Envoy's calls.

==============  =======================================================================================
method          becomes
==============  =======================================================================================
CheckRateLimit  a look: each descriptor costs 0
Report          a settle of each descriptor: what it has cost is charged in full
Reserve         a request of `amount` under an id that is made here; all descriptors reserve, or none
Commit          a settle by that id; by one that is not known, or without one, all of it is charged
==============  =======================================================================================

So a call is written anew as one of ShouldRateLimit, which decides it. Kuadrant's descriptors have neither an id nor the
mark of a settle. Where a rule with `reserve: {id: KEY}` lies behind one entry more, of that key, the entry is put in:
that rule is meant, not one without it. `ttl` is not read: what is never settled stays charged, and an id of less than
`hold` would only be charged twice. Limits that come with descriptors are not read either, as in limitador.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from secrets import token_hex
from typing import Final, NamedTuple, TypeVar

from google.protobuf.message import DecodeError, Message
from google.protobuf.wrappers_pb2 import UInt64Value

from ratelimit_service.api.decision_log import Encode, log_failure, with_decisions_logged
from ratelimit_service.api.generated.envoy.extensions.common.ratelimit.v3.ratelimit_pb2 import RateLimitDescriptor
from ratelimit_service.api.generated.envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest
from ratelimit_service.api.generated.kuadrant.service.ratelimit.v1.kuadrantrls_pb2 import CommitRequest, ReserveRequest
from ratelimit_service.api.method import NOT_TOLD_APART, Method, Reply
from ratelimit_service.api.ratelimit import ShouldRateLimit
from ratelimit_service.api.request import DEFAULT, RequestLimits, check_count, check_entries, decode
from ratelimit_service.api.response import ResponseEncoder
from ratelimit_service.api.wire import field
from ratelimit_service.errors import RpcError, Status, TooLongError
from ratelimit_service.limiter.limiter import Limiter
from ratelimit_service.limiter.plan import Plan
from ratelimit_service.limiter.verdict import Verdict
from ratelimit_service.model import SETTLED_BEFORE, Cancel, SettledById
from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.pattern_work import PatternWork
from ratelimit_service.rules.problems import quoted
from ratelimit_service.rules.rule import RESERVES, Entries, Rule

_OK: Final = b"\x08\x01"
_OVER_LIMIT: Final = b"\x08\x02"
_RELEASED: Final = b"\x08\x01"
_RESERVATION_ID: Final = 2 << 3 | 2

M = TypeVar("M", bound=Message)


def kuadrant(limiter: Limiter, encoder: ResponseEncoder, limits: RequestLimits = DEFAULT) -> Sequence[Method]:
    """The methods of the service."""
    requests = _Requests(limiter, limits)
    methods: Sequence[tuple[str, Callable[[bytes], _Translated], Encode]] = (
        ("CheckRateLimit", requests.check, encoder.encode),
        ("Report", requests.report, lambda *_: _OK),
        ("Reserve", requests.reserve, lambda verdict, _: _OK if verdict.allowed else _OVER_LIMIT),
        ("Commit", requests.commit, lambda verdict, _: _RELEASED if _releases(verdict) else b""),
    )
    return tuple(
        _Translating(
            f"/kuadrant.service.ratelimit.v1.RateLimitService/{name}",
            translate,
            _Deciding(limiter, encode, limits, together=name == "Reserve"),
            limiter,
        )
        for name, translate, encode in methods
    )


def _releases(verdict: Verdict) -> bool:
    """Whether some limit knew the id, and it had not been settled."""
    decisions = [hit.decision for hit in verdict.hits if hit is not None]
    return any(isinstance(each, SettledById) and each.reserved != SETTLED_BEFORE for each in decisions)


class _Translated(NamedTuple):
    """A call as one of ShouldRateLimit."""

    message: RateLimitRequest
    reservation_id: str = ""
    """For the response."""


class _Translating(NamedTuple):
    """A Method whose calls are made calls of ShouldRateLimit."""

    path: str
    translate: Callable[[bytes], _Translated]
    decides: "_Deciding"
    limiter: Limiter

    def call(
        self, body: bytes, reply: Reply, timeout: int | None = None, caller: bytes = NOT_TOLD_APART
    ) -> Cancel | None:
        """Respond to the request in `body`."""
        try:
            message, reservation_id = self.translate(body)
        except RpcError as error:
            self.limiter.count_unplanned()
            log_failure(body, error, self.limiter)
            reply(error)
            return None
        if reservation_id:
            reply = partial(_reply_reserved, reply, field(_RESERVATION_ID, reservation_id.encode()))
        return self.decides.call(message.SerializeToString(), reply, timeout, caller)


def _reply_reserved(reply: Reply, reservation_id: bytes, response: bytes | RpcError) -> None:
    reply(_OK + reservation_id if response == _OK else response)


class _Deciding(ShouldRateLimit):
    """Keeps no plans, as an id makes each request another one. `together`: all descriptors are charged, or none."""

    def __init__(self, limiter: Limiter, encode: Encode, limits: RequestLimits, *, together: bool) -> None:
        super().__init__(limiter, ResponseEncoder(), limits)
        self._encode = with_decisions_logged(encode, limiter)
        self._together = together

    def _plan(self, body: bytes) -> Plan:
        return self._limiter.plan(replace(decode(body, self._limits), together=self._together))


class _Requests:
    """Translates calls. Its functions raise RpcError, which says what is wrong with one."""

    def __init__(self, limiter: Limiter, limits: RequestLimits) -> None:
        self._limiter = limiter
        self._limits = limits
        self._book: RuleBook | None = None
        self._levels: dict[str, Sequence[tuple[int, str]]] = {}
        """By domain of the book: the index of an id in a descriptor, and its key."""

    def check(self, body: bytes) -> _Translated:
        """A look."""
        message = _parsed(RateLimitRequest, body)
        _set_cost(message, 0)
        self._put_ids(message, _new_id())
        return _Translated(message)

    def report(self, body: bytes) -> _Translated:
        """A settle of an id that is not known."""
        message = _parsed(RateLimitRequest, body)
        self._settle(message, _new_id())
        return _Translated(message)

    def reserve(self, body: bytes) -> _Translated:
        """A request under a new id."""
        asked = _parsed(ReserveRequest, body)
        message = RateLimitRequest(domain=asked.domain, descriptors=asked.descriptors)
        _set_cost(message, asked.amount)
        reservation_id = _new_id()
        rules = self._put_ids(message, reservation_id)
        self._mark(message.domain)
        for rule in rules:
            if rule is not None and rule.limit is not None and not rule.traits & RESERVES:
                wrong = f"the limit {'.'.join(rule.path)} at {rule.place} has no reserve"
                raise _not_so(f"{wrong}: write reserve: {{id: KEY, hold: 5 minutes}} below a descriptor of that key")
        return _Translated(message, reservation_id)

    def commit(self, body: bytes) -> _Translated:
        """A settle of that id, and a refund of the places that it has beside."""
        asked = _parsed(CommitRequest, body)
        message = RateLimitRequest(domain=asked.domain, descriptors=asked.descriptors)
        _set_cost(message, asked.actual_amount)
        held = self._settle(message, asked.reservation_id or _new_id())
        for entries in held:
            message.descriptors.add(entries=_encoded(entries), hits_addend=UInt64Value(value=1), is_negative_hits=True)
        return _Translated(message)

    def _settle(self, message: RateLimitRequest, reservation_id: str) -> Sequence[Entries]:
        """Have each descriptor settle; returns those under which the id may have places."""
        rules = self._put_ids(message, reservation_id)
        mark = self._mark(message.domain)
        held = []
        for each, rule in zip(message.descriptors, rules, strict=True):
            if rule is not None and any(beside.limit and beside.limit.kind.holds for beside in (rule, *rule.beside)):
                held.append(_entries(each))
            if mark:
                each.entries.add(key=mark, value="1")
        return held

    def _mark(self, domain: str) -> str:
        """The key of the entry that settles; empty where there are no rules."""
        root = None if self._limiter.book is None else self._limiter.book.root(domain)
        if root is not None and not root.settle:
            raise _not_so(f"domain {quoted(domain)} has no settle: write settle: settled at the top of its file")
        return "" if root is None else root.settle

    def _put_ids(self, message: RateLimitRequest, reservation_id: str) -> Sequence[Rule | None]:
        """Put the id into the descriptors; returns the rule of each."""
        descriptors = message.descriptors
        check_count(len(descriptors), self._limits.descriptors)
        check_entries(sum([len(each.entries) for each in descriptors]), self._limits.entries)
        book = self._limiter.book
        root = None if book is None else book.root(message.domain)
        rules: list[Rule | None] = []
        work = PatternWork(self._limiter.pattern_bounds)
        for each in descriptors:
            each.ClearField("limit")
            if book is None or root is None:
                rules.append(None)
                continue
            entries = _entries(each)
            if root.settle and entries and entries[-1][0] == root.settle:
                entries = entries[:-1]
            try:
                entries, rule = self._with_id(book, message.domain, entries, reservation_id, work)
            except TooLongError:  # it is denied
                rule = None
            rules.append(rule)
            del each.entries[:]
            each.entries.extend(_encoded(entries))
        return rules

    def _with_id(
        self, book: RuleBook, domain: str, entries: Entries, reservation_id: str, work: PatternWork
    ) -> tuple[Entries, Rule | None]:
        """The entries with the id, if some rule reserves by it, and their rule."""
        for index, key in self._levels_of(book, domain):
            found = (*entries[:index], (key, reservation_id), *entries[index:])
            rule = book.match(domain, found, work)
            if rule is not None and rule.traits & RESERVES and rule.holder == index:
                return found, rule
        rule = book.match(domain, entries, work)
        if rule is not None and rule.holder >= 0:  # the caller knows the rules, and has sent an id
            at = rule.holder
            entries = (*entries[:at], (entries[at][0], reservation_id), *entries[at + 1 :])
        return entries, rule

    def _levels_of(self, book: RuleBook, domain: str) -> Sequence[tuple[int, str]]:
        """Where rules of the domain have the ids by which they reserve; found once in a book."""
        if book is not self._book:
            self._book, self._levels = book, {}
        name = book.name_of(domain) or ""
        levels = self._levels.get(name)
        if levels is None:
            reserving = [rule for rule in book.rules_in(name) if rule.traits & RESERVES and rule.holder >= 0]
            found = dict.fromkeys((rule.holder, rule.levels[rule.holder].name) for rule in reserving)
            levels = self._levels[name] = tuple(found)
        return levels


def _parsed(kind: type[M], body: bytes) -> M:
    try:
        return kind.FromString(body)
    except DecodeError as error:
        problem = f"the message is not a {kind.DESCRIPTOR.name}: {error}"
        raise RpcError(Status.INVALID_ARGUMENT, problem) from error


def _set_cost(message: RateLimitRequest, cost: int) -> None:
    for each in message.descriptors:
        each.hits_addend.value = cost
        each.is_negative_hits = False


def _entries(descriptor: RateLimitDescriptor) -> Entries:
    return tuple([(entry.key, entry.value) for entry in descriptor.entries])


def _encoded(entries: Entries) -> Sequence[RateLimitDescriptor.Entry]:
    return [RateLimitDescriptor.Entry(key=key, value=value) for key, value in entries]


def _new_id() -> str:
    return token_hex(16)


def _not_so(message: str) -> RpcError:
    return RpcError(Status.FAILED_PRECONDITION, message)
