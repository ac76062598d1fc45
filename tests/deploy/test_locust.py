"""deploy/locustfile.py: a real Locust drives a real service, over gRPC and HTTP."""

import json
import os
import re
import sys
from pathlib import Path

import pytest

from tests import peers
from tests.deploy.deployed import DEPLOY
from tests.processes import Process, start_service

pytestmark = pytest.mark.extended

RULES = "domain: shop\ndescriptors: [{key: login, rate_limit: {unit: year, requests_per_unit: 1}}]\n"


def test_locust_asks_over_grpc_and_http_and_what_is_refused_is_no_failure(tmp_path: Path) -> None:
    """Of a thousand keys few are asked about often, and each has one request a year."""
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{peers.locust()}:{peers.xds_protos()}"}
    with start_service(tmp_path, RULES) as service:
        at = ("--grpc", f"127.0.0.1:{service.grpc_port}", "--host", f"http://127.0.0.1:{service.http_port}")
        report = ("--headless", "--users", "4", "--spawn-rate", "4", "--stop-timeout", "60", "--json-file", "stats")
        command = [sys.executable, "-m", "locust", "-f", str(DEPLOY / "locustfile.py"), *report, *at]

        def answered() -> dict[str, int]:
            counts = re.findall(
                r'^ratelimit_requests_total{domain="shop",outcome="(\w+)"} (\d+)', service.metrics(), re.MULTILINE
            )
            return {outcome: int(count) for outcome, count in counts if count != "0"}

        with Process(command, tmp_path, environ, "locust.log") as locust:
            locust.wait_until(lambda: sum(answered().values()) > 1000, "a thousand requests are answered")
            assert locust.stop() == 0, locust.log
        total = answered()

    lines = json.loads((tmp_path / "stats.json").read_text(encoding="utf-8"))
    counts = {line["name"]: line["num_requests"] for line in lines}
    assert [line["num_failures"] for line in lines] == [0] * 4
    assert counts.keys() == {"ShouldRateLimit OK", "ShouldRateLimit OVER_LIMIT", "/json OK", "/json OVER_LIMIT"}
    assert total == {
        "allowed": counts["ShouldRateLimit OK"] + counts["/json OK"],
        "refused": counts["ShouldRateLimit OVER_LIMIT"] + counts["/json OVER_LIMIT"],
    }
