"""Traces of calls as exemplars of their latency: in OpenMetrics, as prometheus_client and a Prometheus read it."""

import time
from pathlib import Path
from typing import Final

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text
from prometheus_client.samples import Exemplar

from tests import peers
from tests.deploy.dashboards import DASHBOARDS, dashboard, filled, walk
from tests.processes import Service, ask, start_service
from tests.prometheus import start_prometheus
from tests.stories.otlp import start_collector
from tests.stories.test_tracing import RULES, SAMPLED, TRACE, calling, settings
from tests.workers.pool import start_pool

OPENMETRICS: Final = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"}
"""What Prometheus says."""
UNSAMPLED: Final = {"traceparent": f"00-{TRACE[::-1]}-b7ad6b7169203331-00"}
TIMES: Final = "ratelimit_service_response_time_seconds"


def families(openmetrics: str) -> dict[str, Metric]:
    """By name; the parser is a strict one."""
    return {family.name: family for family in read_openmetrics(openmetrics)}  # type: ignore[no-untyped-call]  # it has none


def exemplars(service: Service) -> list[tuple[float, Exemplar]]:
    """Those of the calls' latency, each with its bucket's bound."""
    reply = ask(service.http_port, "/metrics", OPENMETRICS)
    assert reply.headers["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    samples = families(reply.body)[TIMES].samples
    return [(float(sample.labels["le"]), sample.exemplar) for sample in samples if sample.exemplar]


@pytest.mark.usefixtures("transport")
def test_a_sampled_trace_is_the_exemplar_of_its_bucket(tmp_path: Path) -> None:
    with (
        start_collector("http") as collector,
        start_service(tmp_path, RULES, settings(collector.port, TRACING_SAMPLING_RATE="0")) as service,
        calling(service) as caller,
    ):
        caller.ask(UNSAMPLED)
        caller.ask({})
        before = exemplars(service)
        began = time.time()
        caller.ask(SAMPLED)
        caller.ask(UNSAMPLED)
        ((bound, exemplar),) = exemplars(service)

    assert before == []
    assert exemplar.labels == {"trace_id": TRACE}
    assert 0 < exemplar.value <= bound
    assert exemplar.timestamp is not None
    assert began - 0.001 < float(exemplar.timestamp) < time.time() + 0.001


def test_traces_of_all_workers_are_exemplars(tmp_path: Path) -> None:
    with start_collector("http") as collector, start_pool(tmp_path, 2, settings(collector.port)) as pool:
        with calling(pool.service) as one, calling(pool.service) as other:
            for number, caller in enumerate((one, other) * 20, 1):
                caller.ask({"traceparent": f"00-{number:032x}-b7ad6b7169203331-01"})
        found = exemplars(pool.service)

    assert found
    assert {exemplar.labels["trace_id"] for _, exemplar in found} <= {f"{number:032x}" for number in range(1, 41)}


def test_both_formats_have_the_same_series_under_the_same_names(tmp_path: Path) -> None:
    """A counter of envoyproxy's has the type unknown, as its name has no `_total`."""
    own_port = {"USE_PROMETHEUS": "true", "PROMETHEUS_ADDR": "127.0.0.1:0"}
    with (
        start_collector("http") as collector,
        start_service(tmp_path, RULES, settings(collector.port, **own_port)) as service,
        calling(service) as caller,
    ):
        caller.ask(SAMPLED)
        text = ask(service.http_port, "/metrics").body
        openmetrics = ask(service.port("Prometheus"), "/metrics", OPENMETRICS).body

    found = families(openmetrics)
    samples = [sample for family in found.values() for sample in family.samples]
    names = {line.partition("{")[0].partition(" ")[0] for line in text.splitlines() if not line.startswith("#")}
    assert openmetrics.endswith("\n# EOF\n")
    assert " # {" not in text
    assert {sample.name for sample in samples} == names
    assert len(samples) == sum(len(family.samples) for family in read_text(text))
    assert found["ratelimit_service_rate_limit_within_limit"].type == "unknown"
    assert found["ratelimit_requests"].type == "counter"


def test_a_service_that_does_not_trace_has_the_text_format_alone(tmp_path: Path) -> None:
    """Exemplars are what OpenMetrics is for here, and the text format knows the types of envoyproxy's counters."""
    with start_service(tmp_path, RULES) as service:
        reply = ask(service.http_port, "/metrics", {"Accept": CONTENT_TYPE_LATEST})

    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


def test_the_dashboard_finds_the_trace_of_a_call(tmp_path: Path) -> None:
    """In a real Prometheus, by the query of its panel that draws exemplars."""
    peers.prometheus()
    (query,) = {node["expr"] for path in DASHBOARDS for node in walk(dashboard(path)) if node.get("exemplar")}
    with (
        start_collector("http") as collector,
        start_service(tmp_path / "s", RULES, settings(collector.port)) as service,
    ):
        with calling(service) as caller:
            caller.ask(SAMPLED)
        jobs = [{"job_name": "ratelimit", "static_configs": [{"targets": [f"127.0.0.1:{service.http_port}"]}]}]
        config = {"global": {"scrape_interval": "1s"}, "scrape_configs": jobs}
        with start_prometheus(tmp_path / "p", config, "--enable-feature=exemplar-storage") as prometheus:

            def traces() -> list[str]:
                times = {"start": str(time.time() - 600), "end": str(time.time() + 600)}
                found = prometheus.api("query_exemplars", query=filled(query), **times)
                return [each["labels"]["trace_id"] for series in found for each in series["exemplars"]]

            prometheus.wait_until(lambda: traces() == [TRACE], "Prometheus has the exemplar")
            scraped = prometheus.labels('up{job="ratelimit"} == 1')
            metadata = prometheus.api("metadata", metric="ratelimit_service_total_requests")

    assert len(scraped) == 1
    assert [each["type"] for each in metadata["ratelimit_service_total_requests"]] == ["unknown"]
