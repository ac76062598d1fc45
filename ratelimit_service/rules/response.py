"""The options of a domain for what a response has beside the decision, for the callers behind Envoy."""

from dataclasses import dataclass
from typing import Final, NamedTuple

from ratelimit_service.rules.rule import Rule
from ratelimit_service.settings import Settings
from ratelimit_service.settings.fields import ResponseHeaders
from ratelimit_service.system.clock import DAY, duration_in_words

HEADERS: Final = tuple(map(str, ResponseHeaders))
"""The sets of headers, by their names in rules and settings."""

SHARE_BITS: Final = 20
SHARES: Final = 1 << SHARE_BITS
"""A random share of a jitter is a number below this."""

MAX_JITTER: Final = DAY

MAX_NAME_LENGTH: Final = 128
"""The most characters of a name in a header. A response has up to ten of them in each of two headers, and many clients
accept 8 KiB of headers."""


class Jitter(NamedTuple):
    """The most by which a wait is lengthened, so that refused callers do not come back all at once."""

    percent: int = 0
    """Of the wait."""
    most: int = 0
    """Microseconds, whatever the wait is."""

    def of(self, wait: int, share: int) -> int:
        """The jitter to add to a wait, for a random share below SHARES."""
        return (wait * self.percent // 100 + self.most) * share // SHARES


NO_JITTER: Final = Jitter()


@dataclass(frozen=True, slots=True)
class ResponseOptions:
    """The headers, body and metadata that the responses of a domain have."""

    headers: tuple[str, ...] = ()
    """Of HEADERS."""
    retry_after: bool = False
    """A refusal has `Retry-After`."""
    retry_after_jitter: Jitter = NO_JITTER
    """Lengthens every wait in a refusal."""
    problem_body: bool = False
    """A refusal has a body of RFC 9457."""
    rule_metadata: bool = False
    """Dynamic metadata has the rule that refused the request, or that it exceeds by a soft limit."""


SILENT: Final = ResponseOptions()
"""Only the decision."""


def response_options(settings: Settings) -> ResponseOptions:
    """The options of domains that say nothing of them."""
    headers = tuple(map(str, settings.response_headers))
    if settings.limit_response_headers_enabled and "ratelimit" not in headers:
        headers = ("ratelimit", *headers)
    return ResponseOptions(
        headers=headers,
        retry_after=settings.response_retry_after,
        retry_after_jitter=Jitter(*settings.response_retry_after_jitter),
        problem_body=settings.response_problem_body,
        rule_metadata=settings.response_rule_metadata,
    )


def response_in_words(options: ResponseOptions) -> list[str]:
    """The words for what responses have beside the decision."""
    found = []
    if options.headers:
        found.append(f"headers {', '.join(options.headers)}")
    if options.retry_after:
        found.append("Retry-After")
    percent, most = options.retry_after_jitter
    if percent:
        found.append(f"waits of refusals up to {percent}% longer")
    elif most:
        found.append(f"waits of refusals up to {duration_in_words(most)} longer")
    if options.problem_body:
        found.append("a body of application/problem+json")
    if options.rule_metadata:
        found.append("the rule as metadata")
    return found


def limit_name(rule: Rule) -> str:
    """The name of a limit in headers: its `name`, else its levels, in printable ASCII and at most 128 characters.

    It has nothing of requests: levels are named as in the file.
    """
    return header_text(rule.name or levels_text(rule))


def levels_text(rule: Rule) -> str:
    """The levels of a rule as its name in metrics has them, without the domain; of a limit of a request `override`."""
    return "override" if rule.override else ".".join(rule.path[1:]) or "override"


def header_text(text: str) -> str:
    """The text in printable ASCII, other characters percent-encoded, at most MAX_NAME_LENGTH characters long."""
    if len(text) <= MAX_NAME_LENGTH and text.isascii() and text.isprintable():
        return text
    encoded = "".join(
        c if c.isascii() and c.isprintable() else "".join(f"%{byte:02X}" for byte in c.encode("utf-8", "replace"))
        for c in text[:MAX_NAME_LENGTH]
    )
    return encoded[:MAX_NAME_LENGTH]


def quoted_string(text: str) -> str:
    """Printable ASCII as a string of structured fields (RFC 9651), which is also a quoted-string of HTTP."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
