"""What the operator sees of calls and connections, and what those do to a stop."""

import json
import re
import socket
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.processes import Service, ask, start_service
from tests.stories.rude_clients import ask_on, question

RULES = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 100}}]\n"
FLOOD = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000 04 00 00000000") + b"\0\0\0\x77\0\0\0\0\0" * 5_000


def metric(service: Service, name: str) -> float:
    """One without labels."""
    (value,) = re.findall(rf"^{name} (\S+)$", service.metrics(), re.MULTILINE)
    return float(value)


def shown(service: Service) -> int | None:
    """The connections that the page shows."""
    connections: int | None = json.loads(ask(service.debug_port, "/status").body)["process"]["connections"]
    return connections


@pytest.mark.usefixtures("transport")
def test_calls_and_the_lag_of_the_loop_are_counted(tmp_path: Path) -> None:
    with start_service(tmp_path, RULES) as service:
        with grpc.insecure_channel(f"127.0.0.1:{service.grpc_port}") as channel:
            for _ in range(3):
                ask_on(channel)(question("ada"), timeout=20)
            watching: Any = channel.unary_stream("/grpc.health.v1.Health/Watch", None, None)(b"", timeout=60)
            next(watching)

            assert metric(service, "ratelimit_grpc_streams") == 1
            assert metric(service, "ratelimit_grpc_streams_opened_total") == 4
            watching.cancel()
            service.wait_until(lambda: metric(service, "ratelimit_grpc_streams") == 0, "the stream has ended")
        service.wait_until(lambda: metric(service, "ratelimit_loop_lag_seconds_count") > 0, "the lag was measured")


def test_connections_and_why_they_were_ended_are_counted(tmp_path: Path) -> None:
    """With http2; grpc's core tells nothing of its connections."""
    with start_service(tmp_path, RULES, {"TRANSPORT": "http2"}) as service:
        with socket.create_connection(("127.0.0.1", service.grpc_port)) as attacker:
            service.wait_until(lambda: shown(service) == 1, "shows the connection")
            attacker.sendall(FLOOD)
            ended = 'ratelimit_grpc_connections_ended_total{reason="enhance_your_calm"} 1'
            service.wait_until(lambda: ended in service.metrics(), "counts the connection it ended")
        service.wait_until(lambda: "\nratelimit_grpc_connections 0" in service.metrics(), "sees it go")


@pytest.mark.usefixtures("transport")
@pytest.mark.parametrize("said", [b"", b"PRI * HTTP/2.0\r\n\r\n", FLOOD[:33]], ids=["nothing", "half", "enough"])
def test_a_client_that_only_connects_does_not_hold_up_a_stop(tmp_path: Path, said: bytes) -> None:
    with (
        start_service(tmp_path, RULES, {"DRAIN_TIMEOUT": "1h"}) as service,
        socket.create_connection(("127.0.0.1", service.grpc_port)) as client,
    ):
        client.sendall(said)
        if said == FLOOD[:33]:
            assert client.recv(1)  # the service's own SETTINGS: it has the connection

        assert service.stop() == 0
