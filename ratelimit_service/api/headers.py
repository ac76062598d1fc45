"""Response headers about limits, in the sets that a domain or the settings choose.

- `ratelimit`: the three of envoyproxy/ratelimit, of the tightest limit.
- `x_ratelimit`: as Envoy writes them, after draft-polli-ratelimit-headers-03: also the window of each limit.
- `ietf`: draft-ietf-httpapi-ratelimit-headers-10: structured fields (RFC 9651) with an item for each limit.

A request that waited in a queue has `RateLimit-Delay` with any of them, in milliseconds.

What is the same in all responses of a rule is encoded once. A value is made of numbers and of names in the rules, and
of nothing in a request; a name is in printable ASCII, and escaped.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from ratelimit_service.api.metadata import exceeding_hit
from ratelimit_service.api.wire import field
from ratelimit_service.limiter.verdict import Verdict, tightest_first
from ratelimit_service.model import NEVER
from ratelimit_service.rules.response import ResponseOptions, header_text, limit_name, quoted_string
from ratelimit_service.rules.rule import Rule
from ratelimit_service.settings import Settings
from ratelimit_service.settings.fields import HEADERS_OF
from ratelimit_service.stores.hit import NO_LIMIT, Hit
from ratelimit_service.system.clock import SECOND

MAX_LIMITS: Final = 10
"""Limits in a header. A request may meet 500, and many clients accept 8 KiB of headers; the tightest are sent."""

_MAX_INTEGER: Final = 10**15 - 1
"""The largest integer of structured fields (RFC 9651, section 3.3.1)."""

_RESPONSE_HEADER: Final = 3 << 3 | 2
_VALUE: Final = 2 << 3 | 2
_MAX_RULES: Final = 10_000


class HeaderNames(NamedTuple):
    """The names of the headers of `ratelimit`."""

    limit: str
    remaining: str
    reset: str


DEFAULT_NAMES: Final = HeaderNames("RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset")


def header_names(settings: Settings) -> HeaderNames:
    """The names that the settings choose."""
    return HeaderNames(settings.limit_limit_header, settings.limit_remaining_header, settings.limit_reset_header)


def _key(name: str) -> bytes:
    """The field `key` of a HeaderValue."""
    return field(1 << 3 | 2, name.encode())


def header(key: bytes, value: bytes) -> bytes:
    """The field of a response header."""
    size = len(value)
    if size < 80 and len(key) < 40:  # 0.2 µs less
        return b"%c%c%b%c%c%b" % (_RESPONSE_HEADER, len(key) + 2 + size, key, _VALUE, size, value)
    return field(_RESPONSE_HEADER, key + field(_VALUE, value))


_X_LIMIT: Final = _key("X-RateLimit-Limit")
_X_REMAINING: Final = _key("X-RateLimit-Remaining")
_X_RESET: Final = _key("X-RateLimit-Reset")
_X_EXCEEDED: Final = _key("X-RateLimit-Exceeded")
_POLICY: Final = _key("RateLimit-Policy")
_RATELIMIT: Final = _key("RateLimit")
_RETRY_AFTER: Final = _key("Retry-After")
_DELAY: Final = _key("RateLimit-Delay")

PROBLEM: Final = (
    b'{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",'
    b'"title":"Request cannot be satisfied as assigned quota has been exceeded","status":429}'
)
"""The body of a refusal: the problem type of the IETF's draft."""

_PROBLEM_FIELDS: Final = header(_key("Content-Type"), b"application/problem+json") + field(5 << 3 | 2, PROBLEM)


class _Constant(NamedTuple):
    """The headers that all responses of a rule have in common."""

    limit: bytes
    """The first header of `ratelimit`."""
    window: bytes
    """`, 10;w=60;name="login"`, an element of X-RateLimit-Limit."""
    item: bytes
    """`"login"`, the name of the limit."""
    quota_policy: bytes
    """`"login";q=10;w=60`."""
    quota_policy_header: bytes
    """The header RateLimit-Policy, when there is no other limit."""


class HeaderEncoder:
    """Encodes the headers of responses; `names` are those of `ratelimit`."""

    def __init__(self, names: HeaderNames) -> None:
        self._limit, self._remaining, self._reset = map(_key, names)
        self._same_names = frozenset(
            other.value for other, taken in HEADERS_OF.items() if any(name.lower() in taken for name in names)
        )
        """The other sets that have a header of the same name. No header is sent twice."""
        self._constants: dict[Rule, _Constant] = {}

    def encode(self, verdict: Verdict, options: ResponseOptions, share: int) -> Iterator[bytes]:
        """The fields of headers, and of a body; `share` is the random share of the jitter, 0 unless it is refused."""
        headers = options.headers
        if headers:
            tightest = verdict.tightest()
            if tightest is not None:
                yield from self._about_limits(verdict, tightest, options, share)
            if verdict.delay:
                yield header(_DELAY, b"%d" % -(-verdict.delay // 1000))
        if not verdict.allowed:
            if options.retry_after and (seconds := retry_after_seconds(verdict, options, share)):
                yield header(_RETRY_AFTER, b"%d" % seconds)
            if options.problem_body:
                yield _PROBLEM_FIELDS
        elif headers and (hit := exceeding_hit(verdict)) is not None:
            yield header(_X_EXCEEDED, b"%d" % hit.exceeds_by)

    def _about_limits(self, verdict: Verdict, tightest: Hit, options: ResponseOptions, share: int) -> Iterator[bytes]:
        headers = options.headers
        if "ratelimit" in headers and self._same_names.isdisjoint(headers):
            wait = tightest.decision.reset_after
            if share:
                wait += options.retry_after_jitter.of(wait, share)
            yield self._constant(tightest).limit
            yield header(self._remaining, b"%d" % tightest.remaining)
            if wait or tightest.limit.requests or not _never_ends(tightest):  # as envoyproxy: until a window of 0 ends
                yield header(self._reset, b"%d" % -(-wait // SECOND))
        if "x_ratelimit" not in headers and "ietf" not in headers:
            return
        # A shadow rule is a trial: no caller should keep to it.
        hits = [hit for hit in verdict.limits if hit is not None and hit.limit is not NO_LIMIT and not hit.rule.shadow]
        if not hits:
            return
        if len(hits) > MAX_LIMITS:
            hits = tightest_first(hits)[:MAX_LIMITS]
        if "x_ratelimit" in headers:
            shown = verdict.tightest(with_shadow=False) if tightest.rule.shadow else tightest
            if shown is not None:
                windows = b"".join([self._constant(hit).window for hit in hits])
                yield header(_X_LIMIT, b"%d%b" % (shown.limit.requests, windows))
                yield header(_X_REMAINING, b"%d" % shown.remaining)
                if shown.limit.requests or not _never_ends(shown):
                    yield header(_X_RESET, b"%d" % wait_seconds(shown, options, share))
        if "ietf" in headers:
            yield from self._ietf(hits, options, share)

    def _ietf(self, hits: Sequence[Hit], options: ResponseOptions, share: int) -> Iterator[bytes]:
        if len(hits) == 1:
            (hit,) = hits
            yield self._constant(hit).quota_policy_header
            yield header(_RATELIMIT, self._service_limit(hit, options, share))
            return
        yield header(_POLICY, b", ".join([self._constant(hit).quota_policy for hit in hits]))
        limits = [self._service_limit(hit, options, share) for hit in hits]
        yield header(_RATELIMIT, b", ".join(limits))

    def _service_limit(self, hit: Hit, options: ResponseOptions, share: int) -> bytes:
        item = self._constant(hit).item
        limit, decision = hit.limit, hit.decision
        if not limit.requests and decision.retry_after <= 0:
            return b"%b;r=0" % item
        if decision.allowed:
            seconds = -(-hit.rule.algorithm.room_after(limit, decision.reset_after) // SECOND)
        else:
            seconds = wait_seconds(hit, options, share)
        remaining = hit.remaining
        return b"%b;r=%d;t=%d" % (item, min(_MAX_INTEGER, remaining), seconds)

    def _constant(self, hit: Hit) -> _Constant:
        return self._constants.get(hit.rule) or self._make_constant(hit)

    def _make_constant(self, hit: Hit) -> _Constant:
        if len(self._constants) >= _MAX_RULES:  # each limit sent with a request is a rule of its own
            self._constants.clear()
        rule, limit = hit.rule, hit.limit
        requests, window = limit.requests, limit.window // SECOND
        x_name = f";name={quoted_string(header_text(rule.name))}" if rule.name else ""
        item = quoted_string(limit_name(rule)).encode()
        unit = "" if rule.quota_unit == "requests" else f";qu={quoted_string(rule.quota_unit)}"
        quota_policy = b"%b;q=%d%b" % (item, min(requests, _MAX_INTEGER), unit.encode())
        # One that denies always has no window, nor have places, and the windows of a calendar are not equally long.
        if rule.limit is not None and limit.equal_windows:
            quota_policy += b";w=%d" % window
        x_window = f";w={window}" if limit.kind.in_windows else ""
        windows = "" if rule.limit is None else f", {requests}{x_window}{x_name}"
        if limit.kind.ceiling_is_policy:
            ceiling = limit.ceiling
            windows += f', {ceiling};w={window};name="ceiling"'
            name = quoted_string(f"{limit_name(rule)} ceiling").encode()
            quota_policy += b", %b;q=%d%b;w=%d" % (name, min(ceiling, _MAX_INTEGER), unit.encode(), window)
        constant = self._constants[rule] = _Constant(
            limit=header(self._limit, b"%d" % requests),
            window=windows.encode(),
            item=item,
            quota_policy=quota_policy,
            quota_policy_header=header(_POLICY, quota_policy),
        )
        return constant


def _never_ends(hit: Hit) -> bool:
    """Whether a hit on a limit of 0, or without a limit, is denied however long it waits."""
    return not hit.decision.allowed and hit.decision.retry_after <= 0


def wait_seconds(hit: Hit, options: ResponseOptions, share: int) -> int:
    """Whole seconds until a denied hit would be allowed, with jitter; of an allowed one until its counter is reset."""
    decision = hit.decision
    if decision.allowed:
        return -(-decision.reset_after // SECOND)
    wait = decision.reset_after if decision.retry_after == NEVER else decision.retry_after
    if share:
        wait += options.retry_after_jitter.of(wait, share)
    return -(-wait // SECOND)


def retry_after_seconds(verdict: Verdict, options: ResponseOptions, share: int) -> int:
    """Whole seconds until a refused request would be allowed, with jitter; 0 if waiting does not help."""
    wait = verdict.retry_after()
    if wait == NEVER:
        return 0
    return -(-(wait + options.retry_after_jitter.of(wait, share)) // SECOND)
