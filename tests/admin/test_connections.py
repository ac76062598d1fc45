"""HTTP connections have a limit of their own: above it the least recently used one is evicted."""

import http.client
import logging
import re
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from ratelimit_service.server.admin.connection import HttpConnections
from ratelimit_service.telemetry.logs import ThrottledLog
from tests.admin.conftest import RULES
from tests.admin.service import START_SECONDS, Service, ask, running
from tests.clocks import Clock

HEALTH = b"GET /healthcheck HTTP/1.1\r\nHost: here\r\n\r\n"


class Connection:
    """One of which it is known whether it is at work."""

    def __init__(self, *, busy: bool = False, new: bool = False, source: str = "") -> None:
        self.busy = busy
        self.new = new
        self.source = source
        self.aborted = False

    def close(self) -> None:
        self.aborted = True

    def abort(self) -> None:
        self.aborted = True


def three(*connections: Connection) -> HttpConnections:
    """Of at most three, those that are open, the first of them the oldest."""
    open_ = HttpConnections(3, ThrottledLog(logging.getLogger("tests"), Clock()))
    for connection in connections:
        open_.add(connection)
    return open_


def test_the_connection_that_asked_nothing_for_longest_makes_way() -> None:
    first, second, third, new = (Connection() for _ in range(4))
    connections = three(first, second, third)

    connections.touch(first)
    connections.add(new)

    assert [each.aborted for each in (first, second, third, new)] == [False, True, False, False]


def test_a_connection_at_work_stays_while_there_is_another() -> None:
    first, second, third, new = Connection(busy=True), Connection(), Connection(), Connection()

    three(first, second, third).add(new)

    assert [each.aborted for each in (first, second, third, new)] == [False, True, False, False]


def test_when_all_are_at_work_the_one_at_it_for_longest_makes_way() -> None:
    *old, new = (Connection(busy=True) for _ in range(4))
    connections = three(*old)

    connections.add(new)

    assert [each.aborted for each in (*old, new)] == [True, False, False, False]
    assert [metric.samples for metric in connections.metrics()] == [[((), 3)], [((), 1)]]


def test_one_that_is_too_new_to_have_asked_is_not_evicted_by_those_that_ask_for_ever() -> None:
    first, second, third, new = Connection(busy=True), Connection(busy=True), Connection(new=True), Connection(new=True)

    three(first, second, third).add(new)

    assert [each.aborted for each in (first, second, third, new)] == [True, False, False, False]


def test_the_address_with_the_most_connections_to_a_port_loses_one_however_busy_they_are() -> None:
    probe, *hostile, new = Connection(source="b"), *(Connection(busy=True, source="a") for _ in range(3))
    connections = three(probe, *hostile)

    connections.add(new)

    assert [each.aborted for each in (probe, *hostile, new)] == [False, True, False, False]


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"GET /healthc",
        b"POST /json HTTP/1.1\r\nHost: here\r\nContent-Length: 50\r\n\r\n{",
        b"POST /json HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
    ],
)
def test_connections_that_are_held_keep_no_other_out(
    tmp_path: Path, begun: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with running(tmp_path, RULES, http_max_connections="8") as service:
        healthy = socket.create_connection(service.http[0], START_SECONDS)
        held, answers = [], []
        for _ in range(60):
            held.append(socket.create_connection(service.http[0], START_SECONDS))
            held[-1].sendall(begun)
            answers.append(ask(service.http[0], "GET", "/healthcheck").body)
            healthy.sendall(HEALTH)
            answers.append(healthy.recv(1000)[-2:])
        connections, evicted = numbers(service)
        for client in (healthy, *held):
            client.close()

    assert answers == [b"OK"] * 120
    assert connections <= 8
    assert evicted >= 52
    assert [record.getMessage()[:27] for record in caplog.records if record.levelno >= logging.WARNING] == [
        "8 HTTP connections are open"
    ]


def test_clients_that_read_no_answer_keep_no_other_out(tmp_path: Path) -> None:
    with running(tmp_path, RULES, http_max_connections="8") as service, ExitStack() as held:
        answers = []
        for _ in range(30):
            client = held.enter_context(socket.create_connection(service.debug[0], START_SECONDS))
            with suppress(ConnectionError):  # it makes way while it sends
                client.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n" * 1000)
            answers.append(ask(service.http[0], "GET", "/healthcheck").body)
        connections, _ = numbers(service)

    assert answers == [b"OK"] * 30
    assert connections <= 8


def numbers(service: Service) -> list[int]:
    """HTTP connections that are open, and those that made way."""
    lines = service.get("/metrics").text.splitlines()
    return [int(line.split()[1]) for line in lines if line.startswith("ratelimit_http_connections")]


@pytest.mark.parametrize(
    ("asked", "status"), [("/explain HTTP/1.1\r\nContent-Encoding: gzip", 415), ("/bans HTTP/1.1", 401)]
)
def test_a_response_before_the_body_has_arrived_says_that_the_connection_ends(
    tmp_path: Path, asked: str, status: int
) -> None:
    head = f"POST {asked}\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{{"
    with (
        running(tmp_path, RULES, admin_token="x" * 32) as service,
        socket.create_connection(service.debug[0], START_SECONDS) as client,
    ):
        client.sendall(head.encode())
        response = http.client.HTTPResponse(client)
        response.begin()
        response.read()
        end = client.recv(1)

    assert (response.status, response.getheader("Connection"), end) == (status, "close", b"")


def test_a_response_after_the_body_keeps_the_connection(tmp_path: Path) -> None:
    found = []
    with (
        running(tmp_path, RULES, admin_token="x" * 32) as service,
        socket.create_connection(service.debug[0], START_SECONDS) as client,
    ):
        for _ in range(2):
            client.sendall(b"POST /bans HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}")  # in one packet
            response = http.client.HTTPResponse(client)
            response.begin()
            response.read()
            found.append((response.status, response.getheader("Connection")))

    assert found == [(401, None), (401, None)]


@pytest.mark.parametrize(
    ("sent", "statuses"),
    [
        (HEALTH, [200]),
        (HEALTH * 3, [200] * 3),
        (b"POST /json HTTP/1.1\r\nHost: here\r\nContent-Length: 2\r\n\r\n{}", [400]),
        (b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n" + HEALTH, [200, 200]),
        (HEALTH[:-1], []),
        (b"POST /json HTTP/1.1\r\nHost: here\r\nContent-Length: 3\r\n\r\n{}", []),
        (b"", []),
    ],
)
def test_a_client_that_sends_no_more_gets_what_it_asked_for_and_the_end(
    service: Service, sent: bytes, statuses: list[int]
) -> None:
    with socket.create_connection(service.http[0], START_SECONDS) as client:
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: client.recv(1 << 16), b""))

    assert [int(each) for each in re.findall(rb"HTTP/1.1 (\d+) ", answer)] == statuses
