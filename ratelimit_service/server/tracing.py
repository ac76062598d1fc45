"""OpenTelemetry: a span for each sampled call of ShouldRateLimit, and one below it for its wait on the store.

Nothing here is made unless TRACING_ENABLED. The SDK's own thread exports; its queue is bounded, and drops spans when it
is full, so a collector that is down or slow costs no call anything. Spans never have values of descriptors.
"""

import asyncio
import logging
import os
import random
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import uuid4

from google.protobuf.message import DecodeError

from ratelimit_service.api.generated.envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest, RateLimitResponse
from ratelimit_service.api.method import NOT_TOLD_APART, Reply
from ratelimit_service.api.ratelimit import ShouldRateLimit
from ratelimit_service.api.trace_context import TraceContext
from ratelimit_service.errors import RpcError, StartError, StoreError
from ratelimit_service.model import Cancel
from ratelimit_service.settings import Settings
from ratelimit_service.settings.fields import TracingProtocol
from ratelimit_service.stores.hit import Hit
from ratelimit_service.stores.store import Done, Store
from ratelimit_service.system.background import DaemonExecutor
from ratelimit_service.system.clock import SECOND, Clock, steady_clock
from ratelimit_service.telemetry.latency import TracedLatency
from ratelimit_service.telemetry.logs import ThrottledLog

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

log = logging.getLogger(__name__)

_PACKAGES: Final = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto")
_IDS: Final = 1 << 64
"""OpenTelemetry's samplers by ratio compare the lower 64 bits of a trace's id."""
_MAX_DOMAIN: Final = 256
_STOP_SECONDS: Final = 5.0
"""Seconds for the spans that were not exported yet."""


def check_tracing(settings: Settings) -> None:
    """Raise a StartError if tracing is enabled and its packages are not installed."""
    if settings.tracing_enabled and not all(map(_is_installed, _PACKAGES)):
        raise StartError(
            "TRACING_ENABLED needs the packages of OpenTelemetry: pip install 'ratelimit-service[tracing]',"
            " or set TRACING_ENABLED=false"
        )


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # of the package around it
        return False


class CallBudget:
    """Calls that may have spans: `per_second`, of which those of a second may come at once. 0 is not a limit.

    Each caller may ask for a span, and one takes longer than the call itself, even before it is exported.
    """

    def __init__(self, per_second: int, now: Clock) -> None:
        self._cost = SECOND // per_second if per_second else 0
        self._now = now
        self._spent_until = 0
        self._warnings = ThrottledLog(log, now)

    def take(self) -> bool:
        """Whether one more call has spans."""
        now = self._now()
        spent_until = max(self._spent_until, now) + self._cost
        if spent_until > now + SECOND:
            self._warnings.warn("more calls ask for spans than TRACING_MAX_CALLS allows: the others have none")
            return False
        self._spent_until = spent_until
        return True


class Tracing:
    """Makes spans, and exports them."""

    def __init__(self, settings: Settings) -> None:
        from opentelemetry import trace
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON

        # Each attempt that is repeated is a warning, and each batch that is lost an error.
        logging.getLogger("opentelemetry.exporter").setLevel(logging.ERROR)
        attributes: dict[str, str | int] = {
            "service.name": settings.tracing_service_name,
            "service.namespace": settings.tracing_service_namespace,
            "service.instance.id": settings.tracing_service_instance_id or str(uuid4()),
            "process.pid": os.getpid(),
        }
        resource = Resource.create({name: value for name, value in attributes.items() if value != ""})
        # `samples` has decided before anything is made.
        self._provider = TracerProvider(sampler=ALWAYS_ON, resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(_exporter(settings.tracing_exporter_protocol)))
        self._tracer = self._provider.get_tracer("ratelimit_service")
        self._trace = trace
        self._below = settings.tracing_sampling_rate * _IDS
        self._budget = CallBudget(settings.tracing_max_calls, steady_clock)
        self.current: Span | None = None
        """The span of the call whose hits are being charged."""

    def samples(self, context: TraceContext | None) -> bool:
        """Whether a call has spans: as its caller says, or by TRACING_SAMPLING_RATE; TRACING_MAX_CALLS at most."""
        return self._is_sampled(context) and self._budget.take()

    def _is_sampled(self, context: TraceContext | None) -> bool:
        if context is None:
            return random.getrandbits(64) < self._below
        if context.sampled is not None:
            return context.sampled
        return context.trace_id % _IDS < self._below

    def begin(self, path: str, context: TraceContext | None) -> "Span":
        """The span of a call, below its caller's."""
        trace = self._trace
        around = None
        if context is not None and context.trace_id:
            flags = trace.TraceFlags(trace.TraceFlags.SAMPLED)
            parent = trace.SpanContext(context.trace_id, context.span_id, is_remote=True, trace_flags=flags)
            around = trace.set_span_in_context(trace.NonRecordingSpan(parent))
        service, _, method = path[1:].partition("/")
        attributes = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": method}
        return self._tracer.start_span(path[1:], around, trace.SpanKind.SERVER, attributes)

    def begin_wait(self, call: "Span", hits: int) -> "Span":
        """The span of a wait on the store."""
        around = self._trace.set_span_in_context(call)
        return self._tracer.start_span("store", around, self._trace.SpanKind.CLIENT, {"ratelimit.hits": hits})

    def fail(self, span: "Span", why: str) -> None:
        """Mark the span as one of something that failed."""
        span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, why))

    async def close(self) -> None:
        """Export what was not exported yet, unless that takes too long."""
        try:
            loop = asyncio.get_running_loop()
            await asyncio.wait_for(loop.run_in_executor(DaemonExecutor(), self._provider.shutdown), _STOP_SECONDS)
        except TimeoutError:
            log.warning("the last spans are lost: the collector did not accept them in time")


def _exporter(protocol: TracingProtocol) -> "SpanExporter":
    if protocol is TracingProtocol.GRPC:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        return GrpcExporter()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

    return HttpExporter()


class TracedMethod:
    """ShouldRateLimit, with a span for each sampled call, whose trace is an exemplar of its latency."""

    def __init__(self, method: ShouldRateLimit, tracing: Tracing) -> None:
        self.path = method.path
        self._latency = method.latency = TracedLatency()
        self._method = method
        self._tracing = tracing

    def call(
        self,
        body: bytes,
        reply: Reply,
        timeout: int | None = None,
        caller: bytes = NOT_TOLD_APART,
        *,
        context: TraceContext | None = None,
    ) -> Cancel | None:
        """As Method says; `context` is what the caller says of its trace."""
        tracing = self._tracing
        if not tracing.samples(context):
            return self._method.call(body, reply, timeout, caller)
        span = tracing.begin(self.path, context)

        def ended(response: bytes | RpcError) -> None:
            reply(response)
            self._describe(span, body, response)
            span.end()
            # The method observes the call when this has returned: no other call comes between.
            self._latency.trace_id = span.get_span_context().trace_id

        tracing.current = span
        try:
            cancel = self._method.call(body, ended, timeout, caller)
        finally:
            tracing.current = None
        return None if cancel is None else _ending(span, cancel, tracing)

    def _describe(self, span: "Span", body: bytes, response: bytes | RpcError) -> None:
        try:
            request = RateLimitRequest.FromString(body)
        except DecodeError:
            pass
        else:
            span.set_attribute("ratelimit.domain", request.domain[:_MAX_DOMAIN])
            span.set_attribute("ratelimit.descriptors", len(request.descriptors))
        if isinstance(response, RpcError):
            span.set_attribute("rpc.grpc.status_code", int(response.status))
            self._tracing.fail(span, response.status.name)
        else:
            code = RateLimitResponse.FromString(response).overall_code
            span.set_attribute("rpc.grpc.status_code", 0)
            span.set_attribute("ratelimit.code", RateLimitResponse.Code.Name(code))


class _TracedStore:
    """A store, with a span for each wait of a sampled call."""

    def __init__(self, store: Store, tracing: Tracing) -> None:
        self._store = store
        self._tracing = tracing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def hit(self, hits: Sequence[Hit], done: Done, timeout: int | None = None) -> Cancel | None:
        tracing = self._tracing
        call = tracing.current
        if call is None:
            return self._store.hit(hits, done, timeout)
        span = tracing.begin_wait(call, len(hits))

        def ended(error: StoreError | None) -> None:
            if error is not None:
                tracing.fail(span, type(error).__name__)
            span.end()
            done(error)

        cancel = self._store.hit(hits, ended, timeout)
        return None if cancel is None else _ending(span, cancel, tracing)


def traced_store(store: Store, tracing: Tracing) -> Store:
    """The store, with a span for each wait of a sampled call."""
    return cast("Store", _TracedStore(store, tracing))


def _ending(span: "Span", cancel: Cancel, tracing: Tracing) -> Cancel:
    """The means to cancel that ends the span too: what is cancelled is not answered."""

    def cancel_and_end() -> bool:
        if not cancel():
            return False
        tracing.fail(span, "cancelled")
        span.end()
        return True

    return cancel_and_end
