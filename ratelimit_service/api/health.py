"""grpc.health.v1: whether a load balancer should send calls here.

The service is healthy while rules are loaded, if it needs them, and it does not drain; with `needs_store` only while
its store can decide.
A load balancer polls (Check), or keeps a call open that sends each change (Watch).
"""

from collections.abc import Sequence
from typing import Final

from google.protobuf.message import DecodeError

from ratelimit_service.api.generated.envoy.service.ratelimit.v3 import rls_pb2
from ratelimit_service.api.generated.grpc.health.v1.health_pb2 import (
    HealthCheckRequest,
    HealthCheckResponse,
    HealthListRequest,
    HealthListResponse,
)
from ratelimit_service.api.method import Method, Receiver, Sender, StreamFunction, StreamMethod, UnaryFunction
from ratelimit_service.errors import RpcError, Status
from ratelimit_service.system.clock import Clock, system_clock

NAMES: Final = ("", "ratelimit", rls_pb2.DESCRIPTOR.services_by_name["RateLimitService"].full_name)
"""Services with one status: the server as a whole, the name that envoyproxy uses, and the service's own name."""

MAX_WATCHERS: Final = 10_000
"""Watch calls at once, 0.8 KB each. A load balancer keeps one per connection, so ten thousand serve any fleet; without
a bound, one client could open calls that cost nothing to keep until the memory is full."""

_UNAVAILABLE = RpcError(Status.UNAVAILABLE, "the service is stopping")


class Health:
    """The status of the service, and the calls that watch it.

    Without `needs_store` the service is healthy without its store too: a policy decides then. Without `needs_rules` it
    is healthy before there are any.
    """

    def __init__(self, *, needs_store: bool = False, needs_rules: bool = True, clock: Clock = system_clock) -> None:
        self.draining_since: int | None = None
        """When draining began, in microseconds since the epoch."""
        self._clock = clock
        self._needs_store = needs_store
        self._decides = not needs_store
        self._needs_rules = needs_rules
        self._loaded = not needs_rules
        self._finished = False
        # A dict keeps their order: the first is notified first.
        self._watchers: dict[_Watcher, None] = {}

    @property
    def serving(self) -> bool:
        """Rules are loaded, the store can decide if it is needed, and the service does not drain."""
        return self._loaded and self._decides and self.draining_since is None

    def set_rules_loaded(self, loaded: bool) -> None:
        """Set whether rules are loaded."""
        self._loaded = loaded or not self._needs_rules
        self._notify()

    def set_store_healthy(self, healthy: bool) -> None:
        """Set whether the store can decide."""
        decides = healthy or not self._needs_store
        if decides != self._decides:
            self._decides = decides
            self._notify()

    def drain(self) -> None:
        """Set NOT_SERVING from now on, so that new calls go to other instances."""
        self.draining_since = self._clock()
        self._notify()

    def finish(self) -> None:
        """End all Watch calls, and later ones at once, so that none of them delays the stop."""
        self._finished = True
        for watcher in tuple(self._watchers):
            watcher.stream.finish(_UNAVAILABLE)

    def methods(self) -> Sequence[Method]:
        """Check and List."""
        return (
            UnaryFunction("/grpc.health.v1.Health/Check", self._check),
            UnaryFunction("/grpc.health.v1.Health/List", self._list),
        )

    def streams(self) -> Sequence[StreamMethod]:
        """Watch."""
        return (StreamFunction("/grpc.health.v1.Health/Watch", self._watch),)

    def status(self, name: str) -> HealthCheckResponse.ServingStatus.ValueType:
        """The status of the service with that name."""
        if name not in NAMES:
            return HealthCheckResponse.SERVICE_UNKNOWN
        return HealthCheckResponse.SERVING if self.serving else HealthCheckResponse.NOT_SERVING

    def forget(self, watcher: "_Watcher") -> None:
        """Remove a watcher whose call has ended."""
        self._watchers.pop(watcher, None)

    def _check(self, body: bytes) -> bytes:
        name = _decode_name(body)
        status = self.status(name)
        if status == HealthCheckResponse.SERVICE_UNKNOWN:
            raise RpcError(Status.NOT_FOUND, f"no service is named {name!r} here")
        return HealthCheckResponse(status=status).SerializeToString()

    def _list(self, body: bytes) -> bytes:
        try:
            HealthListRequest.FromString(body)
        except DecodeError as error:
            raise RpcError(Status.INVALID_ARGUMENT, f"the message is not a HealthListRequest: {error}") from error
        statuses = {name: HealthCheckResponse(status=self.status(name)) for name in NAMES}
        return HealthListResponse(statuses=statuses).SerializeToString()

    def _watch(self, stream: Sender) -> Receiver:
        watcher = _Watcher(self, stream)
        if self._finished:
            stream.finish(_UNAVAILABLE)
        elif len(self._watchers) >= MAX_WATCHERS:
            stream.finish(RpcError(Status.RESOURCE_EXHAUSTED, f"there are {MAX_WATCHERS} Watch calls, the maximum"))
        else:
            self._watchers[watcher] = None
        return watcher

    def _notify(self) -> None:
        for watcher in tuple(self._watchers):
            watcher.notify()


class _Watcher:
    """One Watch call: sends the status after the request, and each change of it."""

    def __init__(self, health: Health, stream: Sender) -> None:
        self.stream = stream
        self._health = health
        self._name: str | None = None
        """None before the request."""
        self._sent: int | None = None

    def notify(self) -> None:
        """Send the status if it is not the one sent last; without effect before the request."""
        if self._name is None:
            return
        status = self._health.status(self._name)
        if status != self._sent:
            self._sent = status
            self.stream.send(HealthCheckResponse(status=status).SerializeToString())

    def receive(self, message: bytes) -> None:
        # gRPC's statuscodes.md: a request of the wrong number of messages is UNIMPLEMENTED.
        if self._name is not None:
            self.stream.finish(RpcError(Status.UNIMPLEMENTED, "Watch takes one request, this is another"))
            return
        try:
            self._name = _decode_name(message)
        except RpcError as error:
            self.stream.finish(error)
        else:
            self.notify()

    def half_close(self) -> None:
        if self._name is None:
            self.stream.finish(RpcError(Status.UNIMPLEMENTED, "Watch takes one request, there was none"))

    def closed(self) -> None:
        self._health.forget(self)


def _decode_name(body: bytes) -> str:
    """The name of the service in question."""
    try:
        return HealthCheckRequest.FromString(body).service
    except DecodeError as error:
        raise RpcError(Status.INVALID_ARGUMENT, f"the message is not a HealthCheckRequest: {error}") from error
