"""What workers count together: against limits, and for those who look."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ratelimit_service.api.generated.envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest, RateLimitResponse
from tests import peers
from tests.processes import ROOT, ask
from tests.stories import test_redis_story
from tests.workers.pool import ASK, RULES, Caller, Load, callers, start_pool


@pytest.mark.slow
def test_several_workers_admit_exactly_the_limit(tmp_path: Path) -> None:
    kinds = ("few:1", "many:3", "bucket:7", "log:1")
    with start_pool(tmp_path, 3, rules=test_redis_story.RULES) as pool, ExitStack() as stack:
        script = Path(test_redis_story.__file__).with_name("redis_caller.py")
        started = [
            subprocess.Popen(
                [sys.executable, str(script), str(pool.service.grpc_port), "45", *kinds],
                env={"PYTHONPATH": str(ROOT)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(6)
        ]
        for caller in started:
            stack.enter_context(caller)
            stack.callback(caller.kill)
        for caller in started:
            assert caller.stdout is not None
            assert caller.stdout.readline() == "ready\n"
        pool.wait_for_loads(2, 2, 2)
        for caller in started:
            assert caller.stdin is not None
            caller.stdin.write("go\n")
            caller.stdin.flush()
        allowed: Counter[str] = Counter()
        for caller in started:
            allowed.update(json.loads(caller.communicate(timeout=300)[0]))

    assert allowed == {"few:1": 7, "many:3": 133, "bucket:7": 42, "log:1": 100}


def test_workers_share_places_and_one_gives_back_what_another_took(tmp_path: Path) -> None:
    rules = f"{RULES[:-2]}, {{key: id, rate_limit: {{concurrency: 2, hold: 1 hour, place: id}}}}]\n"

    def question(request: str, *, back: bool = False) -> RateLimitRequest:
        asked = RateLimitRequest(domain="shop")
        descriptor = asked.descriptors.add(is_negative_hits=back)
        descriptor.entries.add(key="id", value=request)
        descriptor.hits_addend.value = 1
        return asked

    with start_pool(tmp_path, 2, rules=rules) as pool, callers(pool.service.grpc_port, 2) as (one, two):
        pool.wait_for_loads(1, 1)
        left = [
            (answer.overall_code == RateLimitResponse.OK, answer.statuses[0].limit_remaining)
            for caller, asked in [
                (one, question("a")),
                (two, question("b")),
                (one, question("c")),
                (two, question("a", back=True)),
                (one, question("c")),
            ]
            for answer in [caller.ask(question=asked)]
        ]

        assert left == [(True, 1), (True, 0), (False, 0), (True, 1), (True, 0)]
        labels = '{domain="shop",key1="id"}'
        pool.wait_for_metric(f"ratelimit_service_rate_limit_total_hits{labels}", 4)
        pool.wait_for_metric(f"ratelimit_service_rate_limit_total_negative_hits{labels}", 1)
        assert pool.metric(f"ratelimit_service_rate_limit_places_expired_total{labels}") == 0


def test_one_worker_settles_what_another_has_reserved(tmp_path: Path) -> None:
    limit = "{unit: year, requests_per_unit: 1000, reserve: {id: id, hold: 1m, estimate: 400}}"
    rules = f"settle: done\n{RULES[:-2]}, {{key: id, rate_limit: {limit}}}]\n"

    def question(request: str, settled: int | None = None) -> RateLimitRequest:
        asked = RateLimitRequest(domain="shop")
        descriptor = asked.descriptors.add()
        descriptor.entries.add(key="id", value=request)
        if settled is not None:
            descriptor.entries.add(key="done", value="1")
            descriptor.hits_addend.value = settled
        return asked

    with start_pool(tmp_path, 2, rules=rules) as pool, callers(pool.service.grpc_port, 2) as (one, two):
        pool.wait_for_loads(1, 1)
        left = [
            caller.ask(question=asked).statuses[0].limit_remaining
            for caller, asked in [
                (one, question("a")),
                (two, question("b")),
                (two, question("a", 100)),
                (one, question("b", 600)),
                (two, question("b", 600)),
            ]
        ]

        assert left == [600, 200, 500, 300, 300]


def test_what_is_shown_are_sums_of_all_workers(tmp_path: Path) -> None:
    with start_pool(tmp_path, 3) as pool, callers(pool.service.grpc_port, 6) as six:
        pool.wait_for_loads(2, 2, 2)
        with Load(six) as load:
            load.wait_for(20)
        asked = 6 + sum(load.answers)

        assert not load.failed
        labels = '{grpc_method="ShouldRateLimit"}'
        pool.wait_for_metric("ratelimit_service_total_requests", asked)
        assert pool.metric(f"ratelimit_service_response_time_seconds_count{labels}") == asked
        assert pool.metric('ratelimit_store_answer_seconds_count{store="redis"}') == asked
        assert pool.metric('ratelimit_service_rate_limit_total_hits{domain="shop",key1="user"}') == asked
        assert pool.metric('ratelimit_requests_total{domain="shop",outcome="allowed"}') == asked
        assert pool.metric("ratelimit_grpc_connections ") == 6
        assert pool.status["rules"][0]["within"] == asked
        stats = ask(pool.service.debug_port, "/stats").body
        assert f"ratelimit.service.rate_limit.shop.user.within_limit: {asked}\n" in stats
        assert f"ratelimit_server.ShouldRateLimit.total_requests: {asked}\n" in stats
        assert "shop.user: unit=YEAR requests_per_unit=1000000" in ask(pool.service.debug_port, "/rlconfig").body
        assert pool.post(ASK[:-1] + ', "hitsAddend": 1000000}').status == 429
        pool.wait_for_metric("ratelimit_service_rate_limit_denied_below_limit_total", 1_000_000 - asked)
        (rule,) = pool.status["rules"]
        assert (rule["total"], rule["within"], rule["over"]) == (asked + 1_000_000, asked, 1_000_000)


def test_nothing_that_counts_up_ever_goes_back_or_vanishes(tmp_path: Path) -> None:
    """While workers are killed one after the other, and the rules change."""
    seen: list[dict[str, float]] = []
    with start_pool(tmp_path, 3) as pool, callers(pool.service.grpc_port, 6) as six, Load(six) as load:
        load.wait_for(20)
        for number, pid in pool.pids.items():
            os.kill(pid, signal.SIGKILL)
            pool.service.write_rules(RULES.replace("1000000", f"{number}000000"))
            while pool.pids.get(number, pid) == pid:
                seen.append(counted(pool.service.metrics()))
                time.sleep(0.05)
            load.wait_for(5)
        seen.append(counted(pool.service.metrics()))

    assert len(seen[0]) > 100
    for before, after in pairwise(seen):
        assert {series: after.get(series) for series, value in before.items() if after.get(series, -1) < value} == {}
    assert seen[-1]["ratelimit_worker_deaths_total{}"] == 3


def counted(metrics: str) -> dict[str, float]:
    """Everything that is a counter, or a bucket, a sum or a count of a histogram."""
    return {
        f"{sample.name}{sample.labels}": sample.value
        for family in text_string_to_metric_families(metrics)
        for sample in family.samples
        if family.type in {"counter", "histogram"}
    }


def test_counts_go_on_across_a_reload(tmp_path: Path) -> None:
    with start_pool(tmp_path, 2) as pool, callers(pool.service.grpc_port, 4) as four:
        more = "domain: shop\ndescriptors:\n  - {key: user, rate_limit: {unit: year, requests_per_unit: 5000}}\n"
        pool.service.write_rules(more + "  - {key: other, rate_limit: {unit: year, requests_per_unit: 1}}\n")
        pool.service.wait_until(lambda: pool.service.log.count("rules loaded") == 2, "they are loaded")
        for caller in four:
            caller.ask()

        pool.wait_for_metric('ratelimit_service_rate_limit_total_hits{domain="shop",key1="user"}', 8)
        assert pool.metric('ratelimit_service_rate_limit_total_hits{domain="shop",key1="other"}') == 0


@pytest.mark.parametrize(
    ("limit", "instances", "workers", "share"),
    [
        (120, 1, 2, 120),
        (120, 3, 2, 40),
        (100, 1, 3, 102),  # 33 1/3 for each worker, rounded up
    ],
)
def test_without_redis_all_workers_together_let_their_instance_s_share_through(
    tmp_path: Path, limit: int, instances: int, workers: int, share: int
) -> None:
    rules = RULES.replace("1000000", str(limit))
    environ = {"ON_STORE_FAILURE": "local", "INSTANCES": str(instances), "STORE_DEADLINE": "50ms"}
    with start_pool(tmp_path, workers, environ, rules) as pool, ExitStack() as stack:
        pool.redis.kill()
        pool.wait_for_metric('ratelimit_store_healthy{store="redis"}', 0)
        many = [Caller(pool.service.grpc_port) for _ in range(12)]
        for caller in many:
            stack.callback(caller.close)
        codes = [caller.ask().overall_code for _ in range(15) for caller in many]
        pool.wait_for_loads(*[12 // workers] * workers)
        allowed = '{domain="shop",key1="user",policy="local",outcome="allowed"}'
        pool.wait_for_metric(f"ratelimit_rule_policy_answers_total{allowed}", share)

    assert codes.count(RateLimitResponse.OK) == share
    assert set(codes[-12:]) == {RateLimitResponse.OVER_LIMIT}


def test_health_of_the_parent_follows_that_of_the_workers(tmp_path: Path) -> None:
    with start_pool(tmp_path, 2) as pool:
        pool.wait_for_metric('ratelimit_store_healthy{store="redis"}', 1)
        pool.redis.kill()
        pool.wait_for_metric('ratelimit_store_healthy{store="redis"}', 0)

        assert pool.metric("ratelimit_serving") == 1
        assert pool.post(ASK).status == 503


def test_health_says_no_when_no_worker_has_the_redis_that_it_needs(tmp_path: Path) -> None:
    with start_pool(tmp_path, 2, {"REDIS_HEALTH_CHECK_ACTIVE_CONNECTION": "true"}) as pool:
        pool.redis.kill()

        pool.service.wait_until(lambda: not pool.service.healthy, "health follows the workers'")


def test_the_processes_memory_and_time_are_summed(tmp_path: Path) -> None:
    with start_pool(tmp_path, 3) as pool:
        resident = pool.metric("process_resident_memory_bytes")
        own = Path(f"/proc/{pool.service.pid}/statm").read_text().split()[1]

    assert resident > 3 * int(own) * 4096


def test_h2load_loses_no_request_over_workers(tmp_path: Path) -> None:
    body = tmp_path / "question"
    message = bytes.fromhex("0a0473686f70120d0a0b0a0475736572120361646112")[:-1]
    body.write_bytes(b"\0" + len(message).to_bytes(4, "big") + message)
    with start_pool(tmp_path, 2) as pool:
        command = [str(peers.h2load()), "-n", "20000", "-c", "8", "-m", "25", "-d", str(body)]
        command += ["-H", "content-type: application/grpc", "-H", "te: trailers"]
        url = f"http://127.0.0.1:{pool.service.grpc_port}/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
        report = subprocess.run([*command, url], capture_output=True, text=True, check=True, timeout=120).stdout
        pool.wait_for_metric('ratelimit_service_rate_limit_within_limit{domain="shop",key1="user"}', 20_000)

    assert "20000 succeeded, 0 failed, 0 errored, 0 timeout" in report
    assert re.search(r"status codes: 20000 2xx", report)
