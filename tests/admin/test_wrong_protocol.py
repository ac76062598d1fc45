"""Clients that send an HTTP port something else than HTTP/1.1, and what the log says of them.

Lines that are logged at most once a minute are one line here: no test takes a minute, and each has its own service.
"""

import logging
import socket
import ssl
import struct
import subprocess
from pathlib import Path

import grpc
import pytest

from ratelimit_service.api.ratelimit import ShouldRateLimit
from ratelimit_service.server.admin.connection import AiohttpLog, WrongProtocol
from ratelimit_service.system.address import Tcp
from ratelimit_service.system.clock import MINUTE
from ratelimit_service.telemetry.logs import ThrottledLog
from tests import peers
from tests.admin.conftest import RULES
from tests.admin.service import START_SECONDS, Service, ask, running
from tests.clocks import Clock
from tests.envoy.proxy import bootstrap, by, route, start_envoy
from tests.processes import start_service

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000 04 00 00000000")
JSON = b'{"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "ada"}]}]}'
CHUNKED = b"POST /json HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n"
LATER = " (from 127.0.0.1); logged at most once a minute"


def send(address: Tcp, *parts: bytes) -> bytes:
    """Send the parts, one after another, and give what comes back until the service closes the connection."""
    with socket.create_connection(address, START_SECONDS) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for part in parts:
            client.sendall(part)
        return client.makefile("rb").read()


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Warnings and errors, and how often a line has a traceback."""
    records = [record for record in caplog.records if record.levelno >= logging.WARNING]
    return [record.getMessage() + (" with a traceback" if record.exc_info else "") for record in records]


def test_http_2_on_any_http_port_is_one_line_that_says_where_grpc_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running(tmp_path, RULES, use_prometheus="true", prometheus_addr="127.0.0.1:0") as service:
        ports = [service.http[0], service.debug[0], service.prometheus[0]]
        answers = {send(port, PREFACE) for port in ports for _ in range(20)}

    assert all(answer.startswith(b"HTTP/1.1 400 Bad Request\r\n") for answer in answers)
    assert sorted(answer.partition(b"\r\n\r\n")[2].decode() for answer in answers) == sorted(
        f"This is the {what} port {port.port}, which speaks HTTP/1.1 only; gRPC is on 8081.\n"
        for what, port in zip(("HTTP", "debug HTTP", "Prometheus"), ports, strict=True)
    )
    assert logged(caplog) == [
        f"a client speaks HTTP/2 to the HTTP port {ports[0].port}; gRPC is on 8081{LATER}",
        f"a client speaks HTTP/2 to the debug HTTP port {ports[1].port}; gRPC is on 8081{LATER}",
        f"a client speaks HTTP/2 to the Prometheus port {ports[2].port}; gRPC is on 8081{LATER}",
    ]


def test_http_2_is_known_however_its_beginning_is_cut(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    answers = [send(service.http[0], PREFACE[:cut], PREFACE[cut:]) for cut in range(1, 24)]

    assert all(b"; gRPC is on 8081.\n" in answer for answer in answers)
    assert len(logged(caplog)) == 1


def test_a_beginning_that_only_looks_like_http_2_is_answered_as_http_1(service: Service) -> None:
    reply = send(
        service.http[0],
        b"P",
        b"OST /json HTTP/1.1\r\nHost: here\r\nConnection: close\r\nContent-Length: 83\r\n\r\n",
        JSON,
    )

    assert reply.startswith(b"HTTP/1.1 200 OK\r\n")


def test_a_client_of_grpc_says_that_the_port_speaks_http_1(service: Service) -> None:
    with grpc.insecure_channel(str(service.http[0])) as channel, pytest.raises(grpc.RpcError) as raised:
        channel.unary_unary(ShouldRateLimit.path, bytes, bytes)(b"", timeout=START_SECONDS)

    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "Trying to connect an http1.x server (HTTP status 400)" in str(raised.value.details())


def test_nghttp_says_that_the_port_does_not_speak_http_2(service: Service) -> None:
    command = [str(peers.nghttp()), "-nv", f"http://{service.http[0]}/healthcheck"]
    output = subprocess.run(command, capture_output=True, text=True, check=False, timeout=START_SECONDS)

    assert "peer does not support HTTP/2 properly" in output.stdout + output.stderr


def test_an_envoy_whose_cluster_names_the_http_port_costs_one_line(tmp_path: Path) -> None:
    with start_service(tmp_path / "service", RULES) as service:
        before = service.log.count("\n")
        configuration = bootstrap([service.http_port], [route("/", by(("user", "x-user")))])
        with start_envoy(tmp_path / "envoy", configuration) as envoy:
            statuses = envoy.statuses(30, "/", x_user="ada")
            errors, connections = (
                envoy.stat(name) for name in ("cluster.echo.ratelimit.error", "cluster.ratelimit.upstream_cx_total")
            )
        lines = service.log.splitlines()[before:]

    assert statuses == [200] * 30  # Envoy lets requests pass when it has no answer
    assert errors == 30
    assert connections >= 2
    assert [line.partition(" warning ")[2] for line in lines] == [
        f"a client speaks HTTP/2 to the HTTP port {service.http_port}; gRPC is on {service.grpc_port}{LATER}"
    ]


def test_tls_on_an_http_port_is_one_line_and_the_client_says_what_is_wrong(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    reasons = []
    for _ in range(5):
        with (
            socket.create_connection(service.http[0], START_SECONDS) as client,
            pytest.raises(ssl.SSLError) as raised,
        ):
            ssl.create_default_context().wrap_socket(client, server_hostname="localhost")
        reasons.append(raised.value.reason)

    assert reasons == ["WRONG_VERSION_NUMBER"] * 5
    assert logged(caplog) == [
        f"a client speaks TLS to the HTTP port {service.http[0].port}, which is plain HTTP{LATER}"
    ]


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"HELLO / HTTP/1.1\r\nHost: here\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET http://[::1 HTTP/1.1\r\nHost: here\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nAuthorization: Bearer \x00hunter2\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nAuthorization: Bearer hunter2" + b"2" * 20_000 + b"\r\n\r\n",
        b"POST /json HTTP/1.1\r\nHost: here\r\nContent-Length: -3\r\n\r\nabc",
        b"POST /json HTTP/1.1\r\nHost: here\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc",
        CHUNKED + b"zz\r\n",
        CHUNKED + b"5\r\nabcdefgh\r\n",
        b"GET /healthcheck HTTP/1.1\r\nHost: here\r\n\r\n" + b"hunter2 is no method\r\n\r\n",
    ],
)
def test_bytes_that_are_not_http_are_answered_400_and_are_one_line_without_them(
    service: Service, caplog: pytest.LogCaptureFixture, sent: bytes
) -> None:
    answers = [send(service.http[0], sent) for _ in range(3)]

    assert all(b" 400 Bad Request\r\n" in answer for answer in answers)
    assert logged(caplog) == [
        f"a client sends bytes that are not HTTP/1.1 to the HTTP port {service.http[0].port}{LATER}"
    ]
    assert "hunter2" not in caplog.text


def test_what_aiohttp_cannot_quote_is_one_line_too(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    expecting = b"GET /healthcheck HTTP/1.1\r\nHost: here\r\nExpect: \xc2\r\n\r\n"
    answers = [send(service.http[0], expecting)[:12] for _ in range(3)]

    assert answers == [b"HTTP/1.1 500"] * 3
    assert len(logged(caplog)) == 1
    assert "Traceback" not in caplog.text


def test_connect_without_a_target_is_a_request_for_what_is_not_there(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    assert send(service.http[0], b"CONNECT \r\n\r\n").startswith(b"HTTP/0.9 404 Not Found\r\n")
    assert logged(caplog) == []


def test_a_client_that_leaves_in_the_middle_of_a_body_is_no_line(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(20):
        with socket.create_connection(service.http[0], START_SECONDS) as client:
            client.sendall(b"POST /json HTTP/1.1\r\nHost: here\r\nContent-Length: 50\r\n\r\n{")
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    after = ask(service.http[0], "GET", "/healthcheck")

    assert after.status == 200
    assert logged(caplog) == []


def test_an_error_of_ours_keeps_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("tests")
    server_log = AiohttpLog(log, WrongProtocol("HTTP", Tcp("", 8080), [], ThrottledLog(log, Clock())))

    server_log.exception("Error handling request from %s", "127.0.0.1", exc_info=ValueError("ours"))

    assert logged(caplog) == ["Error handling request from 127.0.0.1 with a traceback"]


def test_a_notice_comes_again_after_a_minute_whichever_the_client(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    warnings = ThrottledLog(logging.getLogger("tests"), clock)

    for client in ("10.0.0.1", "fd00::a", "fd00::b"):
        warnings.warn("port 8080", client)
        clock.advance(MINUTE // 2)

    assert logged(caplog) == [
        f"port 8080 (from {client}); logged at most once a minute" for client in ("10.0.0.1", "fd00::b")
    ]
