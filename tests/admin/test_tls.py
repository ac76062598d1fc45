"""TLS of the operator's port, as clients of Python's and a browser use it."""

import gc
import http.client
import json
import logging
import re
import shutil
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from html import unescape
from pathlib import Path

import pytest

from ratelimit_service.errors import StartError
from ratelimit_service.server.admin.connection import HttpConnection
from ratelimit_service.server.admin.tls import TlsConnection
from ratelimit_service.system.address import Tcp
from ratelimit_service.transports.tls_session import TlsSession
from tests.admin.conftest import RULES
from tests.admin.service import START_SECONDS, Service, ask, running
from tests.admin.test_access import EXPLAIN
from tests.admin.test_bans import BAN
from tests.browser import browse
from tests.transports.certificates import Issued, authority, issue


@pytest.fixture
def ca(tmp_path: Path) -> Issued:
    """Signs the certificate of the service."""
    return authority(tmp_path)


@pytest.fixture
def own(ca: Issued) -> Issued:
    """What the service shows."""
    return issue(ca, "server", "DNS:localhost", "IP:127.0.0.1")


def files(own: Issued) -> dict[str, str]:
    """The settings of a service that shows it."""
    return {"admin_tls_cert": str(own.cert), "admin_tls_key": str(own.key)}


@pytest.fixture
def service(tmp_path: Path, own: Issued) -> Iterator[Service]:
    """One whose port has TLS."""
    rules = tmp_path / "rules"
    rules.mkdir()
    with running(rules, RULES, **files(own)) as started:
        yield started


def context(ca: Issued, *alpn: str) -> ssl.SSLContext:
    """One that trusts the authority."""
    made = ssl.create_default_context(cafile=ca.cert)
    if alpn:
        made.set_alpn_protocols(alpn)
    return made


def client(service: Service, ca: Issued) -> http.client.HTTPSConnection:
    """A client that trusts the authority."""
    return http.client.HTTPSConnection(*service.debug[0], timeout=START_SECONDS, context=context(ca))


def plain(service: Service) -> socket.socket:
    """A connection on which nothing is said yet."""
    return socket.create_connection(service.debug[0], START_SECONDS)


def rest(connection: socket.socket) -> bytes:
    """All that comes until the end."""
    return b"".join(iter(lambda: connection.recv(65536), b""))


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + START_SECONDS
    while not condition():
        assert time.monotonic() < end, f"it never came to pass that {what}"
        time.sleep(0.01)


def metric(service: Service, name: str) -> str:
    """The value, as the clients' port has it, which has no TLS."""
    found = re.search(rf"^{name} (\S+)$", ask(service.http[0], "GET", "/metrics").text, re.MULTILINE)
    assert found, name
    return found[1]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines, without the port."""
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    return [re.sub(r"port \d+", "port N", line) for line in lines]


def serial(service: Service, ca: Issued) -> str:
    """Of the certificate that a new connection gets."""
    with plain(service) as raw, context(ca).wrap_socket(raw, server_hostname="localhost") as connection:
        return str((connection.getpeercert() or {})["serialNumber"])


def test_one_connection_carries_requests_of_every_kind(service: Service, ca: Issued) -> None:
    connection = client(service, ca)
    found = []
    for verb, path, body in (
        ("GET", "/", None),
        ("POST", "/bans", json.dumps(BAN).encode()),
        ("POST", "/explain", json.dumps(EXPLAIN).encode().ljust(100_000)),
        ("GET", "/metrics", None),
        ("POST", "/bans", b" " * 20_000),
    ):
        connection.request(verb, path, body, service.bearer)
        response = connection.getresponse()
        found.append((response.status, len(response.read()) > 20))
    connection.close()

    assert found == [(200, True), (200, True), (200, True), (200, True), (413, True)]


def test_a_response_ends_with_its_connection(service: Service, ca: Issued) -> None:
    """The end is said in TLS too: a client that hears none must take the response for cut off."""
    with (
        plain(service) as raw,
        context(ca).wrap_socket(raw, server_hostname="localhost", suppress_ragged_eofs=False) as connection,
    ):
        connection.sendall(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")
        received = rest(connection)

    assert received.startswith(b"HTTP/1.0 200 ")
    assert b"\nratelimit_http_tls_reload_last_attempt_successful 1\n" in received
    assert received.endswith(b"\n")


def test_a_client_that_says_the_end_hears_it_too(service: Service, ca: Issued) -> None:
    connection = context(ca).wrap_socket(plain(service), server_hostname="localhost")
    connection.sendall(b"HEAD /bans HTTP/1.1\r\nHost: localhost\r\n\r\n")
    received = connection.recv(65536)
    with connection.unwrap() as raw:  # waits for it
        last = raw.recv(1)

    assert received.startswith(b"HTTP/1.1 200 ")
    assert last == b""


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("size", [1, 100])
def test_a_client_hello_and_requests_may_come_in_pieces(
    service: Service, ca: Issued, version: ssl.TLSVersion, size: int
) -> None:
    settings = context(ca)
    settings.minimum_version = settings.maximum_version = version
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = settings.wrap_bio(incoming, outgoing, server_hostname="localhost")

    def send(connection: socket.socket) -> None:
        data = outgoing.read()
        for at in range(0, len(data), size):
            connection.sendall(data[at : at + size])

    with plain(service) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                send(connection)
                incoming.write(connection.recv(65536))
        received = b""
        for _ in range(2):
            client.write(b"HEAD /bans HTTP/1.1\r\nHost: localhost\r\n\r\n")
            send(connection)
            received = b""
            while b"\r\n\r\n" not in received:
                try:
                    received += client.read()
                except ssl.SSLWantReadError:
                    incoming.write(connection.recv(65536))

    assert received.startswith(b"HTTP/1.1 200 ")


def test_a_request_may_come_in_records_of_one_byte(service: Service, ca: Issued) -> None:
    settings = context(ca)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = settings.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with plain(service) as connection:
        shaken = False
        while not shaken:
            with suppress(ssl.SSLWantReadError):
                client.do_handshake()
                shaken = True
            connection.sendall(outgoing.read())
            if not shaken:
                incoming.write(connection.recv(65536))
        for byte in b"GET /bans HTTP/1.0\r\nHost: localhost\r\nPadding: " + b"x" * 500 + b"\r\n\r\n":
            client.write(bytes((byte,)))
        connection.sendall(outgoing.read())
        incoming.write(rest(connection))

    assert client.read().startswith(b"HTTP/1.0 200 ")


def test_no_handshake_is_lost(service: Service, ca: Issued) -> None:
    """A ClientHello may be there as soon as its connection is: uvloop's `start_tls` loses some of those."""
    trusting = context(ca)
    for _ in range(500):
        with plain(service) as raw, trusting.wrap_socket(raw, server_hostname="localhost"):
            pass

    assert metric(service, "ratelimit_http_tls_handshakes_failed_total") == "0"


def test_a_new_certificate_is_shown_to_the_next_connection_and_a_broken_one_to_none(
    service: Service, ca: Issued, own: Issued
) -> None:
    first = serial(service, ca)
    renewed = issue(ca, "renewed", "DNS:localhost")
    shutil.copy(renewed.key, own.key)
    until(lambda: metric(service, "ratelimit_http_tls_reload_last_attempt_successful") == "0", "the key is refused")
    broken = serial(service, ca)
    shutil.copy(renewed.cert, own.cert)

    assert broken == first
    until(lambda: serial(service, ca) != first, "the new certificate is shown")
    assert metric(service, "ratelimit_http_tls_reload_last_attempt_successful") == "1"


@pytest.mark.parametrize("size", [1, 1000])
def test_a_client_without_tls_is_told_so_and_logged_once(
    service: Service, caplog: pytest.LogCaptureFixture, size: int
) -> None:
    request = b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    received = []
    for _ in range(2):
        with plain(service) as connection:
            connection.sendall(request[:size])
            connection.sendall(request[size:])
            received.append(rest(connection))

    assert received[0] == received[1]
    assert received[0].startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b", which speaks HTTPS: write https:// before its address.\n" in received[0]
    line = "a client speaks HTTP without TLS to the debug HTTP port N, which has TLS (from 127.0.0.1)"
    assert warnings(caplog) == [f"{line}; logged at most once a minute"]
    assert metric(service, "ratelimit_http_tls_handshakes_failed_total") == "2"


@pytest.mark.parametrize("tls", [True, False])
def test_http2_is_told_where_it_belongs(
    service: Service, ca: Issued, caplog: pytest.LogCaptureFixture, tls: bool
) -> None:
    raw = plain(service)
    with context(ca, "h2").wrap_socket(raw, server_hostname="localhost") if tls else raw as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n")
        connection.sendall(b"\r\nSM\r\n\r\n")
        received = rest(connection)

    assert b", which speaks HTTP/1.1 only; gRPC is on 8081.\n" in received
    assert [line.partition(" (from")[0] for line in warnings(caplog)] == [
        "a client speaks HTTP/2 to the debug HTTP port N; gRPC is on 8081"
    ]


def test_a_handshake_that_fails_is_logged_with_the_reason(
    service: Service, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "other").mkdir()
    with (
        plain(service) as raw,
        pytest.raises(ssl.SSLCertVerificationError),
        context(authority(tmp_path / "other")).wrap_socket(raw, server_hostname="localhost"),
    ):
        pass
    with plain(service) as raw:
        raw.sendall(b"\x16\x03\x01\x00\x05hello")
        alert = rest(raw)

    assert alert[:1] == b"\x15"
    until(lambda: metric(service, "ratelimit_http_tls_handshakes_failed_total") == "2", "both are counted")
    assert "TLS fails on the debug HTTP port N: the handshake failed: " in warnings(caplog)[0]


def test_connections_that_never_shake_hands_are_among_those_that_are_bounded(
    tmp_path: Path, own: Issued, ca: Issued
) -> None:
    rules = tmp_path / "rules"
    rules.mkdir()
    with running(rules, RULES, http_max_connections="3", **files(own)) as service:
        idle = [plain(service) for _ in range(5)]
        try:
            evicted = []
            for each in idle[:2]:
                try:
                    evicted.append(each.recv(1))
                except ConnectionError:
                    evicted.append(b"")
            connection = client(service, ca)
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
            connection.close()
        finally:
            for each in idle:
                each.close()

    assert evicted == [b"", b""]
    assert "\nratelimit_http_connections 3\n" in text
    assert "\nratelimit_http_connections_evicted_total 3\n" in text


def test_a_handshake_has_a_time_and_nothing_else_has_it(
    service: Service, ca: Issued, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("ratelimit_service.server.admin.tls.HANDSHAKE_SECONDS", 3.0)
    connection = client(service, ca)
    connection.connect()
    with plain(service) as slow:
        slow.sendall(b"\x16\x03")
        with suppress(ConnectionError):
            assert slow.recv(1) == b""
    connection.request("GET", "/status")
    status = connection.getresponse().status
    connection.close()

    assert status == 200
    assert [line.partition(" (from")[0] for line in warnings(caplog)] == [
        "TLS fails on the debug HTTP port N: the client takes too long for its handshake"
    ]


def test_a_connection_leaves_nothing_when_it_ends(service: Service, ca: Issued) -> None:
    """Not until the collector looks either: it looks at old objects after 70 million new ones."""

    def kept() -> int:
        return sum(1 for each in gc.get_objects() if isinstance(each, (TlsConnection, HttpConnection, TlsSession)))

    gc.collect()
    gc.disable()
    try:
        for path in ("/bans", "/metrics", "/page/style.css"):
            connection = client(service, ca)
            connection.request("GET", path)
            assert connection.getresponse().read()
            connection.close()
        with plain(service) as raw:
            raw.sendall(b"GET / HTTP/1.0\r\n\r\n")
            rest(raw)
        until(lambda: kept() == 0, "all are gone")
    finally:
        gc.enable()


def test_files_that_cannot_be_used_end_the_start(tmp_path: Path, own: Issued) -> None:
    own.key.write_text("no key")
    with (
        pytest.raises(StartError, match=r"cannot use the private key .*server.key"),
        running(tmp_path, RULES, **files(own)),
    ):
        pass


def test_a_browser_shows_the_page(service: Service) -> None:
    markup = browse(f"https://localhost:{service.debug[0].port}/", "--ignore-certificate-errors")

    assert "3 per minute" in " ".join(unescape(re.sub(r"<[^>]*>", " ", markup)).split())


def test_where_clients_need_a_certificate_none_but_those_of_its_ca_are_answered(
    tmp_path: Path, ca: Issued, own: Issued, caplog: pytest.LogCaptureFixture
) -> None:
    mine, foreign = issue(ca, "mine"), issue(authority(tmp_path, "other"), "foreign")

    def asked(port: Tcp, shown: Issued | None) -> str:
        trust = context(ca)
        if shown is not None:
            trust.load_cert_chain(shown.cert, shown.key)
        connection = http.client.HTTPSConnection(*port, timeout=START_SECONDS, context=trust)
        try:
            connection.request("GET", "/rlconfig")
            return str(connection.getresponse().status)
        except ssl.SSLError as error:
            return error.reason
        finally:
            connection.close()

    rules = tmp_path / "rules"
    rules.mkdir()
    with running(rules, RULES, **files(own), admin_client_tls_cacert=str(ca.cert)) as service:
        found = [asked(service.debug[0], shown) for shown in (mine, None, foreign, mine)]
        failed = metric(service, "ratelimit_http_tls_handshakes_failed_total")

    assert found == ["200", "TLSV13_ALERT_CERTIFICATE_REQUIRED", "TLSV1_ALERT_UNKNOWN_CA", "200"]
    assert failed == "2"
    assert [re.split(": | \\(from", line, maxsplit=1)[1].partition(" (from")[0] for line in warnings(caplog)] == [
        "the client shows no certificate",
        "the certificate of the client is not accepted: unable to get local issuer certificate",
    ]


def test_a_ca_of_clients_that_cannot_be_read_stops_the_start(tmp_path: Path, own: Issued) -> None:
    with (
        pytest.raises(StartError, match="cannot read the client CA /nowhere"),
        running(tmp_path, RULES, **files(own), admin_client_tls_cacert="/nowhere"),
    ):
        pass
