"""`ratelimit call`: send a request to a running service over gRPC, as Envoy does."""

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
from google.protobuf.json_format import MessageToJson

from ratelimit_service.api.explanation import EXPLAIN, decode_explanation
from ratelimit_service.api.generated.envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest, RateLimitResponse
from ratelimit_service.api.generated.ratelimit.v1.explanation_pb2 import Explanation
from ratelimit_service.api.ratelimit import ShouldRateLimit
from ratelimit_service.commands.probe import why_no_answer
from ratelimit_service.commands.request import ENTRY, LIMIT, Entry, as_message, count_of, descriptors
from ratelimit_service.commands.target import Trust, check_target, tls_options
from ratelimit_service.commands.terminal import GREEN, RED, echo
from ratelimit_service.model import MAX_REQUESTS, Descriptor, Limit, Unit
from ratelimit_service.system.disk import read_file

OVER_LIMIT, FAILED = 1, 3
"""Exit codes. 0: allowed; 2: click's code for a usage error."""


@click.command(
    epilog="""\b
Examples:
  ratelimit call localhost:8081 shop login=ada
  ratelimit call localhost:8081 shop plan=free user=ada + path=/cart
  ratelimit call localhost:8081 shop user=ada --hits 5
  ratelimit call localhost:8081 shop user=ada --hits 0      (look, charge nothing)
  ratelimit call localhost:8081 shop user=ada --limit '10/5 minutes'
  ratelimit call unix:/run/ratelimit.sock shop user=ada"""
)
@click.argument("target", metavar="HOST:PORT")
@click.argument("domain")
@click.argument("entries", metavar="KEY=VALUE...", nargs=-1, required=True, type=ENTRY)
@click.option("--hits", type=click.IntRange(0, MAX_REQUESTS), help="Cost of each descriptor.  [default: 1]")
@click.option("--refund", is_flag=True, help="Refund the hits.")
@click.option("--limit", type=LIMIT, help="Limit that overrides the rule's, such as 10/minute or '10/5 minutes'.")
@click.option("--timeout", type=float, default=2.0, show_default=True, help="Seconds to wait for the response.")
@tls_options
@click.option("--json", "as_json", is_flag=True, help="Print the response as JSON.")
def command(
    *,
    target: str,
    domain: str,
    entries: Sequence[Entry | None],
    hits: int | None,
    refund: bool,
    limit: Limit | None,
    timeout: float,
    trust: Trust | None,
    as_json: bool,
) -> None:
    """Charge a descriptor, and print whether the request is allowed.

    The KEY=VALUE entries are a descriptor, in their order; a + between them begins another descriptor. Exits with 0
    when the request is allowed, 1 when it is over a limit, 3 when there is no response.
    """
    check_target(target)
    cost = 1 if hits is None else hits
    asked = [Descriptor(each, -cost if refund else cost, hits, limit) for each in descriptors(entries)]
    request = as_message(domain, asked)
    encoded = _ask(target, request, trust, timeout)
    if isinstance(encoded, str):
        echo(f"ratelimit: {target}: {encoded}", err=True)
        sys.exit(FAILED)
    response = RateLimitResponse.FromString(encoded)
    if as_json:
        echo(*MessageToJson(response).split("\n"))
    else:
        echo(*_readable(request, response, decode_explanation(encoded)))
    sys.exit(OVER_LIMIT if response.overall_code == RateLimitResponse.OVER_LIMIT else 0)


def _ask(target: str, request: RateLimitRequest, trust: Trust | None, timeout: float) -> bytes | str:
    """The bytes of the response, with an explanation if the service gives one; or in one line why there is none."""
    # grpcio's C++ core reads the variable at import. Without it, it writes log lines to stderr.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    import grpc  # noqa: PLC0415 - see above

    if trust is None:
        channel = grpc.insecure_channel(target)
    else:
        files = [_read(file) if file else None for file in (trust.ca, trust.key, trust.cert)]
        channel = grpc.secure_channel(target, grpc.ssl_channel_credentials(*files))
    with channel:
        ask = channel.unary_unary(
            ShouldRateLimit.path,
            request_serializer=None,
            response_deserializer=None,
        )
        try:
            response: bytes = ask(request.SerializeToString() + EXPLAIN, timeout=timeout)
        except grpc.RpcError as error:
            code = error.code()
            if code is grpc.StatusCode.UNIMPLEMENTED:
                return "not a rate-limit service: it does not have ShouldRateLimit"
            reason = ""
            # Both codes may also be grpcio's own, without a response.
            if code in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}:
                reason = why_no_answer(target, trust, timeout)
            if not reason and code is grpc.StatusCode.DEADLINE_EXCEEDED:
                reason = f"no answer within {timeout:g} s"
            return reason or f"{code.name}: {error.details()}"
    return response


def _read(file: Path) -> bytes:
    try:
        return read_file(file)
    except OSError as error:
        raise click.UsageError(f"{file} cannot be read: {error.strerror}") from error


def _readable(request: RateLimitRequest, response: RateLimitResponse, explanation: Explanation) -> Iterator[str]:
    # The status of a descriptor without a rule is the same as that for a domain that does not exist. But if one
    # descriptor has a limit, the domain exists.
    known = any(status.HasField("current_limit") or status.limit_remaining for status in response.statuses)
    reasons = list(explanation.descriptors) or [Explanation.Descriptor()] * len(response.statuses)
    style = RED if response.overall_code == RateLimitResponse.OVER_LIMIT else GREEN
    yield style(RateLimitResponse.Code.Name(response.overall_code))
    for descriptor, status, reason in zip(request.descriptors, response.statuses, reasons, strict=True):
        entries = " ".join(f"{entry.key}={entry.value}" for entry in descriptor.entries)
        yield f"  {entries}: {describe(status, reason, '' if known else request.domain)}"
        if reason.place:
            yield f"    rule {reason.rule}, {reason.place}"
        elif reason.rule:  # only a ban stands in no file
            yield "    by a ban; `ratelimit bans` says who made it, and why"
        if reason.policy:
            yield f"    answered without the store, by policy {reason.policy}: {reason.reason}"
    for header in response.response_headers_to_add:
        yield f"  {header.key}: {header.value}"


def describe(
    status: RateLimitResponse.DescriptorStatus, reason: Explanation.Descriptor, doubtful_domain: str = ""
) -> str:
    """A status in words.

    `reason` is empty when the service is another program, which gives no explanation. Then `doubtful_domain` is the
    domain of the request, if nothing shows that it exists.
    """
    code = RateLimitResponse.Code.Name(status.code)
    if not status.HasField("current_limit"):
        if status.limit_remaining:
            return f"{code}, unlimited"
        if reason.unmatched:
            return f"{code}, no limit applies: {reason.unmatched}"
        return f"{code}, no limit applies" + (f", or there is no domain {doubtful_domain}" if doubtful_domain else "")
    limit = status.current_limit
    name = f" ({limit.name})" if limit.name else ""
    per_window = "at once"
    if limit.unit != RateLimitResponse.RateLimit.UNKNOWN:
        times = limit.unit_multiplier.value if limit.HasField("unit_multiplier") else 1
        per_window = f"per {Unit(limit.unit).in_words(times)}"
    text = (
        f"{code}, limit {count_of(limit.requests_per_unit)} {per_window}{name}, {count_of(status.limit_remaining)} left"
    )
    if limit.unit == RateLimitResponse.RateLimit.UNKNOWN and not limit.requests_per_unit:
        always = "denied" if status.HasField("duration_until_reset") else "always denied"  # a ban ends
        text = f"{code}, {always}{name}"
    if status.HasField("duration_until_reset"):
        when = "come back in" if status.code == RateLimitResponse.OVER_LIMIT else "reset in"
        text += f", {when} {status.duration_until_reset.seconds} s"
    return text
