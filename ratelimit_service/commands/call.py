"""`ratelimit call`: ask a running service, over gRPC, as Envoy would."""

import sys
from collections.abc import Sequence
from pathlib import Path

import click
import grpc
from google.protobuf.json_format import MessageToJson

from ratelimit_service.api.generated.envoy.extensions.common.ratelimit.v3.ratelimit_pb2 import RateLimitDescriptor
from ratelimit_service.api.generated.envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest, RateLimitResponse
from ratelimit_service.api.ratelimit import ShouldRateLimit
from ratelimit_service.commands.entries import ENTRY, Entry
from ratelimit_service.model import MAX_REQUESTS, Unit
from ratelimit_service.rules.words import units_in_words

OVER_LIMIT, FAILED = 1, 3
"""Exit codes; 0 is allowed, 2 is click's for bad usage."""


class _LimitType(click.ParamType[RateLimitDescriptor.RateLimitOverride]):
    """`10/minute` as an override."""

    name = "N/UNIT"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> RateLimitDescriptor.RateLimitOverride:
        requests, _, unit = value.partition("/")
        if not requests.isdecimal() or int(requests) > MAX_REQUESTS or unit.upper() not in Unit.__members__:
            units = ", ".join(unit.name.lower() for unit in Unit)
            self.fail(f"{value!r} is not a limit such as 10/minute; units are {units}", param, ctx)
        return RateLimitDescriptor.RateLimitOverride(
            requests_per_unit=int(requests),
            unit=Unit[unit.upper()].value,  # type: ignore[arg-type]  # WEEK has no name in that enum
        )


@click.command(
    epilog="""\b
Examples:
  ratelimit call localhost:8081 shop user=ada
  ratelimit call localhost:8081 shop user=ada path=/cart + client_ip=10.0.0.1
  ratelimit call localhost:8081 shop user=ada --hits 5
  ratelimit call localhost:8081 shop user=ada --hits 0      (look, charge nothing)
  ratelimit call localhost:8081 shop user=ada --limit 2/minute
  ratelimit call unix:/run/ratelimit.sock shop user=ada"""
)
@click.argument("target", metavar="HOST:PORT")
@click.argument("domain")
@click.argument("entries", metavar="KEY=VALUE...", nargs=-1, required=True, type=ENTRY)
@click.option("--hits", type=click.IntRange(0, MAX_REQUESTS), help="What each descriptor costs.  [default: 1]")
@click.option("--refund", is_flag=True, help="Give the hits back.")
@click.option("--limit", type=_LimitType(), help="A limit in place of the rule's, such as 10/minute.")
@click.option("--timeout", type=float, default=2.0, show_default=True, help="Seconds to wait.")
@click.option("--tls", is_flag=True, help="Speak TLS.")
@click.option(
    "--ca", type=click.Path(path_type=Path, exists=True), help="CA of the server's certificate; implies --tls."
)
@click.option("--cert", type=click.Path(path_type=Path, exists=True), help="Own certificate, for mTLS.")
@click.option("--key", type=click.Path(path_type=Path, exists=True), help="Key of the own certificate.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
def command(
    *,
    target: str,
    domain: str,
    entries: Sequence[Entry | None],
    hits: int | None,
    refund: bool,
    limit: RateLimitDescriptor.RateLimitOverride | None,
    timeout: float,
    tls: bool,
    ca: Path | None,
    cert: Path | None,
    key: Path | None,
    as_json: bool,
) -> None:
    """Ask whether a descriptor may be charged, and charge it.

    The descriptor is made of the KEY=VALUE entries, in their order; a + between them begins another descriptor. Exits
    with 0 when the request is allowed, 1 when it is over a limit, 3 when there is no answer.
    """
    if ":" not in target:
        raise click.UsageError(f"{target} has no port; the service's own is {target}:8081")
    request = RateLimitRequest(domain=domain, descriptors=[RateLimitDescriptor()])
    for entry in entries:
        if entry is None:
            request.descriptors.add()
        else:
            request.descriptors[-1].entries.add(key=entry.key, value=entry.value)
    for descriptor in request.descriptors:
        descriptor.is_negative_hits = refund
        if hits is not None:
            descriptor.hits_addend.value = hits
        if limit is not None:
            descriptor.limit.CopyFrom(limit)

    if tls or ca or cert:
        channel = grpc.secure_channel(
            target,
            grpc.ssl_channel_credentials(*(file.read_bytes() if file else None for file in (ca, key, cert))),
        )
    else:
        channel = grpc.insecure_channel(target)
    with channel:
        ask = channel.unary_unary(
            ShouldRateLimit.path,
            request_serializer=RateLimitRequest.SerializeToString,
            response_deserializer=RateLimitResponse.FromString,
        )
        try:
            answer: RateLimitResponse = ask(request, timeout=timeout)
        except grpc.RpcError as error:
            click.echo(f"ratelimit: {target}: {error.code().name}: {error.details()}", err=True)
            sys.exit(FAILED)
    click.echo(MessageToJson(answer) if as_json else _readable(request, answer))
    sys.exit(OVER_LIMIT if answer.overall_code == RateLimitResponse.OVER_LIMIT else 0)


def _readable(request: RateLimitRequest, answer: RateLimitResponse) -> str:
    lines = [RateLimitResponse.Code.Name(answer.overall_code)]
    for descriptor, status in zip(request.descriptors, answer.statuses, strict=True):
        entries = " ".join(f"{entry.key}={entry.value}" for entry in descriptor.entries)
        lines.append(f"  {entries}: {_describe(status)}")
    lines += [f"  {header.key}: {header.value}" for header in answer.response_headers_to_add]
    return "\n".join(lines)


def _describe(status: RateLimitResponse.DescriptorStatus) -> str:
    code = RateLimitResponse.Code.Name(status.code)
    if status.HasField("current_limit"):
        limit = status.current_limit
        name = f" ({limit.name})" if limit.name else ""
        unit = RateLimitResponse.RateLimit.Unit.Name(limit.unit)
        window = units_in_words(unit, limit.unit_multiplier.value if limit.HasField("unit_multiplier") else 1)
        return (
            f"{code}, limit {limit.requests_per_unit} per {window}{name}, {status.limit_remaining} left, "
            f"reset in {status.duration_until_reset.seconds} s"
        )
    return f"{code}, unlimited" if status.limit_remaining else f"{code}, no limit applies"
