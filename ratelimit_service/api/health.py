"""grpc.health.v1: whether calls should come here.

The service is well when rules are loaded and it is not draining; and, where that was asked for, when its store can
decide. Load balancers ask once in a while (Check), or stay and are told of each change (Watch).
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
from ratelimit_service.api.method import Method, Receiver, Reply, Sender, StreamMethod
from ratelimit_service.errors import RpcError, Status
from ratelimit_service.system.clock import Clock, system_clock

NAMES: Final = ("", "ratelimit", rls_pb2.DESCRIPTOR.services_by_name["RateLimitService"].full_name)
"""What may be asked about, all one to us: the server as a whole, the name upstream uses, and the service's own."""

MOST_WATCHERS: Final = 10_000
"""Watch calls at once, 0.8 KB each. A load balancer keeps one per connection, so ten thousand serve any fleet; without
a bound, one client could open calls that cost nothing to keep until the memory is full."""

_UNAVAILABLE = RpcError(Status.UNAVAILABLE, "the service is stopping")


class Health:
    """Whether the service is well, and who wants to hear of it.

    Without `needs_store` it is well without its store too: answers then come by policy.
    """

    def __init__(self, *, needs_store: bool = False, clock: Clock = system_clock) -> None:
        self.draining_since: int | None = None
        """When it began to stop, in microseconds since the epoch."""
        self._clock = clock
        self._needs_store = needs_store
        self._decides = not needs_store
        self._loaded = False
        self._finished = False
        # A dict for its order: who came first hears first.
        self._watchers: dict[_Watcher, None] = {}

    @property
    def serving(self) -> bool:
        """Rules are loaded, the store is there if it is needed, and the service is not about to stop."""
        return self._loaded and self._decides and self.draining_since is None

    def rules_loaded(self, loaded: bool) -> None:
        """Say whether there are rules to answer by."""
        self._loaded = loaded
        self._tell()

    def store_is(self, healthy: bool) -> None:
        """Say whether the store can decide."""
        decides = healthy or not self._needs_store
        if decides != self._decides:
            self._decides = decides
            self._tell()

    def drain(self) -> None:
        """Say NOT_SERVING from now on: calls should go elsewhere."""
        self.draining_since = self._clock()
        self._tell()

    def finish(self) -> None:
        """End all Watch calls, those to come too, so that none of them holds up a stop."""
        self._finished = True
        for watcher in tuple(self._watchers):
            watcher.stream.finish(_UNAVAILABLE)

    def methods(self) -> Sequence[Method]:
        """Check and List."""
        return (_Check(self), _List(self))

    def streams(self) -> Sequence[StreamMethod]:
        """Watch."""
        return (_Watch(self),)

    def status(self, name: str) -> HealthCheckResponse.ServingStatus.ValueType:
        """How the service of that name is."""
        if name not in NAMES:
            return HealthCheckResponse.SERVICE_UNKNOWN
        return HealthCheckResponse.SERVING if self.serving else HealthCheckResponse.NOT_SERVING

    def watch(self, stream: Sender) -> Receiver:
        """Take the stream in, or end it if there are too many."""
        watcher = _Watcher(self, stream)
        if self._finished:
            stream.finish(_UNAVAILABLE)
        elif len(self._watchers) >= MOST_WATCHERS:
            stream.finish(
                RpcError(Status.RESOURCE_EXHAUSTED, f"{MOST_WATCHERS} calls watch already, the most there may be")
            )
        else:
            self._watchers[watcher] = None
        return watcher

    def forget(self, watcher: "_Watcher") -> None:
        """The stream has ended."""
        self._watchers.pop(watcher, None)

    def _tell(self) -> None:
        for watcher in tuple(self._watchers):
            watcher.tell()


class _Check:
    path = "/grpc.health.v1.Health/Check"

    def __init__(self, health: Health) -> None:
        self._health = health

    def call(self, body: bytes, reply: Reply, timeout: int | None = None) -> None:
        try:
            name = _name(body)
        except RpcError as error:
            reply(error)
            return
        status = self._health.status(name)
        if status == HealthCheckResponse.SERVICE_UNKNOWN:
            reply(RpcError(Status.NOT_FOUND, f"no service is named {name!r} here"))
        else:
            reply(HealthCheckResponse(status=status).SerializeToString())


class _List:
    path = "/grpc.health.v1.Health/List"

    def __init__(self, health: Health) -> None:
        self._health = health

    def call(self, body: bytes, reply: Reply, timeout: int | None = None) -> None:
        try:
            HealthListRequest.FromString(body)
        except DecodeError as error:
            reply(RpcError(Status.INVALID_ARGUMENT, f"the message is not a HealthListRequest: {error}"))
            return
        statuses = {name: HealthCheckResponse(status=self._health.status(name)) for name in NAMES}
        reply(HealthListResponse(statuses=statuses).SerializeToString())


class _Watch:
    path = "/grpc.health.v1.Health/Watch"

    def __init__(self, health: Health) -> None:
        self._health = health

    def open(self, stream: Sender) -> Receiver:
        return self._health.watch(stream)


class _Watcher:
    """One Watch call: says how the service is when asked, and again at each change."""

    def __init__(self, health: Health, stream: Sender) -> None:
        self.stream = stream
        self._health = health
        self._name: str | None = None
        self._told: int | None = None

    def tell(self) -> None:
        """Send the status, unless it is the one sent last or nothing was asked yet."""
        if self._name is None:
            return
        status = self._health.status(self._name)
        if status != self._told:
            self._told = status
            self.stream.send(HealthCheckResponse(status=status).SerializeToString())

    def receive(self, message: bytes) -> None:
        # gRPC's statuscodes.md: a request of the wrong number of messages is UNIMPLEMENTED.
        if self._name is not None:
            self.stream.finish(RpcError(Status.UNIMPLEMENTED, "Watch takes one request, this is another"))
            return
        try:
            self._name = _name(message)
        except RpcError as error:
            self.stream.finish(error)
        else:
            self.tell()

    def half_close(self) -> None:
        if self._name is None:
            self.stream.finish(RpcError(Status.UNIMPLEMENTED, "Watch takes one request, there was none"))

    def closed(self) -> None:
        self._health.forget(self)


def _name(body: bytes) -> str:
    try:
        return HealthCheckRequest.FromString(body).service
    except DecodeError as error:
        raise RpcError(Status.INVALID_ARGUMENT, f"the message is not a HealthCheckRequest: {error}") from error
