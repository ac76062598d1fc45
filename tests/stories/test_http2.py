"""The service on its own HTTP/2, as a process: what the operator sees of connections."""

import socket
from pathlib import Path

from tests.processes import start_service

RULES = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 100}}]\n"
FLOOD = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000 04 00 00000000") + b"\0\0\0\x77\0\0\0\0\0" * 5_000


def test_connections_and_why_they_were_ended_are_counted(tmp_path: Path) -> None:
    with start_service(tmp_path, RULES, {"TRANSPORT": "http2"}) as service:
        with socket.create_connection(("127.0.0.1", service.grpc_port)) as attacker:
            attacker.sendall(FLOOD)
            ended = 'ratelimit_grpc_connections_ended_total{reason="enhance_your_calm"} 1'
            service.wait_until(lambda: ended in service.metrics(), "counts the connection it ended")
        service.wait_until(lambda: "\nratelimit_grpc_connections 0" in service.metrics(), "sees it go")


def test_a_client_that_only_connects_does_not_hold_up_a_stop(tmp_path: Path) -> None:
    settings = {"TRANSPORT": "http2", "DRAIN_TIMEOUT": "1h"}
    with (
        start_service(tmp_path, RULES, settings) as service,
        socket.create_connection(("127.0.0.1", service.grpc_port)),
    ):
        service.wait_until(lambda: "\nratelimit_grpc_connections 1" in service.metrics(), "has the connection")

        assert service.stop() == 0
