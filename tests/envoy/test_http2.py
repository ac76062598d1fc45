"""Envoy told to speak HTTP/2 in unusual ways to the service: nobody's calls fail for it."""

from pathlib import Path
from typing import Final

import pytest

from tests.envoy.proxy import Json, bootstrap, by, route, start_envoy
from tests.processes import start_service

pytestmark = pytest.mark.usefixtures("transport")

RULES: Final = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 3}}]\n"


@pytest.mark.parametrize(
    "options",
    [
        {"hpack_table_size": 0},
        {"max_concurrent_streams": 1, "initial_stream_window_size": 65_535, "initial_connection_window_size": 65_535},
        {"connection_keepalive": {"interval": "0.05s", "timeout": "10s"}},
    ],
    ids=["no header table", "one stream", "pings"],
)
def test_envoy_may_set_its_http_2_as_it_likes(tmp_path: Path, options: Json) -> None:
    with start_service(tmp_path / "service", RULES) as service:
        configuration = bootstrap([service.grpc_port], [route("/", by(("user", "x-user")))])
        (asking,) = (each for each in configuration["static_resources"]["clusters"] if each["name"] == "ratelimit")
        for protocol in asking["typed_extension_protocol_options"].values():
            protocol["explicit_http_config"]["http2_protocol_options"] = options
        with start_envoy(tmp_path / "envoy", configuration) as envoy:
            statuses = envoy.statuses(5, "/", x_user="ada")

            assert statuses == [200, 200, 200, 429, 429]
            assert envoy.stat("cluster.echo.ratelimit.error") == 0
