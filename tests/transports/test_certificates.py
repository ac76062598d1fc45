"""Certificates that change while the service runs: the good ones are used, the others told of."""

import asyncio
import logging
import shutil
import ssl
import subprocess
import time
from pathlib import Path

import grpc
import pytest

from ratelimit_service.errors import StartError
from ratelimit_service.system.address import Address
from ratelimit_service.transports.options import GrpcOptions, Tls
from ratelimit_service.transports.transport import Transport
from tests.loops import run
from tests.transports.certificates import Issued, authority, expired, issue
from tests.transports.methods import Echo, Talk
from tests.transports.servers import LOCALHOST, OpenTransport, ask, connect, serving, talk, trusting


def test_a_changed_certificate_is_used_from_the_next_connection_on(
    transport: OpenTransport, ca: Issued, replaced: Issued, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ratelimit_service")
    renewed = issue(ca, "renewed", "DNS:localhost")

    async def story() -> tuple[bool, bool, bytes]:
        options = GrpcOptions(tls=Tls(str(replaced.cert), str(replaced.key)))
        async with serving(transport, [Echo()], options=options) as (_, address):
            before = await shown(address) == pem(replaced)
            shutil.copy(renewed.key, replaced.key)
            shutil.copy(renewed.cert, replaced.cert)
            after = await shown(address) == pem(renewed)
            async with connect(address, trusting(ca)) as channel:
                return before, after, await ask(channel, Echo(), b"still here")

    assert run(story()) == (True, True, b"still here")
    assert lines(caplog) == [f"certificate reloaded from {replaced.cert}"]


def test_a_broken_certificate_never_replaces_a_good_one(
    transport: OpenTransport, ca: Issued, replaced: Issued, caplog: pytest.LogCaptureFixture
) -> None:
    """One line when it breaks, however many connections come, and one when it is good again."""
    caplog.set_level(logging.INFO, "ratelimit_service")
    renewed = issue(ca, "again", "DNS:localhost")
    old = pem(replaced)

    async def story() -> list[bool]:
        options = GrpcOptions(tls=Tls(str(replaced.cert), str(replaced.key)))
        async with serving(transport, [Echo()], options=options) as (_, address):
            shutil.copy(renewed.cert, replaced.cert)  # and its key is not there yet
            kept = [await shown(address) == old for _ in range(3)]
            replaced.key.unlink()
            kept += [await shown(address) == old for _ in range(3)]
            shutil.copy(renewed.key, replaced.key)
            return [*kept, await shown(address) == pem(renewed)]

    cert, key = replaced
    stays = "certificate not loaded, the old one stays:"
    assert run(story()) == [True] * 7
    assert lines(caplog) == [
        f"{stays} cannot use the private key {key}: it does not belong to the certificate {cert}",
        f"{stays} cannot read the private key {key}: no such file or directory",
        f"certificate reloaded from {cert}",
    ]


def test_a_changed_certificate_is_used_at_every_address(transport: OpenTransport, ca: Issued, replaced: Issued) -> None:
    renewed = issue(ca, "everywhere", "DNS:localhost")

    async def story() -> list[str]:
        served = transport(GrpcOptions(tls=Tls(str(replaced.cert), str(replaced.key))))
        addresses = await served.start([Echo()], [], [LOCALHOST, LOCALHOST])
        try:
            shutil.copy(renewed.key, replaced.key)
            shutil.copy(renewed.cert, replaced.cert)
            return [await shown(address) for address in addresses]
        finally:
            await served.stop(0)

    assert run(story()) == [pem(renewed)] * 2


def test_metrics_tell_whether_the_certificate_on_disk_is_in_use_and_when_it_expires(
    transport: OpenTransport, ca: Issued, replaced: Issued
) -> None:
    renewed = issue(ca, "told", "DNS:localhost")
    expiry = [when(replaced), when(renewed)]

    async def story() -> list[tuple[int, int]]:
        """Nobody connects: it is seen by who asks."""
        options = GrpcOptions(tls=Tls(str(replaced.cert), str(replaced.key)))
        async with serving(transport, [Echo()], options=options) as (served, _):
            found = [of_tls(served)]
            shutil.copy(renewed.cert, replaced.cert)  # and its key is not there yet
            found.append(of_tls(served))
            shutil.copy(renewed.key, replaced.key)
            return [*found, of_tls(served)]

    assert run(story()) == [(1, expiry[0]), (0, expiry[0]), (1, expiry[1])]


def test_metrics_tell_when_a_certificate_that_the_service_started_with_had_expired(
    transport: OpenTransport, ca: Issued, server: Issued
) -> None:
    async def story() -> tuple[int, int]:
        options = GrpcOptions(tls=Tls(str(expired(ca, server)), str(server.key)))
        async with serving(transport, [Echo()], options=options) as (served, _):
            return of_tls(served)

    good, expiry = run(story())

    assert good == 1
    assert 0 < time.time() - expiry < 2 * 86_400


@pytest.mark.parametrize("broken", ["no cert", "no key", "cert is none", "key is none", "locked", "mismatch", "no ca"])
def test_a_certificate_that_cannot_be_used_is_a_start_error_of_one_line(
    transport: OpenTransport, ca: Issued, server: Issued, tmp_path: Path, broken: str
) -> None:
    rubbish, locked = tmp_path / "rubbish", tmp_path / "locked"
    rubbish.write_text("no pem\n", encoding="utf-8")
    lock = ["openssl", "ec", "-aes128", "-passout", "pass:x", "-in", str(server.key), "-out", str(locked)]
    subprocess.run(lock, check=True, capture_output=True, timeout=60)
    cert, key = map(str, server)
    unusable = "it is not a private key in PEM without a password"
    tls, problem = {
        "no cert": (Tls("/no/cert", key), "cannot read the certificate /no/cert: no such file or directory"),
        "no key": (Tls(cert, "/no/key"), "cannot read the private key /no/key: no such file or directory"),
        "cert is none": (Tls(key, key), f"cannot use the certificate {key}: it is not a certificate in PEM"),
        "key is none": (Tls(cert, str(rubbish)), f"cannot use the private key {rubbish}: {unusable}"),
        "locked": (Tls(cert, str(locked)), f"cannot use the private key {locked}: {unusable}"),
        "mismatch": (
            Tls(cert, str(ca.key)),
            f"cannot use the private key {ca.key}: it does not belong to the certificate {cert}",
        ),
        "no ca": (Tls(cert, key, str(rubbish)), f"cannot use the client CA {rubbish}: it is not a certificate in PEM"),
    }[broken]

    with pytest.raises(StartError) as refused:
        run(transport(GrpcOptions(tls=tls)).start([Echo()], [], [LOCALHOST]))

    assert str(refused.value) == problem


def test_a_symlink_that_is_swapped_is_a_change(
    transport: OpenTransport, ca: Issued, replaced: Issued, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As Kubernetes does with secrets: the files are links through `..data`, which is replaced in one step."""
    caplog.set_level(logging.INFO, "ratelimit_service")
    renewed = issue(ca, "swapped", "DNS:localhost")
    for name, pair in ("..1", replaced), ("..2", renewed):
        (tmp_path / name).mkdir()
        shutil.copy(pair.cert, tmp_path / name / "tls.crt")
        shutil.copy(pair.key, tmp_path / name / "tls.key")
    (tmp_path / "..data").symlink_to("..1")
    mounted = Issued(tmp_path / "tls.crt", tmp_path / "tls.key")
    for path in mounted:
        path.symlink_to(Path("..data", path.name))

    async def story() -> tuple[bool, bool]:
        options = GrpcOptions(tls=Tls(str(mounted.cert), str(mounted.key)))
        async with serving(transport, [Echo()], options=options) as (_, address):
            before = await shown(address) == pem(replaced)
            (tmp_path / "..new").symlink_to("..2")
            (tmp_path / "..new").rename(tmp_path / "..data")
            return before, await shown(address) == pem(renewed)

    assert run(story()) == (True, True)
    assert lines(caplog) == [f"certificate reloaded from {mounted.cert}"]


@pytest.mark.parametrize("broken", ["half written", "empty", "expired", "of another key"])
def test_a_certificate_that_clients_would_refuse_is_not_loaded(
    transport: OpenTransport, ca: Issued, replaced: Issued, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    caplog.set_level(logging.INFO, "ratelimit_service")
    cert, key = replaced
    good = cert.read_bytes()
    bad, problem = {
        "half written": (good[: len(good) // 2], f"certificate {cert}: it is not a certificate in PEM"),
        "empty": (b"", f"certificate {cert}: it is not a certificate in PEM"),
        "expired": (expired(ca, replaced).read_bytes(), f"certificate {cert}: it has expired"),
        "of another key": (ca.cert.read_bytes(), f"private key {key}: it does not belong to the certificate {cert}"),
    }[broken]

    async def story() -> list[bool]:
        options = GrpcOptions(tls=Tls(str(cert), str(key)))
        async with serving(transport, [Echo()], options=options) as (_, address):
            cert.write_bytes(bad)
            kept = [await shown(address) == good.decode().strip() for _ in range(3)]
            cert.write_bytes(good)
            return [*kept, await shown(address) == good.decode().strip()]

    assert run(story()) == [True] * 4
    assert lines(caplog) == [
        f"certificate not loaded, the old one stays: cannot use the {problem}",
        f"the certificate file {cert} matches the certificate in use again",
    ]


def test_a_service_starts_with_a_certificate_that_has_expired_and_says_so(
    transport: OpenTransport, ca: Issued, server: Issued, caplog: pytest.LogCaptureFixture
) -> None:
    cert = expired(ca, server)

    async def story() -> str:
        options = GrpcOptions(tls=Tls(str(cert), str(server.key)))
        async with serving(transport, [Echo()], options=options) as (_, address):
            return await shown(address)

    assert run(story()) == cert.read_text().strip()
    assert lines(caplog) == [f"certificate {cert}: it has expired"]


def test_connections_go_on_when_the_certificate_changes(transport: OpenTransport, ca: Issued, replaced: Issued) -> None:
    renewed = issue(ca, "later", "DNS:localhost")

    async def story() -> list[bytes]:
        method = Talk()
        options = GrpcOptions(tls=Tls(str(replaced.cert), str(replaced.key)))
        served = serving(transport, [Echo()], [method], options=options)
        async with served as (_, address), connect(address, trusting(ca)) as channel:
            call = talk(channel, method)
            await call.write(b"one")
            answers = [await call.read()]
            shutil.copy(renewed.key, replaced.key)
            shutil.copy(renewed.cert, replaced.cert)
            assert await shown(address) == pem(renewed)
            await call.write(b"two")
            answers += [await call.read(), await ask(channel, Echo(), b"three")]
            await call.done_writing()
            return answers

    assert run(story()) == [b"one", b"two", b"three"]


def test_another_authority_of_clients_is_believed_from_the_next_connection_on(
    transport: OpenTransport, ca: Issued, server: Issued, tmp_path: Path
) -> None:
    first, second = authority(tmp_path, "first"), authority(tmp_path, "second")
    clients = issue(first, "one", "DNS:client"), issue(second, "two", "DNS:client")
    believed = tmp_path / "believed.pem"

    async def story() -> list[list[bool]]:
        shutil.copy(first.cert, believed)
        options = GrpcOptions(tls=Tls(str(server.cert), str(server.key), str(believed)))
        async with serving(transport, [Echo()], options=options) as (_, address):
            before = [await admitted(address, trusting(ca, client)) for client in clients]
            shutil.copy(second.cert, believed)
            return [before, [await admitted(address, trusting(ca, client)) for client in clients]]

    assert run(story()) == [[True, False], [False, True]]


async def admitted(address: Address, credentials: grpc.ChannelCredentials) -> bool:
    """Whether such a client is served."""
    async with connect(address, credentials) as channel:
        try:
            return await ask(channel, Echo(), b"hello") == b"hello"
        except grpc.aio.AioRpcError:
            return False


async def shown(address: Address) -> str:
    """The certificate that a new connection is shown, as OpenSSL sees it."""
    host, _, port = str(address).rpartition(":")
    return (await asyncio.to_thread(ssl.get_server_certificate, (host, int(port)))).strip()


def of_tls(served: Transport) -> tuple[int, int]:
    """What the metrics say: whether the certificate on disk is in use, and when the one in use expires."""
    values = {metric.name: metric.samples[0][1] for metric in served.metrics() if metric.merge_by_min}
    good = values["ratelimit_tls_reload_last_attempt_successful"]
    expiry = values["ratelimit_tls_certificate_expiry_timestamp_seconds"]
    assert isinstance(good, int)
    assert isinstance(expiry, int)
    return good, expiry


def when(issued: Issued) -> int:
    """When a certificate expires, as the openssl program says."""
    asked = ["openssl", "x509", "-noout", "-enddate", "-in", str(issued.cert)]
    said = subprocess.run(asked, check=True, capture_output=True, text=True, timeout=60).stdout
    return int(ssl.cert_time_to_seconds(said.strip().removeprefix("notAfter=")))


def pem(issued: Issued) -> str:
    """The certificate in its file."""
    return issued.cert.read_text(encoding="ascii").strip()


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the service logged."""
    return [record.getMessage() for record in caplog.records if record.name.startswith("ratelimit_service")]
