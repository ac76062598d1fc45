"""Who may read and write at the operator's port, with a token and without."""

import asyncio
import base64
import json
import logging
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from ratelimit_service.server.admin.access import Access
from ratelimit_service.server.admin.wrong_tokens import MAX_ADDRESSES, MAX_TRUSTED, WrongTokens
from ratelimit_service.system.address import Tcp
from ratelimit_service.system.clock import SECOND
from ratelimit_service.system.token_file import TokenFile, find_token
from ratelimit_service.telemetry.logs import ThrottledLog
from tests.admin.conftest import RULES
from tests.admin.service import START_SECONDS, Reply, Service, ask, running
from tests.admin.test_bans import BAN, CHANGES, own_address
from tests.browser import browse
from tests.clocks import Clock

TOKEN = "0123456789abcdef0123456789abcdef"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
WRONG = {"Authorization": f"Bearer {TOKEN[:-1]}x"}

PAGES = ("/", "/metrics", "/rlconfig", "/stats", "/status", "/bans")
EXPLAIN = {"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "ada"}]}]}


def basic(user: str, password: str) -> dict[str, str]:
    """The header that a browser or `curl --user` sends."""
    return {"Authorization": f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"}


def send(at: Tcp, verb: str, path: str, body: Any = None, **headers: str) -> Reply:
    """One request, its body as JSON."""
    return ask(at, verb, path, body=None if body is None else json.dumps(body).encode(), headers=headers)


def challenges(reply: Reply) -> list[str]:
    """The schemes by which a client may say who it is."""
    return [challenge.split()[0] for challenge in reply.headers.get_all("WWW-Authenticate") or []]


def wrong_tokens(service: Service) -> str:
    """The metric, as the clients' port has it, which needs no token."""
    found = re.search(
        r"^ratelimit_http_wrong_tokens_total (\d+)$", ask(service.http[0], "GET", "/metrics").text, re.MULTILINE
    )
    assert found
    return found[1]


def test_a_client_is_told_whether_it_may_write(tmp_path: Path) -> None:
    def access(service: Service) -> Any:
        return json.loads(send(service.debug[0], "GET", "/status/access").text)

    with running(tmp_path, RULES) as service:
        by_its_own = access(service)
    with running(tmp_path, RULES, admin_token=TOKEN) as service:
        by_a_given_one = access(service)
    with without_a_folder_for_tokens(tmp_path), running(tmp_path, RULES) as service:
        by_none = access(service)

    assert by_its_own == by_a_given_one == {"write": True, "why": ""}
    assert (by_none["write"], by_none["why"][:46]) == (False, "this service has no token, so nothing is chang")


def test_the_token_changes_bans_from_any_machine(tmp_path: Path) -> None:
    address = own_address()
    with running(tmp_path, RULES, debug_host="::", admin_token=TOKEN) as service:
        for at in (Tcp(address, service.debug[0].port), Tcp("127.0.0.1", service.debug[0].port)):
            without = [send(at, verb, "/bans", body) for verb, body in CHANGES.items()]
            with_it = [send(at, verb, "/bans", body, **BEARER) for verb, body in CHANGES.items()]

            assert [reply.status for reply in without] == [401, 401]
            assert [challenges(reply) for reply in without] == [["Bearer", "Basic"]] * 2
            assert "needs the header Authorization: Bearer" in without[0].text
            assert [reply.status for reply in with_it] == [200, 200]
            assert json.loads(with_it[0].text)["who"] == f"ada@host from {at.host}".replace("from 1", "from ::ffff:1")


@pytest.mark.parametrize(
    "headers",
    [
        WRONG,
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": f"Bearer {TOKEN[:8]}"},
        {"Authorization": "Bearer \u00ff\u00fe"},
        basic("ada", "hunter2"),
        basic(TOKEN, "x"),
    ],
)
def test_a_wrong_token_is_refused_counted_and_not_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, headers: dict[str, str]
) -> None:
    with running(tmp_path, RULES, admin_token=TOKEN) as service:
        refused = [send(service.debug[0], "POST", "/bans", BAN, **headers) for _ in range(2)]
        counted, listed = wrong_tokens(service), send(service.debug[0], "GET", "/bans")

    assert [reply.status for reply in refused] == [401, 401]
    assert refused[0].text == "that is not the token of this service\n"
    assert challenges(refused[0]) == ["Bearer", "Basic"]
    assert counted == "2"
    assert json.loads(listed.text)["total"] == 0
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert lines == [
        "a request to the debug port has a wrong token (from 127.0.0.1); logged at most once a minute",
    ]


@pytest.mark.parametrize(
    "headers", [{}, {"Authorization": "Bearer"}, {"Authorization": "Digest x"}, {"Authorization": "Basic %"}]
)
def test_a_header_without_a_token_is_refused_and_not_counted(tmp_path: Path, headers: dict[str, str]) -> None:
    with running(tmp_path, RULES, admin_token=TOKEN) as service:
        refused = send(service.debug[0], "POST", "/bans", BAN, **headers)

        assert refused.status == 401
        assert wrong_tokens(service) == "0"


@contextmanager
def without_a_folder_for_tokens(folder: Path) -> Iterator[None]:
    """Temporary files go where another one has made the user's folder, as he can in /tmp; here it is open to others."""
    (folder / f"ratelimit-{os.geteuid()}").mkdir()
    (folder / f"ratelimit-{os.geteuid()}").chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        yield


def test_a_service_without_a_token_makes_one_that_its_user_alone_reads(tmp_path: Path) -> None:
    with running(tmp_path, RULES) as service:
        at = service.debug[0]
        made = TokenFile(at.port).path
        token = made.read_text("ascii").strip()
        modes = [stat.S_IMODE(path.stat().st_mode) for path in (made, made.parent)]
        statuses = [send(at, "POST", "/reload", **headers).status for headers in ({}, WRONG, service.bearer)]

        assert (find_token("127.0.0.1", at.port), find_token("192.0.2.1", at.port)) == (token, "")
        assert service.bearer == {"Authorization": f"Bearer {token}"}
        assert len(token) == 64
        assert modes == [0o600, 0o700]
        assert statuses == [401, 401, 202]
    assert not made.exists()


def test_the_file_of_the_token_comes_back_when_temporary_files_are_cleared_away(tmp_path: Path) -> None:
    with running(tmp_path, RULES) as service:
        file = TokenFile(service.debug[0].port)
        file.path.unlink()
        file.keep()

        assert find_token("localhost", service.debug[0].port) == file.token


def test_where_no_token_can_be_kept_nothing_is_changed_over_tcp(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with without_a_folder_for_tokens(tmp_path), running(tmp_path, RULES) as service:
        replies = [send(service.debug[0], "POST", "/reload", **headers) for headers in ({}, BEARER)]
        read = send(service.debug[0], "GET", "/bans")

    assert [reply.status for reply in replies] == [403, 403]
    assert "set ADMIN_TOKEN, or DEBUG_UDS" in replies[0].text
    assert read.status == 200
    assert "nothing can be changed over the debug port: ADMIN_TOKEN is not set, and " in caplog.text


def test_a_request_through_a_proxy_on_this_machine_changes_nothing(tmp_path: Path) -> None:
    """A mesh's sidecar, stunnel or docker's userland proxy: what it passes on comes from the loopback address."""

    async def passed_on(to: Tcp) -> Reply:
        async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            ahead, out = await asyncio.open_connection(*to)
            out.write(await reader.readuntil(b"\r\n\r\n"))
            writer.write(await ahead.read())
            for each in (out, writer):
                each.close()

        async with await asyncio.start_server(proxy, "127.0.0.1", 0) as server:
            at = Tcp("127.0.0.1", server.sockets[0].getsockname()[1])
            return await asyncio.to_thread(send, at, "POST", "/reload", Connection="close")

    with running(tmp_path, RULES) as service:
        assert asyncio.run(passed_on(service.debug[0])).status == 401


def test_too_many_wrong_tokens_are_refused_with_the_time_to_wait(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running(tmp_path, RULES, admin_token=TOKEN) as service:
        wrong = [send(service.debug[0], "POST", "/bans", BAN, **WRONG)]
        while wrong[-1].status == 401:
            wrong.append(send(service.debug[0], "POST", "/bans", BAN, **WRONG))
        right = send(service.debug[0], "POST", "/bans", BAN, **BEARER)
        reading = send(service.debug[0], "GET", "/bans", **WRONG)
        metrics = ask(service.http[0], "GET", "/metrics").text

    last = wrong[-1]
    assert last.status == 429
    assert 1 <= int(last.headers["Retry-After"]) <= 6
    assert last.text == (
        f"too many wrong tokens came from this address: it may try again in {last.headers['Retry-After']} s\n"
    )
    assert len(wrong) > 10
    assert (right.status, reading.status) == (200, 200)
    assert f"\nratelimit_http_wrong_tokens_total {len(wrong) - 1}\n" in metrics
    assert "\nratelimit_http_tokens_refused_total 1\n" in metrics
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    line = "too many wrong tokens: rejecting all tokens from this address for now (from 127.0.0.1)"
    assert lines[1:] == [f"{line}; logged at most once a minute"]


def test_from_another_machine_the_right_token_waits_like_the_wrong_ones() -> None:
    clock = Clock()
    log = ThrottledLog(logging.getLogger(), clock)
    access = Access(TOKEN, read_needs_token=False, warnings=log, clock=clock)

    async def change(_: web.Request) -> web.StreamResponse:
        return web.Response()

    def status(headers: dict[str, str]) -> int:
        request = make_mocked_request("POST", "/reload", headers=headers).clone(remote="192.0.2.7")
        return asyncio.run(access.middleware(request, change)).status

    assert [status(WRONG) for _ in range(11)] == [401] * 10 + [429]
    assert [status(BEARER), status({}), status(WRONG)] == [429, 401, 429]
    clock.advance(6 * SECOND)
    assert [status(BEARER) for _ in range(20)] == [200] * 20
    assert [status(WRONG) for _ in range(2)] == [401, 429]
    assert status(BEARER) == 200


def test_who_shares_the_address_of_an_operator_does_not_lock_him_out() -> None:
    clock = Clock()
    limit = WrongTokens(clock)
    first = limit.check("192.0.2.7", right=True, local=False)
    tried = [limit.check("192.0.2.7", right=False, local=False) for _ in range(12)]
    operator, stranger = (limit.check(address, right=True, local=False) for address in ("192.0.2.7", "192.0.2.8"))

    assert first == 0
    assert tried == [0] * 10 + [6] * 2
    assert (operator, stranger) == (0, 0)


def test_an_address_that_is_not_known_waits_for_one_try_and_is_known_then() -> None:
    clock = Clock()
    limit = WrongTokens(clock)
    tried = [limit.check("2001:db8::1", right=False, local=False) for _ in range(10)]
    same_network = limit.check("2001:db8::2", right=True, local=False)
    on_the_machine = limit.check("2001:db8::2", right=True, local=True)
    clock.advance(6 * SECOND)
    tried += [limit.check("2001:db8:0:1::1", right=False, local=False) for _ in range(10)]
    later = [limit.check("2001:db8:0:1::1", right=right, local=False) for right in (False, True)]
    clock.advance(6 * SECOND)
    right = [limit.check("2001:db8:0:1::1", right=True, local=False) for _ in range(30)]

    assert tried == [0] * 20
    assert (same_network, on_the_machine) == (6, 0)
    assert later == [6, 6]
    assert right == [0] * 30


def test_the_table_of_addresses_is_bounded() -> None:
    limit = WrongTokens(Clock())
    for number in range(5000):
        limit.check(f"10.0.{number >> 8}.{number & 255}", right=False, local=False)
        limit.check(f"10.1.{number >> 8}.{number & 255}", right=True, local=False)

    assert limit._buckets.counters <= MAX_ADDRESSES
    assert len(limit._trusted) == MAX_TRUSTED
    assert limit.check("10.1.19.135", right=True, local=False) == 0


def test_the_token_may_be_the_password_of_any_user(tmp_path: Path) -> None:
    with running(tmp_path, RULES, admin_token=TOKEN) as service:
        assert send(service.debug[0], "POST", "/bans", BAN, **basic("", TOKEN)).status == 200
        assert send(service.debug[0], "DELETE", "/bans", CHANGES["DELETE"], **basic("ada", TOKEN)).status == 200


def test_reading_needs_no_token_by_default(tmp_path: Path) -> None:
    with running(tmp_path, RULES, admin_token=TOKEN) as service:
        assert [send(service.debug[0], "GET", path).status for path in PAGES] == [200] * len(PAGES)
        assert send(service.debug[0], "POST", "/explain", EXPLAIN).status == 200
        assert send(service.debug[0], "GET", "/status", **WRONG).status == 200


def test_reading_may_need_the_token_on_the_operators_port_alone(tmp_path: Path) -> None:
    with running(tmp_path, RULES, admin_token=TOKEN, admin_read_needs_token="true") as service:
        for headers, status in (({}, 401), (WRONG, 401), (BEARER, 200), (basic("ada", TOKEN), 200)):
            assert {send(service.debug[0], "GET", path, **headers).status for path in PAGES} == {status}
            assert send(service.debug[0], "HEAD", "/status", **headers).status == status
            assert send(service.debug[0], "GET", "/page/0/page.js", **headers).status == (404 if status == 200 else 401)
            assert send(service.debug[0], "POST", "/explain", EXPLAIN, **headers).status == status
        assert send(service.debug[0], "GET", "/nothing").status == 401
        assert [send(service.http[0], "GET", path).status for path in ("/metrics", "/healthcheck")] == [200, 200]


@pytest.mark.parametrize("allowed", ["", "https://console.example", "*"])
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://console.example"},
        {"Sec-Fetch-Site": "cross-site", "Origin": "https://console.example"},
        {"Host": "evil.example"},
    ],
)
def test_pages_of_other_sites_change_nothing_by_a_token_that_the_browser_remembers(
    tmp_path: Path, allowed: str, headers: dict[str, str]
) -> None:
    """HTTP_ALLOWED_ORIGINS is about /json alone."""
    with running(tmp_path, RULES, admin_token=TOKEN, http_allowed_origins=allowed) as service:
        refused = send(service.debug[0], "POST", "/bans", BAN, **headers, **basic("ada", TOKEN))
        listed = send(service.debug[0], "GET", "/bans")

    assert refused.status == 403
    assert json.loads(listed.text)["total"] == 0


def test_a_browser_that_knows_the_token_shows_the_page(tmp_path: Path) -> None:
    with running(tmp_path, RULES, admin_token=TOKEN, admin_read_needs_token="true") as service:
        at = service.debug[0]
        shown, refused = browse(f"http://ada:{TOKEN}@{at.host}:{at.port}/"), browse(f"http://{at.host}:{at.port}/")

    text = " ".join(unescape(re.sub(r"<[^>]*>", " ", shown)).split())
    assert "3 per minute" in text
    assert "3 per minute" not in refused


def test_liveness_needs_neither_rules_nor_the_operators_port(tmp_path: Path) -> None:
    with running(tmp_path, "", admin_token=TOKEN, admin_read_needs_token="true") as service:
        found = [ask(service.http[0], verb, "/livez").status for verb in ("GET", "HEAD", "POST")]
        health = ask(service.http[0], "GET", "/healthcheck").status

    assert found == [200, 200, 405]
    assert health == 500


def test_rules_are_loaded_again_by_those_who_may(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with running(tmp_path, RULES, admin_token=TOKEN) as service:
        watching = asyncio.run_coroutine_threadsafe(service.loading.run(), service.loop)
        try:
            refused = send(service.debug[0], "POST", "/reload")
            before = service.loading.successes
            asked = send(service.debug[0], "POST", "/reload", **BEARER)
            end = time.monotonic() + START_SECONDS
            while service.loading.successes == before:
                assert time.monotonic() < end, "the rules were not loaded"
                time.sleep(0.01)
        finally:
            watching.cancel()

    assert (refused.status, before, asked.status) == (401, 1, 202)
    assert "reloading rules (POST /reload from 127.0.0.1)" in caplog.messages
