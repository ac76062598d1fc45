"""TLS of several workers: each does its own, all with the same certificates, and clients count from the start."""

import shutil
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import grpc
import pytest

from tests.transports.certificates import Issued, authority, issue
from tests.transports.http2.talk import HELLO
from tests.workers.pool import Caller, Load, callers, start_pool

OURS = "IP:127.0.0.1"


def environ(own: Issued, client_ca: Path | None = None) -> dict[str, str]:
    """Settings for these certificates."""
    return {**own.environ, "GRPC_CLIENT_TLS_CACERT": str(client_ca or "")}


def credentials(signer: Issued, own: Issued | None = None) -> grpc.ChannelCredentials:
    """What a client of grpcio's believes and shows."""
    pair = (own.key.read_bytes(), own.cert.read_bytes()) if own else (None, None)
    return grpc.ssl_channel_credentials(signer.cert.read_bytes(), *pair)


def test_a_failed_handshake_is_a_connection_that_has_gone(tmp_path: Path) -> None:
    signer = authority(tmp_path)
    with (
        start_pool(tmp_path, 2, environ(issue(signer, "server", OURS))) as pool,
        callers(pool.service.grpc_port, 4, credentials(signer)),
    ):
        pool.wait_for_loads(2, 2)
        plain = Caller(pool.service.grpc_port)
        with pytest.raises(grpc.RpcError):
            plain.ask()
        plain.close()
        pool.wait_for_loads(2, 2)


def test_clients_that_never_begin_their_handshake_make_way_in_all_workers(tmp_path: Path) -> None:
    signer = authority(tmp_path)
    limits = {"GRPC_MAX_CONNECTIONS": "4", "GRPC_PREFACE_TIMEOUT": "1h"}
    with (
        start_pool(tmp_path, 2, environ(issue(signer, "server", OURS)) | limits) as pool,
        callers(pool.service.grpc_port, 1, credentials(signer)) as one,
        Load(one) as load,
    ):
        with ExitStack() as silent:
            for _ in range(3):
                silent.enter_context(socket.create_connection(("127.0.0.1", pool.service.grpc_port)))
            pool.wait_for_loads(2, 2)
            with callers(pool.service.grpc_port, 2, credentials(signer)):
                pool.wait_for_loads(2, 2)
                load.wait_for(20)

        assert pool.metric('ratelimit_grpc_refused_total{limit="connections"}') >= 2
        assert load.errors == [[]]


def test_renewed_certificates_are_served_by_all_workers_and_connections_go_on(tmp_path: Path) -> None:
    for name in ("first", "second", "used"):
        (tmp_path / name).mkdir()
    signer = authority(tmp_path)
    one, other = authority(tmp_path / "first", "one"), authority(tmp_path / "second", "other")
    ours, renewed = issue(signer, "ours", OURS), issue(signer, "renewed", OURS)
    old_client, new_client = issue(one, "old", "DNS:client"), issue(other, "new", "DNS:client")
    used = Issued(*(Path(shutil.copy(path, tmp_path / "used")) for path in ours))
    believed = Path(shutil.copy(one.cert, tmp_path / "used" / "believed.pem"))
    good = "ratelimit_tls_reload_last_attempt_successful"
    with (
        start_pool(tmp_path, 2, environ(used, believed)) as pool,
        callers(pool.service.grpc_port, 4, credentials(signer, old_client)) as four,
        Load(four) as load,
    ):
        port = pool.service.grpc_port
        pool.wait_for_loads(2, 2)
        with shown(port, 2, signer, old_client) as before:
            pool.wait_for_loads(3, 3)
        shutil.copy(renewed.cert, used.cert)  # and its key is not there yet
        pool.wait_for_metric(good, 0)
        with shown(port, 2, signer, old_client) as meanwhile:
            pool.wait_for_loads(3, 3)
        shutil.copy(renewed.key, used.key)
        shutil.copy(other.cert, believed)
        pool.wait_for_metric(good, 1)
        with shown(port, 4, signer, new_client) as after:
            pool.wait_for_loads(4, 4)
        with pytest.raises(grpc.RpcError), callers(port, 1, credentials(signer, old_client)):
            pass
        load.wait_for(20)

    assert (before, meanwhile, after) == ([der(ours)] * 2, [der(ours)] * 2, [der(renewed)] * 4)
    assert load.errors == [[]] * 4


@contextmanager
def shown(port: int, count: int, signer: Issued, own: Issued) -> Iterator[list[bytes]]:
    """The certificates that so many connections are shown at once, which do not ask anything."""
    context = ssl.create_default_context(cafile=str(signer.cert))
    context.load_cert_chain(*map(str, own))
    context.set_alpn_protocols(["h2"])
    certificates: list[bytes] = []
    with ExitStack() as stack:
        for _ in range(count):
            plain = stack.enter_context(closing(socket.create_connection(("127.0.0.1", port))))
            secured = stack.enter_context(context.wrap_socket(plain, server_hostname="127.0.0.1"))
            certificates.append(secured.getpeercert(binary_form=True) or b"")
            secured.sendall(HELLO)
            assert secured.recv(1) == b"\0", "it is admitted, and hears the service's settings"
        yield certificates


def der(issued: Issued) -> bytes:
    """The certificate in its file, as it is shown."""
    return ssl.PEM_cert_to_DER_cert(issued.cert.read_text(encoding="ascii"))
