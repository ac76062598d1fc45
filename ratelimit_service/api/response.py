"""Encodes a Verdict as a RateLimitResponse. Hot path.

Protobuf's format is written by hand, and what is the same in all responses is encoded once: that takes a third of the
time of the generated class. A property test compares the result with that class.
"""

from collections.abc import Callable, Iterator
from random import getrandbits
from typing import Final

from google.protobuf.struct_pb2 import Struct

from ratelimit_service.api.explanation import encode_explanation
from ratelimit_service.api.headers import DEFAULT_NAMES, HeaderEncoder, HeaderNames, retry_after_seconds, wait_seconds
from ratelimit_service.api.metadata import Shown, deciding_rules, dynamic_metadata, rule_metadata
from ratelimit_service.api.request import decode
from ratelimit_service.api.wire import field, varint
from ratelimit_service.limiter.verdict import Verdict
from ratelimit_service.model import MAX_FIELD, NEVER, Limit
from ratelimit_service.rules.response import NO_JITTER, SHARE_BITS, SILENT, ResponseOptions
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.hit import ZERO_LIMIT, Hit
from ratelimit_service.system.clock import SECOND

# Tags of RateLimitResponse: field number, then wire type 0 (varint) or 2 (length and bytes).
_OVERALL_OK = b"\x08\x01"
_OVERALL_OVER_LIMIT = b"\x08\x02"
_STATUS = 2 << 3 | 2
_DYNAMIC_METADATA = 6 << 3 | 2
# Tags of DescriptorStatus.
_CODE_OK = b"\x08\x01"
_CODE_OVER_LIMIT = b"\x08\x02"
_CURRENT_LIMIT = 2 << 3 | 2
_LIMIT_REMAINING = 3 << 3
_DURATION_UNTIL_RESET = 4 << 3 | 2

_MAX_RULES = 10_000


def _remaining(number: int) -> bytes:
    """The field `limit_remaining`."""
    if number > MAX_FIELD:  # noqa: PLR1730 - for each call, and min() takes five times as long
        number = MAX_FIELD
    return bytes((_LIMIT_REMAINING,)) + varint(number) if number else b""


def _reset(seconds: int) -> bytes:
    """The field `duration_until_reset`."""
    body = b"\x08" + varint(seconds) if seconds else b""
    return field(_DURATION_UNTIL_RESET, body)


_MAX_READY: Final = 1024
"""Fields with numbers below this are encoded once, at import."""

_REMAINING: Final = tuple(map(_remaining, range(_MAX_READY)))
_RESET: Final = tuple(map(_reset, range(_MAX_READY)))
_STATUS_OF: Final = tuple(bytes((_STATUS,)) + varint(size) for size in range(_MAX_READY))
_NO_RULE: Final = field(_STATUS, _CODE_OK)
_UNLIMITED: Final = field(_STATUS, _CODE_OK + _remaining(MAX_FIELD))


def random_share() -> int:
    """A random share of a jitter; below SHARES."""
    return getrandbits(SHARE_BITS)  # randrange takes 0.5 µs more


class ResponseEncoder:
    """Encodes verdicts, with what their domains add for callers.

    `names` are those of the headers of `ratelimit`; `dynamic_metadata` adds metadata for Envoy's filters; `draw` gives
    a random number below SHARES. The metadata have the entries of the request as `shown` returns them.
    """

    def __init__(
        self,
        names: HeaderNames = DEFAULT_NAMES,
        *,
        dynamic_metadata: bool = False,
        shown: Shown = lambda _, entries: entries,
        draw: Callable[[], int] = random_share,
    ) -> None:
        self._headers = HeaderEncoder(names)
        self._shown = shown
        self._dynamic_metadata = dynamic_metadata
        self._draw = draw
        self._starts: dict[Rule, tuple[bytes, bytes]] = {}
        self._rule_metadata: dict[tuple[tuple[str, Rule], ...], bytes] = {}

    def encode(self, verdict: Verdict, body: bytes) -> bytes:
        """The response to the request in `body`."""
        parts = [_OVERALL_OK if verdict.allowed else _OVERALL_OVER_LIMIT]
        starts = self._starts
        options = verdict.response
        share = 0
        if options is not None and not verdict.allowed and options.retry_after_jitter != NO_JITTER:
            share = self._draw()
        for hit in verdict.hits:
            if hit is None:
                parts.append(_NO_RULE)
                continue
            rule = hit.rule
            limit = rule.limit
            if limit is None:
                parts.append(self._denied(hit, options, share) if rule.deny else _UNLIMITED)
                continue
            decision = hit.decision
            start = starts.get(rule) or self._start(rule, limit)
            remaining = decision.remaining
            if limit.exceed:
                remaining = hit.remaining
            ok = decision.allowed or rule.shadow
            # A table lookup takes 0.1 µs less for each number than encoding it.
            status = start[ok] + (_REMAINING[remaining] if remaining < _MAX_READY else _remaining(remaining))
            wait = decision.reset_after  # as `wait_seconds`: a call takes 0.05 µs more
            if not ok:
                # Envoy writes it into the Retry-After of a denied request.
                if decision.retry_after != NEVER:
                    wait = decision.retry_after
                if share and options is not None:
                    wait += options.retry_after_jitter.of(wait, share)
            if ok or wait:
                seconds = -(-wait // SECOND)
                status += _RESET[seconds] if seconds < _MAX_READY else _reset(seconds)
            size = len(status)
            parts += (_STATUS_OF[size] if size < _MAX_READY else bytes((_STATUS,)) + varint(size), status)
        if options is not None or self._dynamic_metadata or verdict.unmatched is not None:
            parts += self._beside(verdict, body, options or SILENT, share)
        return b"".join(parts)

    def _denied(self, hit: Hit, options: ResponseOptions | None, share: int) -> bytes:
        """The status of a hit on a rule that denies always."""
        rule, decision = hit.rule, hit.decision
        start = self._starts.get(rule) or self._start(rule, hit.limit)
        status = start[decision.allowed or rule.shadow]
        if decision.retry_after > 0:
            status += _reset(wait_seconds(hit, options or SILENT, share))
        return field(_STATUS, status)

    def _beside(self, verdict: Verdict, body: bytes, options: ResponseOptions, share: int) -> Iterator[bytes]:
        """The fields beside the statuses."""
        yield from self._headers.encode(verdict, options, share)
        if self._dynamic_metadata:
            yield _metadata(dynamic_metadata(verdict, decode(body), self._shown))
        elif options.rule_metadata:
            yield self._encode_rule_metadata(verdict)
        if verdict.unmatched is not None:
            seconds = 0 if verdict.allowed else retry_after_seconds(verdict, options, share)
            yield encode_explanation(verdict.hits, verdict.unmatched, seconds)

    def _encode_rule_metadata(self, verdict: Verdict) -> bytes:
        """The metadata about the rules that decided, made once for the same ones: it takes 20 µs."""
        found = tuple(deciding_rules(verdict))
        if not found:
            return b""
        encoded = self._rule_metadata.get(found)
        if encoded is None:
            if len(self._rule_metadata) >= _MAX_RULES:
                self._rule_metadata.clear()
            message = Struct()
            message.update(rule_metadata(found))
            encoded = self._rule_metadata[found] = _metadata(message)
        return encoded

    def _start(self, rule: Rule, limit: Limit) -> tuple[bytes, bytes]:
        """The begin of every status of the rule: when it is over its limit, and when it is not."""
        if len(self._starts) >= _MAX_RULES:  # each limit sent with a request is a rule of its own
            self._starts.clear()
        body = b"" if limit is ZERO_LIMIT or not limit.kind.in_windows else b"\x10" + varint(limit.unit)
        if limit.requests:
            body = b"\x08" + varint(min(limit.requests, MAX_FIELD)) + body
        if rule.name:
            body += field(3 << 3 | 2, rule.name.encode())
        if limit.window != limit.unit.window and limit.kind.in_windows:
            body += field(4 << 3 | 2, b"\x08" + varint(limit.window // limit.unit.window))
        current_limit = field(_CURRENT_LIMIT, body)
        start = self._starts[rule] = _CODE_OVER_LIMIT + current_limit, _CODE_OK + current_limit
        return start


def _metadata(message: Struct) -> bytes:
    """The field `dynamic_metadata`."""
    return field(_DYNAMIC_METADATA, message.SerializeToString(deterministic=True))
