"""grpc.health.v1, by the contract and by other people's clients."""

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE, Process, create_subprocess_exec
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from ratelimit_service.api.generated.grpc.health.v1.health_pb2 import (
    HealthCheckRequest,
    HealthCheckResponse,
    HealthListResponse,
)
from ratelimit_service.api.health import MAX_WATCHERS, Health
from ratelimit_service.api.method import Receiver
from ratelimit_service.api.reflection import reflection
from ratelimit_service.errors import RpcError, Status
from ratelimit_service.system.address import Tcp
from ratelimit_service.transports.options import GrpcOptions
from tests.api.streams import Sent
from tests.loops import run
from tests.peers import grpc_peers, grpcurl
from tests.transports.servers import OpenTransport

SERVICE = "envoy.service.ratelimit.v3.RateLimitService"

SERVING = b"\x08\x01"
NOT_SERVING = b"\x08\x02"
SERVICE_UNKNOWN = b"\x08\x03"

WAIT_SECONDS = 60

_T = TypeVar("_T")


def healthy() -> Health:
    """A service that has rules."""
    health = Health()
    health.set_rules_loaded(True)
    return health


def check(health: Health, body: bytes) -> bytes | RpcError:
    """The answer of Check."""
    return answered(health, "Check", body)


def answered(health: Health, name: str, body: bytes) -> bytes | RpcError:
    """The answer of a method."""
    (method,) = (method for method in health.methods() if method.path == f"/grpc.health.v1.Health/{name}")
    answers: list[bytes | RpcError] = []
    method.call(body, answers.append)
    (answer,) = answers
    return answer


def watch(health: Health, name: str = "") -> tuple[Sent, Receiver]:
    """A Watch call that has asked its question."""
    sent = Sent()
    (method,) = health.streams()
    receiver = method.open(sent)
    receiver.receive(HealthCheckRequest(service=name).SerializeToString())
    receiver.half_close()
    return sent, receiver


@pytest.mark.parametrize("name", ["", "ratelimit", SERVICE])
def test_a_service_serves_while_it_has_rules_and_does_not_drain(name: str) -> None:
    health, question = Health(), HealthCheckRequest(service=name).SerializeToString()

    answers = [check(health, question)]
    health.set_rules_loaded(True)
    answers.append(check(health, question))
    health.set_rules_loaded(False)
    answers.append(check(health, question))
    health.set_rules_loaded(True)
    health.drain()
    answers.append(check(health, question))
    health.set_rules_loaded(True)
    answers.append(check(health, question))

    assert answers == [NOT_SERVING, SERVING, NOT_SERVING, NOT_SERVING, NOT_SERVING]
    assert not health.serving


def test_a_store_that_is_gone_matters_only_where_it_is_needed() -> None:
    needy, easy = Health(needs_store=True), Health()
    watched = [watch(health)[0] for health in (needy, easy)]

    for health in (needy, easy):
        health.set_rules_loaded(True)
        for healthy_now in (False, True, True, False):
            health.set_store_healthy(healthy_now)

    assert watched[0].messages == [NOT_SERVING, SERVING, NOT_SERVING]
    assert watched[1].messages == [NOT_SERVING, SERVING]


def test_an_unknown_name_is_not_found() -> None:
    answer = check(healthy(), b"\x0a\x04nope")

    assert isinstance(answer, RpcError)
    assert (answer.status, answer.message) == (Status.NOT_FOUND, "no service is named 'nope' here")


@pytest.mark.parametrize(
    ("name", "message"), [("Check", "HealthCheckRequest"), ("List", "HealthListRequest")], ids=["Check", "List"]
)
def test_bytes_that_are_no_message_are_an_invalid_argument(name: str, message: str) -> None:
    answer = answered(healthy(), name, b"\xff")

    assert isinstance(answer, RpcError)
    assert answer.status == Status.INVALID_ARGUMENT
    assert answer.message.startswith(f"the message is not a {message}: ")


def test_list_names_every_service() -> None:
    answer = answered(healthy(), "List", b"")

    assert isinstance(answer, bytes)
    statuses = {name: status.status for name, status in HealthListResponse.FromString(answer).statuses.items()}
    assert statuses == dict.fromkeys(["", "ratelimit", SERVICE], HealthCheckResponse.SERVING)


def test_watch_tells_at_once_and_at_each_change() -> None:
    health = Health()
    sent, _ = watch(health, "ratelimit")

    health.set_rules_loaded(True)
    health.set_rules_loaded(True)
    health.set_rules_loaded(False)
    health.set_rules_loaded(True)
    health.drain()

    assert sent.messages == [NOT_SERVING, SERVING, NOT_SERVING, SERVING, NOT_SERVING]
    assert not sent.finished


def test_watching_an_unknown_name_stays_open() -> None:
    health = Health()
    sent, _ = watch(health, "nope")

    health.set_rules_loaded(True)

    assert sent.messages == [SERVICE_UNKNOWN]
    assert not sent.finished


def test_a_watcher_that_left_is_told_no_more() -> None:
    health = healthy()
    sent, receiver = watch(health)

    receiver.closed()
    health.drain()

    assert sent.messages == [SERVING]


def test_watchers_are_bounded_and_those_that_leave_make_room() -> None:
    health = healthy()
    first, *_ = [watch(health) for _ in range(MAX_WATCHERS)]

    refused, receiver = watch(health)
    receiver.closed()
    first[1].closed()
    admitted, _ = watch(health)

    assert refused.error is not None
    assert refused.error.status == Status.RESOURCE_EXHAUSTED
    assert refused.error.message == "there are 10000 Watch calls, the maximum"
    assert admitted.messages == [SERVING]


def test_finish_ends_the_calls_that_watch_and_those_that_come_after() -> None:
    health = healthy()
    before, _ = watch(health)

    health.drain()
    health.finish()
    after, _ = watch(health)

    assert before.messages == [SERVING, NOT_SERVING]
    assert [sent.error and sent.error.status for sent in (before, after)] == [Status.UNAVAILABLE] * 2
    assert after.messages == []


@pytest.mark.parametrize("messages", [[], [b"", b""]], ids=["none", "two"])
def test_watch_takes_exactly_one_question(messages: list[bytes]) -> None:
    (method,) = healthy().streams()
    sent = Sent()
    receiver = method.open(sent)

    for message in messages:
        receiver.receive(message)
    receiver.half_close()

    assert sent.error is not None
    assert sent.error.status == Status.UNIMPLEMENTED


def test_a_question_of_watch_that_is_no_message_is_an_invalid_argument() -> None:
    (method,) = healthy().streams()
    sent = Sent()

    method.open(sent).receive(b"\xff")

    assert sent.error is not None
    assert sent.error.status == Status.INVALID_ARGUMENT
    assert sent.error.message.startswith("the message is not a HealthCheckRequest: ")


def test_the_client_of_grpcio_checks_and_lists(transport: OpenTransport) -> None:
    async def story() -> list[list[str]]:
        health = healthy()
        async with serving(transport, health) as address:
            lines = [await said(address, "check", name) for name in ("", "ratelimit", SERVICE, "nope")]
            lines.append(await said(address, "list", ""))
            health.drain()
            return [*lines, await said(address, "check", "")]

    assert run(story()) == [
        ["SERVING"],
        ["SERVING"],
        ["SERVING"],
        ["NOT_FOUND no service is named 'nope' here"],
        ["'' SERVING", f"'{SERVICE}' SERVING", "'ratelimit' SERVING"],
        ["NOT_SERVING"],
    ]


def test_the_client_of_grpcio_watches_until_the_service_stops(transport: OpenTransport) -> None:
    async def story() -> list[str]:
        health = Health()
        steps: list[Callable[[], None]] = [lambda: health.set_rules_loaded(True), health.drain, health.finish]
        async with serving(transport, health) as address:
            client = await ask_with_grpcio(address, "watch", "ratelimit")
            lines = []
            for step in steps:
                lines.append(await next_line(client))
                step()
            lines.append(await next_line(client))
            await client.wait()
            return lines

    assert run(story()) == ["NOT_SERVING", "SERVING", "NOT_SERVING", "UNAVAILABLE the service is stopping"]


def test_grpcurl_checks_and_watches(transport: OpenTransport) -> None:
    """It learns the messages by reflection."""

    async def story() -> tuple[object, list[str], int | None]:
        health = healthy()
        async with serving(transport, health) as address:
            checking = await start(grpcurl(), "-plaintext", str(address), "grpc.health.v1.Health/Check")
            checked = json.loads((await within(checking.communicate()))[0])
            watching = await start(grpcurl(), "-plaintext", str(address), "grpc.health.v1.Health/Watch")
            lines = [await status_line(watching)]
            health.drain()
            lines.append(await status_line(watching))
            health.finish()
            await within(watching.communicate())
            return checked, lines, watching.returncode

    assert run(story()) == (
        {"status": "SERVING"},
        ['"status": "SERVING"', '"status": "NOT_SERVING"'],
        64 + Status.UNAVAILABLE,
    )


@asynccontextmanager
async def serving(open_transport: OpenTransport, health: Health) -> AsyncIterator[Tcp]:
    """Health and reflection over a real socket."""
    transport = open_transport(GrpcOptions())
    streams = [*health.streams(), *reflection()]
    (address,) = await transport.start(health.methods(), streams, [Tcp("127.0.0.1", 0)])
    assert isinstance(address, Tcp)
    try:
        yield address
    finally:
        await transport.stop(0)


async def ask_with_grpcio(address: Tcp, verb: str, name: str) -> Process:
    """The client, at work."""
    client = Path(__file__).with_name("health_client.py")
    return await start(sys.executable, client, str(address), verb, name, path=grpc_peers())


async def said(address: Tcp, verb: str, name: str) -> list[str]:
    """What the client printed."""
    client = await ask_with_grpcio(address, verb, name)
    out, _ = await within(client.communicate())
    return out.decode().splitlines()


async def start(program: str | Path, *arguments: str | Path, path: Path | None = None) -> Process:
    """A program whose output is read."""
    environment = os.environ | {"PYTHONPATH": str(path or "")}
    return await create_subprocess_exec(program, *arguments, stdout=PIPE, stderr=PIPE, env=environment)


async def next_line(process: Process) -> str:
    """The next line it prints."""
    assert process.stdout is not None
    return (await within(process.stdout.readline())).decode().strip()


async def status_line(process: Process) -> str:
    """The next line that tells a status."""
    while "status" not in (line := await next_line(process)):
        assert line, "it ended"
    return line


async def within(waiting: Awaitable[_T]) -> _T:
    """Its outcome, or an error when it takes too long."""
    async with asyncio.timeout(WAIT_SECONDS):
        return await waiting
