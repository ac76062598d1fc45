"""Two regions that lease from one home: together they allow the limit, whatever dies, stops or is cut off."""

import json
import re
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest

from ratelimit_service.api.generated.envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest, RateLimitResponse
from ratelimit_service.api.ratelimit import ShouldRateLimit
from tests.processes import Service, ask, eventually, start_service
from tests.redis import Redis, start_redis
from tests.stories.callers import call

LIMIT = 500
KINDS = ("fixed", "floored", "estimate", "parts", "bucket")
ALL_LENT = KINDS[:-1]
"""A bucket is charged what it lends as if at the lease's end, so it never lends all that it holds at once."""
RULES = """
domain: shop
descriptors:
  - {key: fixed, rate_limit: {unit: year, requests_per_unit: 500, regions: leased}}
  - {key: floored, rate_limit: {unit: year, requests_per_unit: 500, regions: leased, floor: 10%}}
  - {key: estimate, rate_limit: {unit: year, requests_per_unit: 500, regions: leased, algorithm: sliding_window}}
  - {key: parts, rate_limit: {unit: year, requests_per_unit: 500, regions: leased, algorithm: sub_windows}}
  - {key: bucket, rate_limit: {unit: year, requests_per_unit: 500, regions: leased, algorithm: token_bucket}}
  - {key: opens, rate_limit: {unit: year, requests_per_unit: 500, regions: leased, on_store_failure: open}}
  - {key: central, rate_limit: {unit: year, requests_per_unit: 500, regions: central}}
  - {key: own, rate_limit: {unit: year, requests_per_unit: 500}}
"""


class Region:
    """A region's Redis, its services, and many calls under way to each."""

    def __init__(self, redis: Redis, services: Sequence[Service], stack: ExitStack) -> None:
        self.redis = redis
        self.services = services
        channels = [stack.enter_context(grpc.insecure_channel(f"127.0.0.1:{each.grpc_port}")) for each in services]
        self.asking: list[Any] = [
            channel.unary_unary(ShouldRateLimit.path, RateLimitRequest.SerializeToString, RateLimitResponse.FromString)
            for channel in channels
        ]

    def total(self, metric: str) -> int:
        """The sum of a metric over its services."""
        return sum(
            int(found)
            for service in self.services
            for found in re.findall(rf"^{metric} (\d+)$", service.metrics(), re.MULTILINE)
        )


class World(NamedTuple):
    """The regions, and their home."""

    eu: Region
    us: Region
    home: Redis

    def ask(self, kinds: Sequence[str], calls: int, *regions: Region) -> tuple[Counter[str], Counter[str]]:
        """So many calls of each kind to each service, all at once: how many were allowed, and how many failed."""
        under_way = []
        for kind in kinds:
            request = RateLimitRequest(domain="shop")
            request.descriptors.add().entries.add(key=kind, value="1")
            for region in regions or (self.eu, self.us):
                under_way += [(kind, ask.future(request, timeout=20)) for ask in region.asking for _ in range(calls)]
        allowed: Counter[str] = Counter()
        failed: Counter[str] = Counter()
        for kind, answer in under_way:
            try:
                allowed[kind] += answer.result().overall_code == RateLimitResponse.OK
            except grpc.RpcError:
                failed[kind] += 1
        return allowed, failed


def knows_home(service: Service) -> bool:
    return "ratelimit_region_settings_agree{" in service.metrics()


@contextmanager
def world(folder: Path, *, in_eu: int = 1, **settings: str) -> Iterator[World]:
    """Two regions, each with a Redis and services of its own; `in_eu` is how many of these `eu` has."""
    with ExitStack() as stack:
        home = stack.enter_context(start_redis(folder / "home"))
        regions = []
        for name, instances in (("eu", in_eu), ("us", 1)):
            redis = stack.enter_context(start_redis(folder / name))
            environ = {
                "REDIS_URL": f"127.0.0.1:{redis.port}",
                "HOME_REDIS_URL": f"127.0.0.1:{home.port}",
                "REGIONS": "eu,us",
                "REGION": name,
                "STORE_DEADLINE": "10s",
                "LEASES": "auto",
            }
            services = [
                stack.enter_context(start_service(folder / f"{name}{number}", RULES, environ | settings))
                for number in range(instances)
            ]
            for service in services:
                eventually(partial(knows_home, service), "home is read")
            regions.append(Region(redis, services, stack))
        yield World(regions[0], regions[1], home)


@pytest.mark.slow
def test_two_regions_and_their_callers_admit_exactly_the_limit_and_hardly_ask(tmp_path: Path) -> None:
    with world(tmp_path, WORKERS="2") as of, ExitStack() as stack:
        ports = [region.services[0].grpc_port for region in (of.eu, of.us) for _ in range(2)]
        kinds = [f"{kind}:1" for kind in KINDS]
        counted = stack.enter_context(call(ports, 200, kinds)).allowed()
        allowed = Counter({kind: counted[f"{kind}:1"] for kind in KINDS})
        assert max(allowed.values()) <= LIMIT
        asks = of.eu.total("ratelimit_region_asks_total") + of.us.total("ratelimit_region_asks_total")
        assert 0 < asks < 0.05 * len(ports) * 200 * len(KINDS)

        def is_used_up() -> bool:
            """What one region holds while the other one is denied is allowed there."""
            allowed.update(of.ask(KINDS, 20)[0])
            return all(allowed[kind] == LIMIT for kind in ALL_LENT)

        eventually(is_used_up, "all of each limit is used")
        assert not sum(of.ask(ALL_LENT, 50)[0].values())
        assert 0.85 * LIMIT <= allowed["bucket"] <= LIMIT
        assert (
            of.eu.total("ratelimit_region_units_burnt_total") == of.us.total("ratelimit_region_units_burnt_total") == 0
        )


@pytest.mark.slow
def test_what_dies_or_stops_adds_nothing_and_takes_away_what_it_had_asked_for(tmp_path: Path) -> None:
    with world(tmp_path, in_eu=2) as of:
        allowed: Counter[str] = Counter()
        failed: Counter[str] = Counter()
        for turn in range(50):
            match turn:
                case 10:
                    of.eu.services[0].kill()
                    of.eu.services = of.eu.services[1:]
                    del of.eu.asking[0]
                case 20:
                    of.home.send(signal.SIGSTOP)
                case 23:
                    of.home.send(signal.SIGCONT)
            for sums, found in zip((allowed, failed), of.ask(KINDS, 5), strict=True):
                sums.update(found)
        for _ in range(5):
            allowed.update(of.ask(KINDS, 50)[0])

        assert max(allowed.values()) <= LIMIT
        lost = of.eu.total("ratelimit_region_units_burnt_total") + of.us.total("ratelimit_region_units_burnt_total")
        # Of the process that died it is not known what it had asked for: at most what home lends at once.
        least = LIMIT - LIMIT // 4 - lost - max(failed.values(), default=0)
        assert all(allowed[kind] >= least for kind in ALL_LENT), (allowed, failed, lost)


def test_cut_off_a_region_has_its_floor_or_its_policies_stays_healthy_and_heals(tmp_path: Path) -> None:
    with world(tmp_path, REDIS_HEALTH_CHECK_ACTIVE_CONNECTION="true", ON_STORE_FAILURE="closed") as of:
        of.home.send(signal.SIGSTOP)
        kinds = ("floored", "opens", "fixed", "central", "own")
        allowed, failed = of.ask(kinds, 60, of.eu)

        assert allowed == {"floored": 50, "opens": 60, "fixed": 0, "central": 0, "own": 60}
        assert not failed
        (service,) = of.eu.services
        service.wait_until(lambda: "ratelimit_region_home_healthy 0" in service.metrics(), "the home is missed")
        assert service.healthy
        (trouble,) = json.loads(ask(service.debug_port, "/status").body)["troubles"]
        assert re.fullmatch(r"Redis at 127\.0\.0\.1:\d+ \(home\) is lost", trouble["what"])
        assert trouble["meanwhile"].startswith(
            "only limits that regions share need it: those with a floor keep it, and of the others requests are refused"
        )
        assert re.search(r"store lost: Redis at 127\.0\.0\.1:\d+ \(home\): no answer in time", service.log)

        of.home.send(signal.SIGCONT)
        regained: Counter[str] = Counter()

        def is_used_up() -> bool:
            regained.update(of.ask(("floored", "central"), 50)[0])
            return regained["floored"] >= LIMIT - 50 and regained["central"] >= LIMIT - 60

        eventually(is_used_up, "all that home has is lent again")
        # Of central hits that were sent when the home stopped it knows later, though they were answered without it.
        assert regained["floored"] == LIMIT - 50
        assert regained["central"] <= LIMIT
        service.wait_until(lambda: "ratelimit_region_home_healthy 1" in service.metrics(), "the home is there again")


@pytest.mark.slow
def test_a_region_without_its_own_redis_answers_by_policy_and_the_other_one_goes_on(tmp_path: Path) -> None:
    with world(tmp_path, ON_STORE_FAILURE="closed", STORE_DEADLINE="1s") as of:
        allowed = of.ask(KINDS, 20)[0]
        of.us.redis.kill()
        for _ in range(6):
            found, failed = of.ask(KINDS, 50)
            allowed.update(found)
            assert not failed

        # The lease that was in that Redis is lost, and the floor of that region is not allowed elsewhere.
        assert all(LIMIT // 2 < allowed[kind] <= LIMIT for kind in ALL_LENT), allowed
