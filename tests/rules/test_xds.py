"""The source whose rules a control plane sends, against one that sends anything."""

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from time import process_time
from typing import Any

import grpc
import pytest

from ratelimit_service.errors import Problem
from ratelimit_service.rules.loading import Loading
from ratelimit_service.rules.reading.parse import parse
from ratelimit_service.rules.sources.source import Documents
from ratelimit_service.rules.sources.xds.dial import ControlPlane
from ratelimit_service.rules.sources.xds.snapshot import MAX_RESOURCES, TYPE_URL
from ratelimit_service.rules.sources.xds.source import XdsRules
from ratelimit_service.settings.load import load_settings
from tests.processes import ROOT
from tests.rules.planes import Plane, Stream, config, field, response, start_plane, user
from tests.stores.redis_stores import until
from tests.transports.certificates import authority, issue

QUICK: dict[str, Any] = {"first_pause": 0.01, "longest_pause": 0.05}
"""Pauses between two dials."""


class Follower:
    """The rules of a control plane, loaded."""

    def __init__(self, plane: Plane, kept: Path | None, options: dict[str, Any]) -> None:
        of_plane = ControlPlane(plane.address, **{**QUICK, **options})
        self.source = XdsRules(of_plane, kept=kept, start_seconds=0.2, first_hold=0.05)
        self.loading = Loading([self.source], parse, lambda _: None)

    @property
    def limits(self) -> dict[str, int]:
        """The number of each rule by its path."""
        book = self.loading.book
        rules = () if book is None else book.rules
        return {".".join(rule.path): rule.limit.requests for rule in rules if rule.limit is not None}


@asynccontextmanager
async def following(plane: Plane, kept: Path | None = None, **options: Any) -> AsyncIterator[Follower]:
    """What follows the control plane from now on."""
    follower = Follower(plane, kept, options)
    await follower.loading.load()
    task = asyncio.create_task(follower.loading.run())
    try:
        yield follower
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def play(story: Callable[[Plane, Follower, Stream], Awaitable[None]]) -> None:
    """A control plane, what follows it, and the first stream, of which the first request was taken."""

    async def run() -> None:
        async with start_plane() as plane, following(plane) as follower:
            stream = await plane.stream()
            await stream.request()
            await story(plane, follower, stream)

    asyncio.run(run())


def test_the_first_request_says_who_asks_and_names_neither_version_nor_nonce() -> None:
    async def run() -> None:
        options: dict[str, Any] = {"node_id": "edge", "node_metadata": {"zone": "a", "team": "x=y"}}
        options["headers"] = (("x-tenant", "t1"),)
        async with start_plane() as plane, following(plane, **options):
            stream = await plane.stream()
            request = await stream.request()

            assert (request.version_info, request.response_nonce, request.type_url) == ("", "", TYPE_URL)
            assert request.node.id == "edge"
            assert dict(request.node.metadata.items()) == {"zone": "a", "team": "x=y"}
            assert stream.headers["x-tenant"] == "t1"

    asyncio.run(run())


def test_a_snapshot_is_acknowledged_once_its_rules_are_in_force() -> None:
    async def story(_: Plane, follower: Follower, stream: Stream) -> None:
        stream.send(response("1", config("shop", user(5)), config("mail", user(7)), nonce="a"))
        ack = await stream.request()

        assert (ack.version_info, ack.response_nonce, ack.HasField("error_detail")) == ("1", "a", False)
        assert follower.limits == {"shop.user": 5, "mail.user": 7}
        assert follower.source.connection.connected
        assert (follower.source.connection.version, follower.source.connection.accepted) == ("1", 1)

    play(story)


def test_a_wrong_snapshot_is_refused_with_every_fault_and_the_old_rules_stay() -> None:
    async def story(_: Plane, follower: Follower, stream: Stream) -> None:
        stream.send(response("1", config("shop", user(5))))
        await stream.request()
        stream.send(response("2", config("eg/http", user(1, "UNKNOWN")), config("", user(1)), config("shop", user(9))))
        nack = await stream.request()

        assert (nack.version_info, nack.response_nonce, nack.error_detail.code) == ("1", "n2", 3)
        units = "second, minute, hour, day, week, month, year"
        assert nack.error_detail.message.split("\n") == [
            f'resource eg/http /descriptors/0/rate_limit/unit: unit "UNKNOWN" is not one of {units}',
            "resource 1 /domain: domain must not be empty",
        ]
        assert follower.limits == {"shop.user": 5}
        assert (follower.source.connection.accepted, follower.source.connection.rejected) == (1, 1)

    play(story)


def test_what_is_not_a_config_of_rules_is_refused_with_its_number_or_its_name() -> None:
    async def story(_: Plane, __: Follower, stream: Stream) -> None:
        other = field(1, b"type.googleapis.com/envoy.config.cluster.v3.Cluster") + field(2, b"x")
        cut = field(1, TYPE_URL.encode()) + field(2, b"\x0a\x04mail\x1a\x7f")
        bare = field(2, config("shop"))
        below = field(1, TYPE_URL.encode()) + field(2, field(1, b"pay") + field(3, b"\x0a\x05a"))
        whole = b"".join(field(2, each) for each in (other, cut, bare))
        stream.send(field(1, b"1") + whole + field(5, b"a"))
        faults = [(await stream.request()).error_detail.message]
        stream.send(field(1, b"2") + field(2, below) + field(5, b"b"))
        faults.append((await stream.request()).error_detail.message)
        wanted = "ratelimit.config.ratelimit.v3.RateLimitConfig"
        assert faults[0].split("\n") == [
            f"resource 0: is a envoy.config.cluster.v3.Cluster, not a {wanted}",
            f"resource 1: is not a {wanted}: field 3 is cut off at byte 8",
            f"resource 2: is a message without a type, not a {wanted}",
        ]
        assert faults[1].startswith("resource pay /descriptors/0: is not a RateLimitDescriptor: ")

    play(story)


def test_two_resources_of_one_domain_are_refused() -> None:
    async def story(_: Plane, __: Follower, stream: Stream) -> None:
        stream.send(response("1", config("shop", user(5), name="a"), config("shop", user(6), name="b")))

        assert (await stream.request()).error_detail.message == (
            'resource b /domain: domain "shop" is already in resource a /domain; MERGE_DOMAIN_CONFIG joins files'
        )

    play(story)


def test_bytes_that_are_no_response_end_the_stream_and_another_one_begins() -> None:
    async def story(plane: Plane, follower: Follower, stream: Stream) -> None:
        stream.send(b"\xff\xff\xff")
        stream = await plane.stream()
        stream.send(response("1", config("shop", user(5))))

        await until(lambda: follower.limits == {"shop.user": 5}, "they are in force")

    play(story)


def test_a_control_plane_that_begins_again_is_asked_from_the_start_and_its_rules_are_known_again() -> None:
    async def story(plane: Plane, follower: Follower, stream: Stream) -> None:
        mail, shop = config("mail", user(7)), config("shop", user(5))
        stream.send(response("41", shop, mail))
        await stream.request()
        stream.end()
        stream = await plane.stream()
        first = await stream.request()
        stream.send(response("1", mail, shop))
        ack = await stream.request()

        assert (first.version_info, first.response_nonce) == ("", "")
        assert (ack.version_info, ack.response_nonce) == ("1", "n1")
        assert follower.loading.successes == 1
        assert follower.source.connection.version == "1"

    play(story)


def test_after_a_refusal_a_new_stream_does_not_name_the_refused_version() -> None:
    async def story(plane: Plane, follower: Follower, stream: Stream) -> None:
        stream.send(response("5", config("shop", user(5, "UNKNOWN"))))
        await stream.request()
        stream.end()
        stream = await plane.stream()
        first = await stream.request()
        stream.send(response("5", config("shop", user(6))))

        assert (first.version_info, first.response_nonce) == ("", "")
        assert (await stream.request()).version_info == "5"
        assert follower.limits == {"shop.user": 6}

    play(story)


def test_the_same_wrong_snapshot_again_and_again_is_loaded_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def story(_: Plane, follower: Follower, stream: Stream) -> None:
        wrong = config("shop", user(5, "UNKNOWN"))
        stream.send(response("1", wrong))
        await stream.request()
        began = process_time()
        stream.send(*(response(f"{number}", wrong) for number in range(2, 2000)))
        nacks = [await stream.request()]
        stream.send(response("2000", config("shop", user(5))))
        while (answer := await stream.request()).error_detail.code:
            nacks.append(answer)

        assert answer.version_info == "2000"
        assert follower.loading.failures == 1
        assert len(nacks) < 10
        assert process_time() - began < 30  # far from a loop without a pause
        assert len([each for each in caplog.messages if each.startswith("rules not loaded")]) == 1

    play(story)


def test_the_newest_of_snapshots_that_come_too_fast_is_loaded() -> None:
    async def story(_: Plane, follower: Follower, stream: Stream) -> None:
        stream.send(*(response(f"{number}", config("shop", user(number))) for number in range(1, 1000)))

        await until(lambda: follower.limits == {"shop.user": 999}, "the last one is in force")
        assert follower.source.connection.received == 999
        assert follower.loading.successes < 100

    play(story)


def test_an_empty_snapshot_ends_all_limits_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def story(_: Plane, follower: Follower, stream: Stream) -> None:
        stream.send(response("1", config("shop", user(5))))
        await stream.request()
        stream.send(response("2"))

        assert (await stream.request()).version_info == "2"
        assert follower.limits == {}
        assert any(each.endswith("sent no rules: nothing is limited") for each in caplog.messages)

    play(story)


def test_thousands_of_resources_are_loaded_and_a_million_are_refused() -> None:
    async def story(_: Plane, follower: Follower, stream: Stream) -> None:
        stream.send(response("1", *(config(f"d{number}", user(5)) for number in range(2_000))))
        assert (await stream.request()).version_info == "1"
        assert len(follower.limits) == 2_000
        stream.send(field(1, b"2") + 1_000_000 * b"\x12\x00" + field(5, b"n2"))
        nack = await stream.request()

        assert nack.error_detail.message.endswith(f"has 1,000,000 resources, of {MAX_RESOURCES:,} at most")
        assert len(follower.limits) == 2_000

    play(story)


def test_a_snapshot_with_too_many_descriptors_or_levels_of_them_is_refused() -> None:
    async def story(_: Plane, __: Follower, stream: Stream) -> None:
        below = field(4, field(1, b"b"))
        one = field(3, field(1, b"a") + 9 * below)
        stream.send(response("3", *(field(2, b"%d" % number) + 3_000 * one for number in range(7))))
        nack = await stream.request()
        most = "the response has more than 200,000 descriptors, or more than 50 levels of them"
        assert nack.error_detail.message.endswith(most)
        for _level in range(60):
            below = field(4, field(1, b"b") + below)
        stream.send(response("4", field(2, b"deep") + field(3, field(1, b"a") + below)))
        nack = await stream.request()
        assert nack.error_detail.message.endswith(most)

    play(story)


def test_a_snapshot_that_is_too_large_ends_each_stream_and_is_not_logged_each_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(plane: Plane, follower: Follower, stream: Stream) -> None:
        stream.send(response("1", config("shop", user(5))))
        await stream.request()
        for _again in range(5):
            stream.send(response("2", 17 * 2**20 * b"x"))
            stream = await plane.stream()
            await stream.request()

        assert follower.limits == {"shop.user": 5}
        lost = [each for each in caplog.messages if " is lost: RESOURCE_EXHAUSTED" in each]
        assert len(lost) == 2  # the first one that brought something, and the first that brought nothing
        assert "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES" in lost[0]

    play(story)


def test_the_certificate_of_a_control_plane_must_be_for_its_host_or_for_the_name_that_is_set(tmp_path: Path) -> None:
    ca = authority(tmp_path)
    server = issue(ca, "server", "DNS:envoy-gateway")
    credentials = grpc.ssl_server_credentials([(server.key.read_bytes(), server.cert.read_bytes())])
    trusting = {
        "CONFIG_TYPE": "GRPC_XDS_SOTW",
        "CONFIG_GRPC_XDS_SERVER_USE_TLS": "true",
        "CONFIG_GRPC_XDS_SERVER_TLS_CACERT": str(ca.cert),
    }

    async def connects(name: str) -> bool:
        settings, _ = load_settings(trusting | {"CONFIG_GRPC_XDS_SERVER_TLS_SAN": name})
        options = ControlPlane.of(settings)._asdict() | QUICK
        del options["address"]
        async with start_plane(credentials=credentials) as plane, following(plane, **options) as follower:
            await until(lambda: bool(plane.dialled or follower.source.connection.why), "it has dialled")
            return plane.dialled > 0

    assert [asyncio.run(connects(name)) for name in ("envoy-gateway", "", "other")] == [True, False, False]


def test_a_control_plane_that_is_lost_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with start_plane() as plane:
            port = plane.port
        gone = Plane(port)
        async with following(gone) as follower:
            connection = follower.source.connection
            assert (connection.connected, connection.why.partition(":")[0]) == (False, "UNAVAILABLE")
            await asyncio.sleep(0.3)  # so that it is dialled some more times: none of them is logged
            async with start_plane(port) as plane:
                await plane.stream()
                await until(lambda: follower.source.connection.connected, "it is found")

    caplog.set_level(logging.INFO)
    asyncio.run(run())
    events = [record.about["event"] for record in caplog.records if hasattr(record, "about")]
    assert events == ["control_plane_lost", "control_plane_connected"]


def test_the_last_good_snapshot_is_kept_and_is_in_force_while_the_control_plane_is_away(tmp_path: Path) -> None:
    kept = tmp_path / "snapshot"

    async def run() -> None:
        async with start_plane() as plane:
            port = plane.port
            async with following(plane, kept) as follower:
                stream = await plane.stream()
                await stream.request()
                stream.send(response("7", config("shop", user(5))))
                await stream.request()
                stream.send(response("8", config("shop", user(5, "UNKNOWN"))))
                await stream.request()
                await until(kept.exists, "it is written")
        gone = Plane(port)
        async with following(gone, kept) as follower:
            assert follower.limits == {"shop.user": 5}
            assert follower.source.connection.kept == str(kept)
            async with start_plane(port) as plane:
                stream = await plane.stream()
                await stream.request()
                stream.send(response("9", config("shop", user(5))))
                assert (await stream.request()).version_info == "9"
                assert (follower.source.connection.kept, follower.loading.successes) == ("", 1)

    asyncio.run(run())
    assert [path.name for path in tmp_path.iterdir()] == ["snapshot"]


def test_a_snapshot_on_disk_that_is_not_one_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = tmp_path / "snapshot"
    kept.write_bytes(b"\xff\xff")

    async def run() -> None:
        async with following(Plane(1), kept) as follower:
            assert follower.loading.book is None
            assert follower.loading.failures == 0

    asyncio.run(run())
    assert any(each.startswith(f"the snapshot in {kept} cannot be read: ") for each in caplog.messages)


def test_a_reload_loads_what_was_sent_last_and_answers_it_once() -> None:
    async def story(_: Plane, follower: Follower, stream: Stream) -> None:
        stream.send(response("1", config("shop", user(5))))
        await stream.request()
        follower.loading.reload()

        await until(lambda: follower.loading.successes == 2, "it is loaded again")
        assert stream.requests.empty()

    play(story)


def test_processes_may_be_started_while_a_stream_is_busy() -> None:
    script = Path(__file__).with_name("busy_stream_forks.py")
    environ = os.environ | {"PYTHONPATH": str(ROOT), "GRPC_ENABLE_FORK_SUPPORT": "true"}
    done = subprocess.run(
        [sys.executable, script], env=environ, stdout=subprocess.PIPE, text=True, timeout=60, check=True
    )

    assert done.stdout == "0 of 100\n"


def test_what_comes_while_the_kept_snapshot_is_loaded_is_answered_when_it_is_loaded_itself(tmp_path: Path) -> None:
    kept = tmp_path / "snapshot"
    kept.write_bytes(response("7", config("shop", user(5))))

    async def run() -> None:
        async with start_plane() as plane:
            source = XdsRules(ControlPlane(plane.address, **QUICK), kept=kept, start_seconds=0.05)
            assert isinstance(await source.read(required=True), Documents)
            stream = await plane.stream()
            await stream.request()
            stream.send(response("8", config("shop", user(5, "UNKNOWN"))))
            await until(lambda: source.connection.received == 1, "it has come")
            source.loaded("", ())
            given = await source.changed()

            assert isinstance(given, Documents)
            assert stream.requests.empty()
            source.loaded(given.version, (Problem("shop", 0, 0, "is wrong"),))
            assert (await stream.request()).error_detail.message == "shop: is wrong"
            source.close()

    asyncio.run(run())
