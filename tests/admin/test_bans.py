"""`/bans` on the operator's port: what it lists and changes, what it refuses, and what the page shows."""

import gzip
import json
import logging
import re
import socket
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from ratelimit_service.rules.bans import MAX_BANS, make_ban
from ratelimit_service.system.address import Tcp
from ratelimit_service.system.clock import HOUR, SECOND, system_clock
from tests.admin.conftest import RULES
from tests.admin.service import Reply, Service, ask, running
from tests.browser import browse

ENTRIES = [{"key": "user", "value": "ada"}]
BAN = {"domain": "shop", "entries": ENTRIES, "for": "1h", "why": "spam", "who": "ada@host"}
UNBAN = {"domain": "shop", "entries": ENTRIES}
CHANGES = {"POST": BAN, "DELETE": UNBAN}


def send(service: Service, verb: str, body: Any, path: str = "/bans", **headers: str) -> Reply:
    """Ask `/bans` of the operator's port, with its token; what is not bytes is made JSON."""
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return ask(service.debug[0], verb, path, body=text, headers=service.bearer | named)


def status(service: Service, user: str = "ada") -> int:
    """Of a request to /json."""
    entries = [{"key": "user", "value": user}]
    return service.post({"domain": "shop", "descriptors": [{"entries": entries}]}).status


def listed(service: Service, path: str = "/bans") -> Any:
    """What GET shows."""
    return json.loads(service.get(path).text)


def test_a_ban_is_made_listed_and_lifted(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    now = system_clock() // SECOND
    made = send(service, "POST", BAN)
    refused = service.post({"domain": "shop", "descriptors": [{"entries": ENTRIES}]})
    found = listed(service)
    lifted = send(service, "DELETE", UNBAN | {"who": "eve"})

    ban = json.loads(made.text)
    assert 0 <= ban.pop("made") - now < 600
    assert 3600 <= ban.pop("until") - now < 4200
    assert ban == {
        "domain": "shop",
        "entries": ENTRIES,
        "why": "spam",
        "who": "ada@host from 127.0.0.1",
        "store": "memory",
    }
    assert refused.status == 429
    assert 3000 < int(refused.headers["Retry-After"]) <= 3601
    assert (found["total"], found["store"], found["bans"][0]["why"]) == (1, "memory", "spam")
    assert lifted.status == 200
    assert status(service) == 200
    lines = [record.getMessage() for record in caplog.records if record.name.endswith("rules.bans")]
    assert re.sub(r"until \S+ \S+ UTC", "until T", lines[0]) == (
        "banned: user=ada in domain shop until T by ada@host from 127.0.0.1: spam"
    )
    assert lines[1:] == ["no longer banned: user=ada in domain shop, lifted by eve from 127.0.0.1"]


def test_a_list_of_bans_is_made_for_all_who_ask_at_the_same_time(service: Service) -> None:
    for n in range(120):
        send(service, "POST", BAN | {"entries": [{"key": "user", "value": f"\x9b{n}"}]})
    whole = service.get("/bans")
    packed = ask(service.debug[0], "GET", "/bans?domain=shop", headers={"Accept-Encoding": "gzip"})

    assert packed.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(packed.body) == whole.body
    named = [ban["entries"] for ban in json.loads(whole.text)["bans"]]
    assert sorted(entry["value"] for [entry] in named) == sorted(f"\x9b{n}" for n in range(120))
    assert "\x9b" not in whole.text
    assert listed(service, "/bans?domain=mail") == {"store": "memory", "total": 0, "bans": []}


def test_a_star_that_stands_for_itself_is_noted(service: Service) -> None:
    entries = [{"key": "accept", "value": "*/*"}]
    found = json.loads(send(service, "POST", BAN | {"entries": entries}).text)

    assert found["note"] == 'a * in a ban stands for itself: "accept=*/*" fits this value alone'
    assert "note" not in json.loads(send(service, "DELETE", UNBAN | {"entries": entries}).text)


def test_the_address_stands_for_a_client_without_a_name(service: Service) -> None:
    made = send(service, "POST", {name: value for name, value in BAN.items() if name != "who"})

    assert json.loads(made.text)["who"] == "127.0.0.1"


def test_the_order_of_entries_does_not_matter(service: Service) -> None:
    path = {"key": "path", "value": "/x"}
    send(service, "POST", BAN | {"entries": [*ENTRIES, path]})

    assert send(service, "DELETE", UNBAN).status == 404
    assert send(service, "DELETE", UNBAN | {"entries": [path, *ENTRIES, path]}).status == 200


def test_the_bans_of_a_domain_are_listed(service: Service) -> None:
    for domain in ("shop", "*", "mail & more"):
        send(service, "POST", BAN | {"domain": domain})

    assert listed(service)["total"] == 3
    for query, domains in (("shop", ["shop"]), ("*", ["*"]), ("mail%20%26%20more", ["mail & more"]), ("no", [])):
        found = listed(service, f"/bans?domain={query}")
        assert [ban["domain"] for ban in found["bans"]] == domains


def test_there_is_nothing_to_lift(service: Service) -> None:
    reply = send(service, "DELETE", UNBAN)

    assert (reply.status, reply.text) == (404, "there is no ban of exactly these entries in this domain\n")


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        (b"", "it is not JSON"),
        (b"{", "it is not JSON"),
        (b"\xff", "it is not JSON"),
        (b"[" * 10_000, "it is not JSON"),
        ([], "it is not a JSON object"),
        ({}, "it has the fields domain, entries, for, who, why, and who is optional"),
        (BAN | {"until": 1}, "it has the fields"),
        (BAN | {"for": 3600}, "domain, for, who, why must be strings"),
        (BAN | {"who": None}, "must be strings"),
        (BAN | {"entries": "user=ada"}, "entries must be a list such as"),
        (BAN | {"entries": {}}, "entries must be a list such as"),
        (BAN | {"entries": [{"key": "user"}]}, "entries must be a list such as"),
        (BAN | {"entries": [{"key": "user", "value": "a", "more": 1}]}, "entries must be a list such as"),
        (BAN | {"entries": []}, "a ban needs an entry"),
        (BAN | {"entries": [{"key": "user", "value": "\ud800"}]}, "UTF-8"),
        (BAN | {"entries": [{"key": "user", "value": "x" * 5000}]}, "the maximum is 2,000"),
        (
            BAN | {"entries": [{"key": "user", "value": "a\u20260123456789abcdef"}]},
            "is cut, because it is too long to show",
        ),
        (BAN | {"domain": ""}, "the domain is empty"),
        (BAN | {"for": "soon"}, '"soon" is not a duration such as 10s'),
        (BAN | {"for": "0s"}, "a ban lasts from a second"),
        (BAN | {"why": ""}, "say why"),
        (BAN | {"why": "a\nb"}, "one line"),
    ],
)
def test_a_body_that_is_no_ban_is_refused_with_the_reason(service: Service, body: Any, wrong: str) -> None:
    reply = send(service, "POST", body)

    assert reply.status == 400
    assert wrong in reply.text
    assert reply.text.count("\n") == 1
    assert listed(service)["total"] == 0


def test_large_and_compressed_bodies_are_refused(service: Service) -> None:
    large = send(service, "POST", b" " * 20_000)
    larger = send(service, "POST", b" " * (service.settings.http_max_body_size + 1))
    packed = send(service, "DELETE", BAN, Content_Encoding="gzip")

    assert (large.status, larger.status, packed.status) == (413, 413, 415)
    assert "larger than 16384 bytes" in large.text


@pytest.mark.parametrize("verb", ["POST", "DELETE"])
@pytest.mark.parametrize(
    "headers", [{"Sec_Fetch_Site": "cross-site"}, {"Origin": "http://console.example"}, {"Host": "evil.example"}]
)
def test_pages_of_other_sites_change_no_ban(service: Service, verb: str, headers: dict[str, str]) -> None:
    send(service, "POST", BAN)
    reply = send(
        service, verb, BAN | {"entries": [{"key": "user", "value": "eve"}]} if verb == "POST" else UNBAN, **headers
    )

    assert reply.status == 403
    assert [ban["entries"] for ban in listed(service)["bans"]] == [ENTRIES]


def own_address() -> str:
    """An address of this machine that is not its loopback's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError as error:
            pytest.skip(f"the machine has no other address than the loopback's: {error}")
        return str(probe.getsockname()[0])


def test_without_the_token_bans_are_seen_and_not_changed_from_this_machine_either(tmp_path: Path) -> None:
    with running(tmp_path, RULES, debug_host="::") as service:  # every address, as by default
        made = send(service, "POST", BAN)
        for there in (own_address(), "127.0.0.1", "::1"):
            at = Tcp(there, service.debug[0].port)
            refused = [ask(at, verb, "/bans", body=json.dumps(body).encode()) for verb, body in CHANGES.items()]
            seen = ask(at, "GET", "/bans")

            assert [reply.status for reply in refused] == [401, 401]
            assert json.loads(seen.text)["total"] == 1

    assert made.status == 200


def test_bans_are_not_on_the_clients_port(service: Service) -> None:
    for verb in ("GET", "POST", "DELETE"):
        assert ask(service.http[0], verb, "/bans", body=json.dumps(BAN).encode()).status == 404


def test_there_are_no_more_than_the_bound_and_the_last_ones_are_listed(service: Service) -> None:
    def fill() -> None:
        now = system_clock()
        for number in range(MAX_BANS):
            entries = [("user", str(number))]
            moment = now - (MAX_BANS - number) * SECOND
            ban = make_ban("shop", entries, length=100 * HOUR, why="spam", who="ada", now=moment)
            service.limiter.bans.put(ban, quietly=True)

    async def filled() -> None:
        fill()

    service.do(filled())
    refused = send(service, "POST", BAN)
    again = send(service, "POST", BAN | {"entries": [{"key": "user", "value": "7"}], "why": "once more"})
    found = listed(service)

    assert refused.status == 400
    assert "there are 10,000 bans, the maximum" in refused.text
    assert again.status == 200
    assert (found["total"], len(found["bans"])) == (10_000, 1000)
    assert found["bans"][0]["why"] == "once more"
    assert len(json.loads(service.get("/status").text)["bans"]["newest"]) == 20


def test_a_reload_keeps_the_bans(service: Service) -> None:
    send(service, "POST", BAN)
    service.load(RULES.replace("requests_per_unit: 3", "requests_per_unit: 5"))

    assert status(service) == 429


HOSTILE = "\x1b[31m\u202e<b>"


def test_no_text_of_a_ban_turns_a_terminal_or_a_line_around(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    hostile = {"domain": HOSTILE, "entries": [{"key": HOSTILE, "value": HOSTILE}], "who": HOSTILE}
    made = send(service, "POST", BAN | hostile)
    texts = [made.text, service.get("/bans").text, caplog.text, send(service, "DELETE", UNBAN | hostile).text]
    send(service, "POST", BAN | hostile)
    shown = json.dumps(json.loads(service.get("/status").text), ensure_ascii=False)

    for text in (*texts, shown):
        assert "[31m" in text
        assert set(text) & {"\x1b", "\u202e"} == set()


def test_the_page_shows_the_bans_in_force(tmp_path: Path) -> None:
    with running(tmp_path, RULES) as service:
        send(service, "POST", BAN | {"why": "<b>scrapes</b>"})
        send(service, "POST", BAN | {"domain": "*", "for": "ever", "entries": [{"key": "ip", "value": "203.0.113.7"}]})
        address = service.debug[0]
        markup = browse(f"http://{address.host}:{address.port}/")

    text = " ".join(unescape(re.sub(r"<[^>]*>", " ", markup[markup.index("<main>") :])).split())
    assert "Bans 2 in force Domain Entries Ends Made by Why" in text
    assert re.search(r"shop user=ada in \d+ min \([^)]*\) ada@host from 127.0.0.1 <b>scrapes</b>", text)
    assert "every domain ip=203.0.113.7 never ada@host from 127.0.0.1 spam" in text
