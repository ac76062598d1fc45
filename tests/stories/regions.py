"""A deployment over three regions, each a place of its own with a Redis and a service; the first one has home."""

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import grpc

from ratelimit_service.api.generated.envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest, RateLimitResponse
from ratelimit_service.api.ratelimit import ShouldRateLimit
from tests.network import Place, open_network
from tests.processes import Service, start_service
from tests.redis import Redis, start_redis

ROUND_TRIPS: Final = {"eu": 0, "us": 70, "ap": 140}
"""From home, in milliseconds."""

HOME_PORT: Final = 6380


class Region:
    """One of them."""

    def __init__(self, place: Place, redis: Redis, home: Redis, service: Service, channel: grpc.Channel) -> None:
        self.place = place
        self.redis = redis
        self.home = home
        """The Redis that all regions share."""
        self.service = service
        self._should_rate_limit = channel.unary_unary(
            ShouldRateLimit.path, RateLimitRequest.SerializeToString, RateLimitResponse.FromString
        )

    def metrics(self) -> str:
        """Of its service."""
        with self.place.inside():
            return self.service.metrics()

    def start(self, key: str, calls: int, seconds: float = 60) -> Sequence[Any]:
        """So many calls, all at once; their results come later. None may take longer than these seconds."""
        request = RateLimitRequest(domain="shop")
        request.descriptors.add().entries.add(key=key, value="1")
        return [self._should_rate_limit.future(request, timeout=seconds) for _ in range(calls)]

    def ask(self, key: str, calls: int = 1) -> Counter[str]:
        """So many calls, all at once: how many were `OK`, `OVER_LIMIT`, or what their error is called."""
        return results(self.start(key, calls))


def results(calls: Sequence[Any]) -> Counter[str]:
    """How many were `OK`, `OVER_LIMIT`, or what their error is called."""
    return Counter(
        RateLimitResponse.Code.Name(call.result().overall_code)
        if call.code() is grpc.StatusCode.OK
        else call.code().name
        for call in calls
    )


def from_elsewhere(place: Place) -> Sequence[str]:
    """The options of a Redis that all places can reach."""
    return ("--bind", place.address, "--protected-mode", "no")


@contextmanager
def open_regions(
    folder: Path, rules: str, environ: Mapping[str, str], round_trips: Mapping[str, float] = ROUND_TRIPS
) -> Iterator[Mapping[str, Region]]:
    """All regions at work, by name. In the settings `{home}` is the home Redis, `{own}` that of the region."""
    with ExitStack() as stack:
        network = stack.enter_context(open_network(round_trips))
        sockets = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="regions-")))
        at_home = next(iter(network.values()))
        with at_home.inside():
            home = stack.enter_context(start_redis(folder / "home", *from_elsewhere(at_home), port=HOME_PORT))
        redis = {}
        for name, place in network.items():
            with place.inside():
                redis[name] = stack.enter_context(start_redis(folder / name, *from_elsewhere(place), port=6379))
        regions = {}
        for name, place in network.items():
            socket = sockets / name
            addresses = {"home": f"{at_home.address}:{HOME_PORT}", "own": f"{place.address}:6379", "region": name}
            settings = {setting: value.format_map(addresses) for setting, value in environ.items()}
            with place.inside():
                service = stack.enter_context(
                    start_service(folder / f"{name}-service", rules, settings | {"GRPC_UDS": str(socket)})
                )
            # The channel is of this machine: a unix socket is no part of a network.
            channel = stack.enter_context(grpc.insecure_channel(f"unix:{socket}"))
            regions[name] = Region(place, redis[name], home, service, channel)
        yield regions
