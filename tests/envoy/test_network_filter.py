"""Envoy's filter for connections asks the same service: what is limited is how often somebody connects."""

import http.client
from pathlib import Path
from typing import Final

import pytest

from tests.envoy.proxy import bootstrap, http_filter, start_envoy
from tests.processes import start_service

pytestmark = pytest.mark.usefixtures("transport")

RULES: Final = """
domain: shop
descriptors: [{key: port, value: front, rate_limit: {unit: year, requests_per_unit: 2}}]
"""


def test_connections_above_a_limit_are_closed(tmp_path: Path) -> None:
    """The third of two a year."""
    with start_service(tmp_path / "service", RULES) as service:
        configuration = bootstrap([service.grpc_port], [])
        limit = {
            "stat_prefix": "front",
            "domain": "shop",
            "descriptors": [{"entries": [{"key": "port", "value": "front"}]}],
            "timeout": "60s",
            "failure_mode_deny": True,
            "rate_limit_service": {
                "transport_api_version": "V3",
                "grpc_service": {"envoy_grpc": {"cluster_name": "ratelimit"}},
            },
        }
        configuration["static_resources"]["listeners"][0]["filter_chains"][0]["filters"] = [
            http_filter("limit", "filters.network.ratelimit.v3.RateLimit", limit),
            http_filter("proxy", "filters.network.tcp_proxy.v3.TcpProxy", {"stat_prefix": "front", "cluster": "echo"}),
        ]
        with start_envoy(tmp_path / "envoy", configuration) as envoy:
            passed = envoy.statuses(2, "/")
            with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
                envoy.get("/")

            assert passed == [200, 200]
            assert envoy.stat("ratelimit.front.over_limit") == 1
            assert envoy.stat("ratelimit.front.error") == 0
