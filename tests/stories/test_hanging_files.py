"""A file system that does not answer holds up neither calls nor signals, and is told."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from tests import hanging
from tests.processes import Service, ask, start_service
from tests.transports.certificates import Issued, authority, issue
from tests.workers.pool import callers

RULES = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 100}}]\n"
REMOTE = "domain: api\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 100}}]\n"
ASK = '{"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "ada"}]}]}'
LOADED = "\nratelimit_reload_last_attempt_successful 1\n"
NOT_LOADED = "\nratelimit_reload_last_attempt_successful 0\n"
TLS_LOADED = "ratelimit_tls_reload_last_attempt_successful"
HANGS = "cannot be read: its file system has not answered for 10 s; SIGHUP tries again at once\n"

pytestmark = pytest.mark.skipif(not hanging.can_hang(), reason="a process may not mount what it serves itself")


@contextmanager
def started(folder: Path, *, hangs: bool = False) -> Iterator[tuple[Service, hanging.Server]]:
    """A service that has rules of its own, and some on a file system that can hang."""
    file, mount = folder / "remote.yaml", folder / "rules" / "remote"
    file.write_text(REMOTE)
    mount.mkdir(parents=True)
    (folder / "rules" / "shop.yaml").write_text(RULES)
    prefix = hanging.command(mount, file, folder / "pid", hangs=hangs)
    with start_service(folder / "service", folder / "rules", prefix=prefix, wait_until_healthy=not hangs) as service:
        yield service, hanging.Server(folder / "pid")


def test_a_look_at_the_rules_that_hangs_is_told_once_and_the_rules_stay(tmp_path: Path) -> None:
    with started(tmp_path) as (service, server):
        server.hang()
        service.wait_until(lambda: NOT_LOADED in service.metrics(), "it is told")
        answer = ask(service.http_port, "/json", method="POST", body=ASK)
        told = service.log.count(HANGS)
        server.go_on()
        service.wait_until(lambda: LOADED in service.metrics(), "the rules are looked at again")

        assert answer.status == 200
        assert f"the old rules stay:\n  {service.rules}: {HANGS}" in service.log
        assert told == 1
        assert service.log.count("rules loaded") == 2
        assert service.stop() == 0


def test_sigterm_ends_a_service_whose_rules_hang(tmp_path: Path) -> None:
    with started(tmp_path) as (service, server):
        server.hang()
        service.wait_until(lambda: HANGS in service.log, "it is told")

        assert service.stop() == 0
        assert service.log.rstrip().endswith("stopped")


def test_sighup_looks_at_once_at_what_is_there_instead(tmp_path: Path) -> None:
    """The mount is given up, as by `umount --lazy`; the look that hangs in it may never end."""
    with started(tmp_path) as (service, server):
        server.hang()
        service.wait_until(lambda: HANGS in service.log, "it is told")
        (tmp_path / "rules").rename(tmp_path / "old")
        service.rules.mkdir()
        service.write_rules(RULES)
        service.send(signal.SIGHUP)
        service.wait_until(lambda: LOADED in service.metrics(), "the rules are loaded")
        service.write_rules(RULES.replace("user", "client"))
        service.wait_until(lambda: service.log.count("rules loaded") == 3, "changes are seen as before")

        assert service.stop() == 0


def test_a_start_with_rules_that_hang_listens_and_serves_when_they_answer(tmp_path: Path) -> None:
    with started(tmp_path, hangs=True) as (service, server):
        assert f"there are none yet, calls are refused:\n  {service.rules}: {HANGS}" in service.log
        server.go_on()
        service.wait_until(lambda: service.healthy, "it serves")

        assert "2 rules in 2 domains, 2 files" in service.log


def test_a_start_with_rules_that_hang_can_be_ended(tmp_path: Path) -> None:
    with started(tmp_path, hangs=True) as (service, _):
        assert service.stop() == 0


def test_a_certificate_on_a_file_system_that_hangs_stays_in_use(tmp_path: Path, transport: str) -> None:
    ca = authority(tmp_path)
    own = issue(ca, "server", "IP:127.0.0.1")
    mount = tmp_path / "certificates"
    mount.mkdir()
    environ = {"TRANSPORT": transport, **Issued(mount / own.cert.name, own.key).environ}
    prefix = hanging.command(mount, own.cert, tmp_path / "pid")
    good, bad = f"\n{TLS_LOADED} 1\n", f"\n{TLS_LOADED} 0\n"
    with start_service(tmp_path / "service", RULES, environ, prefix=prefix) as service:
        server = hanging.Server(tmp_path / "pid")
        server.hang()
        with callers(service.grpc_port, 3, grpc.ssl_channel_credentials(ca.cert.read_bytes())):  # each has an answer
            service.wait_until(lambda: bad in service.metrics(), "it is told")
        server.go_on()
        service.wait_until(lambda: good in service.metrics(), "it is read again")
        server.hang()
        service.wait_until(lambda: bad in service.metrics(), "it is told again")

        told = f"cannot read the certificate {mount / own.cert.name}: its file system does not answer\n"
        again = f"the certificate file {mount / own.cert.name} matches the certificate in use again\n"
        assert service.log.count(f"the old one stays: {told}") == service.log.count(again) + 1
        assert service.stop() == 0


def test_sigterm_ends_a_service_whose_resolver_hangs(tmp_path: Path) -> None:
    """It reads /etc/hosts, in a thread that cannot be given up; a name server that does not answer takes minutes."""
    hosts, mount = tmp_path / "hosts", tmp_path / "etc"
    hosts.write_text("127.0.0.1 localhost\n")
    mount.mkdir()
    over = ["sh", "-c", f'mount --bind {mount / "hosts"} /etc/hosts && exec "$@"', "sh"]
    prefix = [*hanging.command(mount, hosts, tmp_path / "pid"), *over]
    with start_service(tmp_path / "service", RULES, {"REDIS_URL": "redis.example:6379"}, prefix=prefix) as service:
        hanging.Server(tmp_path / "pid").hang()
        service.wait_until(lambda: waits_for_fuse(service.pid), "the name is looked up")

        assert service.stop() == 0
        assert service.log.rstrip().endswith("stopped")


def waits_for_fuse(pid: int) -> bool:
    """A thread of the process waits for the answer to a request; so the kernel's function is called since 2006."""
    return any(thread.read_text() == "request_wait_answer" for thread in Path(f"/proc/{pid}/task").glob("*/wchan"))


LOOKUP = """\
domain: shop
lookup: {from: FILE, key: user, as: tier}
descriptors: [{key: tier, value: pro, rate_limit: {unit: year, requests_per_unit: 100}}]
"""


@contextmanager
def started_with_data(folder: Path, *, hangs: bool = False) -> Iterator[tuple[Service, hanging.Server]]:
    """A service whose rules name a data file on a file system that can hang."""
    file, mount = folder / "users.csv", folder / "mount"
    file.write_text("ada,pro\n")
    mount.mkdir()
    rules = LOOKUP.replace("FILE", f"{mount}/users.csv")
    prefix = hanging.command(mount, file, folder / "pid", hangs=hangs)
    with start_service(folder / "service", rules, prefix=prefix, wait_until_healthy=not hangs) as service:
        yield service, hanging.Server(folder / "pid")


def test_a_data_file_that_hangs_is_told_once_and_the_rules_stay(tmp_path: Path) -> None:
    with started_with_data(tmp_path) as (service, server):
        server.hang()
        service.wait_until(lambda: NOT_LOADED in service.metrics(), "it is told")
        answer = ask(service.http_port, "/json", method="POST", body=ASK)
        told = service.log.count(HANGS)
        server.go_on()
        service.wait_until(lambda: LOADED in service.metrics(), "it is looked at again")

        assert '"requestsPerUnit":100' in answer.body
        assert f"the old rules stay:\n  {tmp_path}/mount/users.csv: {HANGS}" in service.log
        assert told == 1
        assert service.stop() == 0


def test_a_start_with_a_data_file_that_hangs_listens_and_serves_when_it_answers(tmp_path: Path) -> None:
    with started_with_data(tmp_path, hangs=True) as (service, server):
        assert 'users.csv" cannot be read: its file system has not answered for 10 s\n' in service.log
        server.go_on()
        service.wait_until(lambda: service.healthy, "it serves")

        assert "1 rule in 1 domain, 1 file, 1 data file" in service.log


def test_a_start_with_a_data_file_that_hangs_can_be_ended(tmp_path: Path) -> None:
    with started_with_data(tmp_path, hangs=True) as (service, _):
        assert service.stop() == 0
