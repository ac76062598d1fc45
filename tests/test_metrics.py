"""Metrics as Prometheus reads them: prometheus_client's parser is the reader, which is not ours."""

import logging
import os
import re
from collections.abc import Generator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from ratelimit_service.api.health import Health
from ratelimit_service.api.ratelimit import ShouldRateLimit
from ratelimit_service.api.response import ResponseEncoder
from ratelimit_service.api.rlqs import read_id
from ratelimit_service.errors import Problem
from ratelimit_service.limiter.limiter import Limiter
from ratelimit_service.limiter.quotas import Quotas
from ratelimit_service.limiter.turns import TurnQueues
from ratelimit_service.model import Descriptor, Limit, Request, Unit
from ratelimit_service.rules.loading import Loading
from ratelimit_service.rules.sources.files import RulesFiles
from ratelimit_service.rules.sources.source import Documents, SourceConnection
from ratelimit_service.server.admin.access import Access
from ratelimit_service.server.admin.connection import HttpConnections, LoopSlots
from ratelimit_service.server.admin.tls import HttpTls
from ratelimit_service.server.metrics import Metrics, _tally_metrics, connection_metrics
from ratelimit_service.server.series import emptied, envoyproxy_text, plain, sum_tallies
from ratelimit_service.server.state import ServiceState
from ratelimit_service.settings import load_settings
from ratelimit_service.stores import open_store
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.telemetry.latency import Latency
from ratelimit_service.telemetry.logs import ThrottledLog
from ratelimit_service.telemetry.metric import Metric, head, label_text, line
from ratelimit_service.telemetry.tally import ByteBudget
from ratelimit_service.transports.http2.counts import Counts
from ratelimit_service.transports.lag import of_lag
from ratelimit_service.transports.options import Tls
from ratelimit_service.transports.tls import Certificates
from tests.books import book
from tests.clocks import Clock
from tests.processes import ROOT
from tests.transports.certificates import authority, issue
from tests.verdicts import check

RULES = """
    domain: shop
    descriptors:
      - key: user
        rate_limit: {unit: minute, requests_per_unit: 10}
      - key: plan
        value: free
        descriptors:
          - key: path
            shadow_mode: true
            rate_limit: {unit: minute, requests_per_unit: 1}
          - key: region
            value: eu
            descriptors:
              - key: path
                value: /a
                descriptors:
                  - key: verb
                    value: GET
                    rate_limit: {unit: minute, requests_per_unit: 5}
      - key: vip
        rate_limit: {unlimited: true}
"""

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def transport_metrics() -> Sequence[Metric]:
    """The metrics of a transport that has ended two connections and has three."""
    counts = Counts()
    counts.ended["enhance_your_calm"] += 2
    return (*counts.metrics(connections=3, streams=7, memory=50, received=100, sent=200), of_lag(Latency()))


class RunningWorker(NamedTuple):
    """A worker whose process is this one."""

    number: int
    connections: int
    pid: int = os.getpid()
    ready: bool = True
    age_seconds: float = 60
    restarts: int = 0


class TwoWorkers:
    """Two workers, after seven that died."""

    alive = (RunningWorker(1, 4), RunningWorker(2, 0))
    deaths = 7
    last_deaths = ()

    async def refresh(self) -> None:
        """They have counted nothing."""


def _http_metrics() -> list[Metric]:
    """Those of the HTTP ports."""
    warnings = ThrottledLog(logging.getLogger("tests"), Clock())
    access = Access("", read_needs_token=False, warnings=warnings)
    return [*HttpConnections(500, warnings).metrics(), *access.metrics()]


class Parts:
    """What metrics are read from."""

    def __init__(
        self,
        rules: str = RULES,
        *,
        max_values: int = 1000,
        labels: tuple[tuple[str, str], ...] = (),
        workers: TwoWorkers | None = None,
    ) -> None:
        self.limiter = Limiter(MemoryStore(1000, Clock()), max_values=max_values)
        self.limiter.book = book(rules, max_values=max_values)
        self.method = ShouldRateLimit(self.limiter, ResponseEncoder())
        self.loading = Loading([RulesFiles(Path("rules"))], lambda *_: book(), lambda _: None)
        self.health = Health()
        self.metrics = Metrics(
            ServiceState(self.limiter, self.method, self.loading, self.health, transport_metrics, workers),
            extra_labels=labels,
            http=_http_metrics,
        )

    def ask(self, *entries: tuple[str, str], domain: str = "shop", cost: int = 1, limit: Limit | None = None) -> None:
        check(self.limiter, Request(domain, [Descriptor(entries, cost, override=limit)]))

    def text(self) -> str:
        return "".join(self.metrics.exposition()) + self.metrics.process()

    def series(self) -> Series:
        """All of them; a name or labels that stand twice are an error."""
        found: Series = {}
        for family in text_string_to_metric_families(self.text()):
            for sample in family.samples:
                # The parser gives every counter the suffix that envoyproxy's have not.
                name = sample.name if sample.name in self.text() else sample.name.removesuffix("_total")
                key = name, frozenset(sample.labels.items())
                assert key not in found, f"{key} stands twice"
                found[key] = sample.value
        return found


def last_of(steps: Generator[str, None, Any]) -> Any:
    """What a generator returns."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def labelled(**labels: str) -> frozenset[tuple[str, str]]:
    return frozenset(labels.items())


def series_of(parts: Parts, name: str) -> dict[frozenset[tuple[str, str]], float]:
    return {labels: value for (of, labels), value in parts.series().items() if of == name}


def rule_series(parts: Parts, stat: str) -> dict[frozenset[tuple[str, str]], float]:
    return series_of(parts, f"ratelimit_service_rate_limit_{stat}")


def test_a_rule_has_envoyproxys_names_and_labels_with_the_levels_below_the_second_in_key3() -> None:
    parts = Parts()
    for _ in range(12):
        parts.ask(("user", "ada"))
    parts.ask(("plan", "free"), ("path", "/a"), cost=3)
    parts.ask(("plan", "free"), ("region", "eu"), ("path", "/a"), ("verb", "GET"))

    one = labelled(domain="shop", key1="user")
    two = labelled(domain="shop", key1="plan_free", key2="path")
    four = labelled(domain="shop", key1="plan_free", key2="region_eu", key3="path_/a.verb_GET")
    assert rule_series(parts, "total_hits") == {one: 12, two: 3, four: 1}
    assert rule_series(parts, "within_limit") == {one: 10, two: 0, four: 1}
    assert rule_series(parts, "near_limit") == {one: 2, two: 1, four: 0}
    assert rule_series(parts, "over_limit") == {one: 2, two: 2, four: 0}
    assert rule_series(parts, "shadow_mode") == {two: 2}


def test_envoyproxys_counters_are_counters_without_a_suffix() -> None:
    parts = Parts()
    parts.ask(("user", "ada"))

    text = parts.text()

    assert "# TYPE ratelimit_service_rate_limit_total_hits counter\n" in text
    assert 'ratelimit_service_rate_limit_total_hits{domain="shop",key1="user"} 1\n' in text


def test_what_is_rare_is_a_series_once_it_has_happened() -> None:
    parts = Parts()
    before = rule_series(parts, "total_negative_hits")
    parts.ask(("user", "ada"), cost=-2)
    parts.ask(("vip", "bob"), cost=4)

    assert before == {}
    assert rule_series(parts, "total_negative_hits") == {labelled(domain="shop", key1="user"): 2}
    assert rule_series(parts, "unlimited_total") == {labelled(domain="shop", key1="vip"): 4}
    assert labelled(domain="shop", key1="vip") not in rule_series(parts, "total_hits")


def test_a_replaced_hit_is_counted_at_the_rule_it_would_have_met() -> None:
    parts = Parts("""
        domain: shop
        descriptors:
          - key: user
            rate_limit: {unit: minute, requests_per_unit: 10, name: each}
          - key: vip
            rate_limit: {unit: minute, requests_per_unit: 99, replaces: [{name: each}]}
    """)
    both = [Descriptor((("user", "ada"),)), Descriptor((("vip", "ada"),))]
    check(parts.limiter, Request("shop", both))

    assert rule_series(parts, "replaced_total") == {labelled(domain="shop", key1="user"): 1}


def test_limits_of_a_list_are_rules_named_by_their_window() -> None:
    parts = Parts("""
        domain: shop
        descriptors:
          - key: user
            rate_limits:
              - {unit: second, requests_per_unit: 1, exceed: 1}
              - {unit: day, requests_per_unit: 10}
    """)
    for _ in range(3):
        parts.ask(("user", "ada"))

    second = labelled(domain="shop", key1="user", key2="per_second")
    day = labelled(domain="shop", key1="user", key2="per_day")
    assert rule_series(parts, "total_hits") == {second: 3, day: 3}
    assert rule_series(parts, "within_limit") == {second: 1, day: 2}
    assert rule_series(parts, "exceeded_total") == {second: 1}
    assert rule_series(parts, "over_limit") == {second: 1, day: 0}
    assert rule_series(parts, "spared_total") == {second: 0, day: 1}


def test_the_limit_and_the_place_of_a_rule_can_be_joined_with_its_counters() -> None:
    parts = Parts("""
        domain: shop
        descriptors:
          - key: user
            rate_limit: {unit: minute, requests_per_unit: 10, name: each, algorithm: token_bucket}
          - key: path
            value_to_metric: true
            rate_limits:
              - {unit: second, requests_per_unit: 1}
              - {unit: 5 minutes, requests_per_unit: 100}
          - key: vip
            rate_limit: {unlimited: true}
    """)
    parts.ask(("path", "/a"))

    user, vip = {"domain": "shop", "key1": "user"}, {"domain": "shop", "key1": "vip"}
    second, minutes = ({"domain": "shop", "key1": "path_/a", "key2": f"per_{span}"} for span in ("second", "5_minutes"))
    assert series_of(parts, "ratelimit_rule_limit") == {
        labelled(**user): 10,
        labelled(**second): 1,
        labelled(**minutes): 100,
    }
    assert series_of(parts, "ratelimit_rule_info").keys() == {
        labelled(**user, name="each", place="1.yaml:5", algorithm="token_bucket", window="minute"),
        labelled(**second, place="1.yaml:9", algorithm="fixed_window", window="second"),
        labelled(**minutes, place="1.yaml:10", algorithm="fixed_window", window="5 minutes"),
        labelled(**vip, place="1.yaml:12"),
    }
    assert series_of(parts, "ratelimit_rule_limit").keys() <= rule_series(parts, "total_hits").keys()


def test_a_rule_tells_whether_all_callers_share_its_counter_and_whether_it_is_in_shadow_mode() -> None:
    """RatelimitNearLimit asks for the first and not the second: a small limit of each user is near all the time."""
    parts = Parts("""
        domain: shop
        descriptors:
          - {key: plan, value: free, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 10}}
          - key: plan
            value: paid
            descriptors:
              - {key: user, rate_limit: {unit: minute, requests_per_unit: 10}}
              - {key: path, value: /cart, rate_limit: {unit: minute, requests_per_unit: 10}}
          - {key: user, value: a*, rate_limit: {unit: minute, requests_per_unit: 10}}
          - {key: user, value: b*, share_threshold: true, rate_limit: {unit: minute, requests_per_unit: 10}}
          - {key: method, values: [GET], rate_limit: {unit: minute, requests_per_unit: 10}}
          - {key: vip, value: ada, rate_limit: {unlimited: true}}
        default: {share_threshold: true, rate_limit: {unit: minute, requests_per_unit: 10}}
    """)
    any_domain = Parts("""
        domain: "*"
        descriptors: [{key: plan, value: free, rate_limit: {unit: minute, requests_per_unit: 10}}]
    """)
    info = [dict(labels) for labels in series_of(parts, "ratelimit_rule_info")]

    def named(label: str, value: str) -> list[tuple[str, ...]]:
        return [(each["key1"], *filter(None, [each.get("key2")])) for each in info if each.get(label) == value]

    assert named("counter", "shared") == [("plan_free",), ("plan_paid", "path_/cart"), ("user_b*",), ("default",)]
    assert named("shadow", "true") == [("plan_free",)]
    assert [dict(labels).get("counter") for labels in series_of(any_domain, "ratelimit_rule_info")] == [None]


def test_rules_that_come_out_under_the_same_labels_have_one_limit() -> None:
    parts = Parts("""
        domain: shop
        descriptors:
          - key: "a:b"
            rate_limit: {unit: minute, requests_per_unit: 10}
          - key: a_b
            rate_limit: {unit: minute, requests_per_unit: 20}
    """)

    assert series_of(parts, "ratelimit_rule_limit") == {labelled(domain="shop", key1="a_b"): 10}
    assert len(series_of(parts, "ratelimit_rule_info")) == 1


def test_requests_are_counted_by_domain_and_outcome_from_the_start() -> None:
    parts = Parts()
    before = series_of(parts, "ratelimit_requests_total")
    parts.ask(("user", "ada"), cost=11)
    parts.ask(("nobody", "x"), domain="elsewhere")

    after = series_of(parts, "ratelimit_requests_total")
    assert set(before.values()) == {0}
    assert {labels: value for labels, value in after.items() if value} == {
        labelled(domain="shop", outcome="refused"): 1,
        labelled(domain="other", outcome="unlimited"): 1,
    }
    assert before.keys() == after.keys()


def test_descriptors_that_no_rule_fits_are_counted_by_domain() -> None:
    parts = Parts()
    parts.ask(("nobody", "x"))

    assert series_of(parts, "ratelimit_unmatched_descriptors_total") == {
        labelled(domain="shop"): 1,
        labelled(domain="other"): 0,
    }


def test_domains_that_come_out_under_the_same_label_are_one_series() -> None:
    parts = Parts()
    parts.limiter.domains.add_domains(["a:b", "a_b"])
    parts.limiter.domains.of("a:b").unmatched = 1
    parts.limiter.domains.of("a_b").unmatched = 2

    assert series_of(parts, "ratelimit_unmatched_descriptors_total")[labelled(domain="a_b")] == 3


def test_answers_by_policy_are_series_of_their_own() -> None:
    parts = Parts(labels=(("env", "test"),))
    rule = next(iter(parts.limiter.book.rules if parts.limiter.book is not None else ()))
    rule.tally.count_by_policy(3, "open", "allowed")
    rule.tally.count_by_policy(2, "error", "failed")

    here = {"domain": "shop", "key1": "user", "env": "test"}
    assert series_of(parts, "ratelimit_rule_policy_answers_total") == {
        labelled(**here, policy="open", outcome="allowed"): 3,
        labelled(**here, policy="error", outcome="failed"): 2,
    }
    assert rule_series(parts, "total_hits")[labelled(**here)] == 0


def test_values_of_requests_are_capped_and_the_rest_is_summed_as_other() -> None:
    parts = Parts(
        """
        domain: shop
        descriptors:
          - key: user
            detailed_metric: true
            rate_limit: {unit: minute, requests_per_unit: 10}
        """,
        max_values=2,
    )
    for user in range(100):
        parts.ask(("user", str(user)))
        parts.ask(("a", "b"), domain=f"unknown{user}")
        parts.ask(("x", str(user)), limit=Limit(5, Unit.SECOND, Unit.SECOND.window))

    hits = rule_series(parts, "total_hits")
    assert sorted(value for labels, value in hits.items()) == [1, 1, 1, 1, 98, 98]
    assert hits[labelled(domain="shop", key1="user_0")] == 1
    assert hits[labelled(domain="shop", key1="x_0")] == 1
    assert hits[labelled(domain="other")] == 98
    assert rule_series(parts, "domain_not_found") == {
        labelled(domain="unknown0"): 1,
        labelled(domain="unknown1"): 1,
        labelled(domain="other"): 98,
    }


DETAILED = """
    domain: shop
    descriptors:
      - key: user
        detailed_metric: true
        rate_limit: {unit: minute, requests_per_unit: 10, exceed: 1}
"""


@pytest.mark.parametrize("text", ["", "é" * 500, '"' * 500, "\U0001f600" * 500])
def test_values_take_no_more_bytes_of_the_text_than_their_tallies_may(text: str) -> None:
    parts, empty = Parts(DETAILED), Parts(DETAILED)
    assert parts.limiter.book is not None
    [rule] = parts.limiter.book.rules
    assert rule.tallies is not None
    room = ByteBudget(1_000_000)
    rule.tallies.use_budget(room)
    for number in range(1000):
        for cost in (8, 2, 2, -2):  # within the limit, near, above, refunded
            parts.ask(("user", f"{number}{text}"), cost=cost)
    for tally in dict(rule.tallies.items()).values():
        for policy in ("open", "closed"):
            tally.count_by_policy(10**9, policy, "allowed")

    assert len(parts.text().encode()) - len(empty.text().encode()) < 1_000_000
    assert room.left < 10_000


def test_no_block_of_the_text_is_of_more_than_a_hundred_series_that_are_shown_or_not() -> None:
    class Counting(dict[str, Any]):
        looked_at = 0

        def items(self) -> Any:
            for item in super().items():
                Counting.looked_at += 1
                yield item

    parts = Parts(DETAILED)
    for user in range(250):
        parts.ask(("user", str(user)))
    sums = Counting(last_of(sum_tallies(parts.limiter, str)))
    steps = [Counting.looked_at for _ in _tally_metrics(sums)]

    assert max(after - before for before, after in pairwise([0, *steps])) == 100
    assert len(list(emptied(sums))) == 3


def test_tallies_that_come_out_under_the_same_labels_are_one_series() -> None:
    parts = Parts("""
        domain: shop
        descriptors:
          - key: a:b
            rate_limit: {unit: minute, requests_per_unit: 10}
          - key: a|b
            rate_limit: {unit: minute, requests_per_unit: 10}
    """)
    parts.ask(("a:b", ""))
    parts.ask(("a|b", ""))
    parts.ask(("a_b", ""), limit=Limit(5, Unit.SECOND, Unit.SECOND.window))
    for domain in ("x:y", "x_y"):
        parts.ask(("a", "b"), domain=domain)

    assert rule_series(parts, "total_hits") == {labelled(domain="shop", key1="a_b"): 3}
    assert rule_series(parts, "domain_not_found") == {labelled(domain="x_y"): 2}


def test_parts_of_names_are_written_as_envoyproxy_writes_them() -> None:
    assert envoyproxy_text("remote_address_10.1.2.3") == "remote_address_10_1_2_3"
    assert envoyproxy_text("host_www.example.com") == "host_www.example.com"
    assert envoyproxy_text("path:/a|b") == "path_/a_b"
    assert plain("a\nratelimit.x: 1") == "a_ratelimit.x_ 1"


def test_the_service_as_a_whole_is_counted() -> None:
    parts = Parts()
    parts.limiter.totals.store_errors = 3
    parts.limiter.totals.global_shadow_mode = 4
    parts.loading.successes, parts.loading.last_success = 5, 1_700_000_000_500_000
    parts.loading.failures = 6
    parts.health.set_rules_loaded(True)
    parts.method.call(b"", lambda _: None)
    parts.ask(("user", "ada"))
    parts.ask(("user", "bob"))
    parts.loading.feeds[0].good = Documents((), "v1")

    series = parts.series()
    assert series["ratelimit_service_should_rate_limit_error", labelled(err_type="service_error")] == 1
    assert series["ratelimit_service_should_rate_limit_error", labelled(err_type="redis_error")] == 3
    assert series["ratelimit_service_total_requests", labelled(grpc_method="ShouldRateLimit")] == 1
    assert series["ratelimit_service_global_shadow_mode", labelled()] == 4
    assert series["ratelimit_service_config_load_success", labelled()] == 5
    assert series["ratelimit_service_config_load_error", labelled()] == 6
    assert series["ratelimit_rules", labelled()] == 4
    assert series["ratelimit_domains", labelled()] == 1
    assert series["ratelimit_reload_last_success_timestamp_seconds", labelled()] == 1_700_000_000.5
    assert series["ratelimit_reload_last_attempt_successful", labelled()] == 1
    assert series["ratelimit_rules_source_info", labelled(source="files", version="v1")] == 1
    assert series["ratelimit_store_counters", labelled(store="memory")] == 2
    assert series["ratelimit_store_evicted_counters_total", labelled(store="memory")] == 0
    assert series["ratelimit_store_healthy", labelled(store="memory")] == 1
    assert series["ratelimit_serving", labelled()] == 1
    assert any(name == "ratelimit_build_info" for name, _ in series)
    assert series["process_resident_memory_bytes", labelled()] > 1_000_000


def test_rules_that_could_not_be_loaded_show() -> None:
    parts = Parts()
    parts.loading.successes = 1
    parts.loading.feeds[0].problems = (Problem("a.yaml", 1, 1, "wrong"),)

    assert parts.series()["ratelimit_reload_last_attempt_successful", labelled()] == 0


def test_latency_is_a_histogram_with_envoyproxys_buckets() -> None:
    parts = Parts()
    parts.method.latency.observe(3_000_000)
    parts.method.latency.observe(300_000_000)
    parts.method.latency.observe(30_000_000_000)

    series = parts.series()
    name = "ratelimit_service_response_time_seconds"
    assert series[f"{name}_bucket", labelled(grpc_method="ShouldRateLimit", le="0.0025")] == 0
    assert series[f"{name}_bucket", labelled(grpc_method="ShouldRateLimit", le="0.005")] == 1
    assert series[f"{name}_bucket", labelled(grpc_method="ShouldRateLimit", le="10.0")] == 2
    assert series[f"{name}_bucket", labelled(grpc_method="ShouldRateLimit", le="+Inf")] == 3
    assert series[f"{name}_count", labelled(grpc_method="ShouldRateLimit")] == 3
    assert series[f"{name}_sum", labelled(grpc_method="ShouldRateLimit")] == 30.303


def test_extra_labels_stand_on_every_series_and_give_way_to_ours() -> None:
    parts = Parts(labels=(("env", 'a "b"'), ("domain", "x")))
    parts.ask(("user", "ada"))

    series = parts.series()
    assert {dict(labels).get("env") for _, labels in series} == {'a "b"'}
    assert {dict(labels).get("exported_domain") for _, labels in series} == {"x"}
    ours = labelled(domain="shop", key1="user", env='a "b"', exported_domain="x")
    assert series["ratelimit_service_rate_limit_total_hits", ours] == 1


@given(st.dictionaries(st.sampled_from(["domain", "key1", "key2"]), st.text(min_size=1)))
def test_any_text_comes_back_from_a_label_as_it_was(labels: dict[str, str]) -> None:
    text = head("name", "gauge", "A\nmeaning \\ of it.") + line("name", label_text(labels.items()), 7)

    (family,) = text_string_to_metric_families(text)
    assert family.documentation == "A\nmeaning \\ of it."
    assert [(sample.labels, sample.value) for sample in family.samples] == [(labels, 7)]


def test_no_block_of_a_scrape_is_long_however_many_rules_there_are() -> None:
    rules = "".join(
        f"  - {{key: k{number}, rate_limit: {{unit: day, requests_per_unit: 1}}}}\n" for number in range(2000)
    )
    parts = Parts(f"domain: shop\ndescriptors:\n{rules}")

    blocks = list(parts.metrics.exposition())

    assert sum(block.count("\n") for block in blocks) > 8000
    assert max(block.count("\n") for block in blocks) <= 100


WAITING = """
    domain: shop
    descriptors:
      - key: mail
        rate_limit: {algorithm: leaky_bucket, unit: second, requests_per_unit: 2, queue: {max_delay: "2 seconds"}}
      - {key: "mail:", rate_limit: {algorithm: leaky_bucket, unit: day, requests_per_unit: 2, queue: {max_delay: 1s}}}
      - key: path
        value: /export
        descriptors:
          - {key: id, rate_limit: {concurrency: 2, hold: 60s, place: id}}
"""


def test_rules_with_queues_and_places_have_gauges_from_the_start_and_others_none() -> None:
    parts = Parts(WAITING)
    names = ("queue_requests", "queue_longest_wait_seconds", "places_taken", "leases_held", "lease_units_held")

    def gauges() -> dict[str, list[tuple[str, float]]]:
        series = parts.series()
        return {
            short: [
                (dict(labels)["key1"], value)
                for (name, labels), value in series.items()
                if name.endswith(f"rule_{short}")
            ]
            for short in names
        }

    before = gauges()
    parts.ask(("path", "/export"), ("id", "1"))
    parts.ask(("path", "/export"), ("id", "1"), cost=-1)
    for _ in range(3):
        plan = parts.limiter.plan(Request("shop", [Descriptor((("mail", "x"),))]))
        parts.limiter.decide_later(plan, lambda _: None)

    assert before == {
        "queue_requests": [("mail", 0), ("mail_", 0)],
        "queue_longest_wait_seconds": [("mail", 0), ("mail_", 0)],
        "places_taken": [("path_/export", 0)],
        "leases_held": [],
        "lease_units_held": [],
    }
    assert gauges() == before | {
        "queue_requests": [("mail", 2), ("mail_", 0)],
        "queue_longest_wait_seconds": [("mail", 1), ("mail_", 0)],
        "places_taken": [("path_/export", 1)],
    }


RESERVES = """
    domain: shop
    settle: settled
    descriptors:
      - key: id
        rate_limit: {unit: day, requests_per_unit: 100000, reserve: {id: id, hold: 5m, estimate: 400}}
      - {key: user, rate_limit: {unit: day, requests_per_unit: 100}}
"""


def test_rules_that_reserve_have_series_of_what_became_of_it_from_the_start_and_others_none() -> None:
    parts = Parts(RESERVES)

    def series() -> dict[str, float]:
        found = {
            "_".join([name.removeprefix("ratelimit_rule_"), dict(labels).get("quantile", "")]).strip("_"): value
            for (name, labels), value in parts.series().items()
            if name.startswith(("ratelimit_rule_rese", "ratelimit_rule_settled"))
            if dict(labels)["key1"] == "id"
        }
        assert len(found) == sum("_rule_rese" in name or "_rule_settled" in name for name, _ in parts.series())
        return found

    before = series()
    for number in range(3):
        parts.ask(("id", f"{number}"))
    parts.ask(("id", "0"), ("settled", ""), cost=700)
    parts.ask(("id", "1"), ("settled", ""), cost=100)
    parts.ask(("id", "9"), ("settled", ""), cost=5)
    after = series()

    assert before == {
        "reservations_total": 0,
        "reserved_units_total": 0,
        "reservations_settled_total": 0,
        "reservations_overran_total": 0,
        "reservations_late_total": 0,
        "reserved_units_due_total": 0,
        "reserved_units_due_settled_total": 0,
        "reservations_open": 0,
        "reserved_units_open": 0,
        "reservations_oldest_seconds": 0,
        "reserve_estimate": 400,
    }
    assert after == before | {
        "reservations_total": 3,
        "reserved_units_total": 1200,
        "reservations_settled_total": 2,
        "reservations_overran_total": 1,
        "reservations_late_total": 1,
        "reservations_open": 1,
        "reserved_units_open": 400,
        "settled_cost_0.5": 103,
        "settled_cost_0.95": 700,
        "settled_cost_1": 700,
        "reservations_oldest_seconds": after["reservations_oldest_seconds"],
    }


def test_connections_are_told_where_the_transport_knows_them() -> None:
    series = Parts().series()

    assert series["ratelimit_grpc_connections", labelled()] == 3
    assert series["ratelimit_grpc_connections_ended_total", labelled(reason="enhance_your_calm")] == 2
    assert series["ratelimit_grpc_refused_total", labelled(limit="resets")] == 0
    assert series["ratelimit_grpc_answer_seconds_count", labelled()] == 0


def test_workers_are_told_and_their_processes_are_summed_with_their_parent() -> None:
    one, three = Parts().series(), Parts(workers=TwoWorkers()).series()

    assert three["ratelimit_worker_connections", labelled(worker="1")] == 4
    assert three["ratelimit_worker_connections", labelled(worker="2")] == 0
    assert three["ratelimit_worker_deaths_total", labelled()] == 7
    none = labelled()
    assert three["process_resident_memory_bytes", none] > 2 * one["process_resident_memory_bytes", none]
    assert three["process_max_fds", none] == one["process_max_fds", none]
    assert three["process_start_time_seconds", none] == one["process_start_time_seconds", none]


def test_the_documentation_has_every_metric_and_no_other(tmp_path: Path) -> None:
    own = issue(authority(tmp_path), "server", "DNS:localhost")
    tls = Tls(str(own.cert), str(own.key))
    of_tls = (*Certificates(tls).metrics(), *HttpTls(tls, LoopSlots()).metrics())
    redis = {"BACKEND_TYPE": "redis", "REDIS_URL": "127.0.0.1:6379"}
    regions = {"REGIONS": "eu,us", "REGION": "eu", "HOME_REDIS_URL": "127.0.0.1:6380"}
    of_redis = open_store(load_settings(redis | regions)[0]).metrics()
    of_plane = connection_metrics(SourceConnection("localhost:18000", since=0))
    parts = Parts(workers=TwoWorkers())
    of_processes = (*TurnQueues().metrics(), *Quotas(Limiter(MemoryStore(1)), read_id).metrics())
    document = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`[a-z_0-9]+`(?:, `[a-z_0-9]+`)*)(?:<br>| \|)", document, re.MULTILINE)
    documented = {name.strip("`") for row in rows for name in row.split(", ")}

    exported = set(re.findall(r"^# TYPE ([a-z_0-9]+) ", parts.text(), re.MULTILINE))

    others = (*of_tls, *of_redis, *of_plane, *of_processes)
    assert documented == exported | {metric.name for metric in others}
