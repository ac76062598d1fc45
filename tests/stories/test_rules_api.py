"""Rules put by the API of real services: in force on all of them, against a race, kills, a restart and an outage."""

import http.client
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.ports import free_port
from tests.processes import Reply, Service, ask, start_service
from tests.redis import Redis, start_redis

BASE: Final = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 1000000}}]\n"
TOKEN: Final = "0123456789abcdef0123456789abcdef"
YAML: Final = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/yaml"}


def rules(number: int) -> str:
    """Rules of the domain `blog` by which a user has so many requests."""
    return f"domain: blog\ndescriptors: [{{key: user, rate_limit: {{unit: year, requests_per_unit: {number}}}}}]\n"


def put(service: Service, text: str, version: str = "", seconds: float = 60) -> Reply:
    """Put these rules in place of the version, or where there are none."""
    given = YAML | ({"If-Match": version} if version else {"If-None-Match": "*"})
    connection = http.client.HTTPConnection("127.0.0.1", service.debug_port, timeout=seconds)
    try:
        connection.request("PUT", "/rules/blog", text.encode(), given)
        response = connection.getresponse()
        return Reply(response.status, dict(response.getheaders()), response.read().decode())
    finally:
        connection.close()


def limit(service: Service, user: str = "eve") -> int:
    """The limit that a request of this user is answered by; 0: none."""
    body = json.dumps({"domain": "blog", "descriptors": [{"entries": [{"key": "user", "value": user}]}]})
    [status] = json.loads(ask(service.http_port, "/json", method="POST", body=body).body)["statuses"]
    return int(status.get("currentLimit", {}).get("requestsPerUnit", 0))


def wait_for_limit(service: Service, number: int) -> None:
    """Until these rules are in force there."""
    line = f"requests_per_unit={number}"
    service.wait_until(lambda: line in ask(service.debug_port, "/rlconfig").body, f"{line} is in force")


def environ_of(redis: Redis, **more: str) -> dict[str, str]:
    """The settings of an instance that keeps rules in this Redis."""
    return {"REDIS_URL": f"127.0.0.1:{redis.port}", "RULES_STORE": "redis", "ADMIN_TOKEN": TOKEN, **more}


@contextmanager
def instances(folder: Path, **environ: str) -> Iterator[tuple[Redis, Service, Service]]:
    """Two of them, the second one with workers, and their Redis, which keeps what it was given."""
    with ExitStack() as stack:
        redis = stack.enter_context(start_redis(folder / "redis"))
        one = stack.enter_context(start_service(folder / "one", BASE, environ_of(redis, **environ)))
        two = stack.enter_context(start_service(folder / "two", BASE, environ_of(redis, WORKERS="2", **environ)))
        yield redis, one, two


def test_what_is_put_at_one_instance_holds_at_the_workers_of_the_other_and_after_a_restart(tmp_path: Path) -> None:
    with instances(tmp_path) as (redis, one, two):
        first = put(one, rules(5))
        two.wait_until(lambda: {limit(two) for _ in range(4)} == {5}, "both workers have it")
        second = put(two, rules(6), first.headers["ETag"])
        one.wait_until(lambda: limit(one) == 6, "the other one has it")
        with start_service(tmp_path / "three", BASE, environ_of(redis)) as three:
            assert limit(three) == 6
            redis.kill()
            refused = put(three, rules(7), second.headers["ETag"])
            assert (refused.status, json.loads(refused.body)["title"]) == (503, "Service Unavailable")
            wait_for_limit(three, 6)

    assert (first.status, second.status) == (201, 200)


def test_without_redis_an_instance_starts_with_the_rules_of_its_files_and_has_the_others_later(tmp_path: Path) -> None:
    port = free_port()
    environ = {
        "REDIS_URL": f"127.0.0.1:{port}",
        "RULES_STORE": "redis",
        "ADMIN_TOKEN": TOKEN,
        "ON_STORE_FAILURE": "open",
    }
    with start_service(tmp_path / "one", BASE, environ) as service:
        [files, api] = json.loads(ask(service.debug_port, "/status").body)["reload"]["sources"]
        assert [files["current"], api["current"]] == [True, False]
        assert "the rules API (Redis): cannot be read: connection refused" in service.log
        assert put(service, rules(5)).status == 503
        with start_redis(tmp_path / "redis", port=port):
            service.wait_until(lambda: put(service, rules(5)).status == 201, "rules are put")
            wait_for_limit(service, 5)


class Writer(threading.Thread):
    """Adds one to the limit again and again at the instances in turn, until so many puts were accepted."""

    def __init__(self, services: list[Service], puts: int) -> None:
        super().__init__()
        self._services = services
        self._puts = puts
        self.accepted: list[str] = []
        """The versions."""
        self.lost = 0
        """Puts that were refused because another one came before."""
        self.unknown = 0
        """Puts that were not answered: the instance was killed."""

    def run(self) -> None:
        turn = 0
        while len(self.accepted) < self._puts:
            turn += 1
            service = self._services[turn % len(self._services)]
            try:
                read = ask(service.debug_port, "/rules/blog")
            except (OSError, http.client.HTTPException):
                time.sleep(0.05)
                continue
            if read.status != 200:
                time.sleep(0.05)
                continue
            number = int(read.body.rpartition("requests_per_unit: ")[2].partition("}")[0])
            try:
                reply = put(service, rules(number + 1), read.headers["etag"], 20)
            except (OSError, http.client.HTTPException):
                self.unknown += 1
                continue
            match reply.status:
                case 200:
                    self.accepted.append(json.loads(reply.body)["version"])
                case 412:
                    assert json.loads(reply.body)["version"]
                    self.lost += 1
                case _:
                    self.unknown += 1


def race(folder: Path, puts: int, kills: int) -> str:
    """Four writers put at two instances, of which one is killed and started again; returns what came of it."""
    with ExitStack() as stack:
        redis = stack.enter_context(start_redis(folder / "redis"))
        environ = environ_of(redis)
        one = stack.enter_context(start_service(folder / "one", BASE, environ))
        services = [one, stack.enter_context(start_service(folder / "two", BASE, environ))]
        assert put(one, rules(1)).status == 201
        writers = [Writer(services, puts // 4) for _ in range(4)]
        for writer in writers:
            writer.start()
        for number in range(kills):
            while sum(len(writer.accepted) for writer in writers) < puts * (number + 1) / (kills + 1):
                time.sleep(0.02)
            os.kill(services[1].pid, signal.SIGKILL)
            again = start_service(folder / f"two-{number}", BASE, environ)
            services[1] = stack.enter_context(again)
        for writer in writers:
            writer.join()
        history = json.loads(ask(one.debug_port, "/rules/blog/history").body)["versions"]
        present = ask(one.debug_port, "/rules/blog")
        for service in services:
            wait_for_limit(service, history[0]["number"])

    accepted = [version for writer in writers for version in writer.accepted]
    unknown = sum(writer.unknown for writer in writers)
    assert len(set(accepted)) == len(accepted)
    assert present.body == rules(history[0]["number"])
    assert puts <= history[0]["number"] - 1 <= puts + unknown
    assert [each["replaces"] for each in history[:-1]] == [each["version"] for each in history[1:]]
    kept = {each["number"]: each["version"] for each in history}
    of_kept = [version for version in accepted if int(version.partition("-")[0]) in kept]
    assert all(version in kept.values() for version in of_kept)
    return f"{len(accepted)} accepted, {sum(writer.lost for writer in writers)} lost the race, {unknown} not answered"


def test_writers_that_race_at_two_instances_lose_nothing_when_one_is_killed(tmp_path: Path) -> None:
    race(tmp_path, 40, 1)


@pytest.mark.extended
def test_so_do_two_thousand_puts_and_five_kills(tmp_path: Path) -> None:
    print(race(tmp_path, 2000, 5))
