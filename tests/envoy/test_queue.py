"""A limit with a queue behind a real Envoy: its filter's timeout decides how long a request can wait."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic

from tests.envoy.proxy import bootstrap, by, route, start_envoy
from tests.processes import Service, eventually, start_service
from tests.stories.test_queue_story import RULES, metric


def configuration(service: Service, timeout: str | None) -> dict[str, object]:
    made = bootstrap(
        [service.grpc_port],
        [route("/backend", by(("backend", "=x"))), route("/slow", by(("slow", "=x")))],
        filter_options=None if timeout is None else {"timeout": timeout},
    )
    if timeout is None:
        (ingress, _) = made["static_resources"]["listeners"]
        (chain,) = ingress["filter_chains"]
        del chain["filters"][0]["typed_config"]["http_filters"][0]["typed_config"]["timeout"]
    return made


def test_requests_leave_envoy_at_the_limit_s_rate_where_its_timeout_fits(tmp_path: Path) -> None:
    with (
        start_service(tmp_path / "service", RULES) as service,
        start_envoy(tmp_path / "envoy", configuration(service, "30s")) as envoy,
        ThreadPoolExecutor(6) as pool,
    ):
        begin = monotonic()
        replies = list(pool.map(lambda _: envoy.get("/backend"), range(6)))

        assert monotonic() - begin >= 0.5
        assert [reply.status for reply in replies] == [200] * 6
        assert max(int(reply.headers.get("ratelimit-delay", "0")) for reply in replies) >= 100
        assert metric([service], "ratelimit_queue_wait_seconds_count") >= 2


def test_what_does_not_fit_the_timeout_is_refused_and_does_not_pass_late(tmp_path: Path) -> None:
    """The next turn is in half a minute. An answer after the timeout would be no refusal: Envoy lets requests pass."""
    with (
        start_service(tmp_path / "service", RULES) as service,
        start_envoy(tmp_path / "patient", configuration(service, "15s")) as patient,
        start_envoy(tmp_path / "default", configuration(service, None)) as default,
    ):
        assert patient.statuses(2, "/slow") == [200, 429]
        # On a busy machine every answer may take longer than the 20 ms that are Envoy's default.
        eventually(lambda: default.get("/slow").status == 429, "a refusal in time")

        assert metric([service], "ratelimit_queue_expired_total") >= 2
        assert metric([service], "ratelimit_queue_abandoned_total") == 0
