"""`/rules` on the operator's port: who may change what, what is accepted, and what each refusal says."""

import json
import logging
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final

import pytest

from ratelimit_service.rules.versions import MAX_DOCUMENT_BYTES
from tests import peers
from tests.admin.conftest import RULES
from tests.admin.service import Reply, Service, ask, running
from tests.redis import start_redis

ADMIN: Final = "0123456789abcdef0123456789abcdef"
ADA: Final = "a" * 32
BOB: Final = "b" * 32
TOKENS: Final = f"ada:{ADA}:blog,team/*; bob:{BOB}:*"

BLOG: Final = """\
# Readers, not writers.
domain: blog
descriptors:
  - key: user  # of the session
    rate_limit: {unit: hour, requests_per_unit: 5}
"""
HIGHER: Final = BLOG.replace("requests_per_unit: 5", "requests_per_unit: 50")
NEW: Final = {"If-None-Match": "*"}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """One whose API changes rules, which it keeps in a folder; the file has those of the domain `shop`."""
    with opened(tmp_path) as started:
        yield started


def opened(folder: Path, **settings: str) -> Any:
    """A service with these settings, whose rules are kept in a folder unless they say otherwise."""
    (folder / "rules").mkdir(exist_ok=True)
    kept = {"rules_store": str(folder / "kept"), "admin_token": ADMIN, "rules_tokens": TOKENS}
    return running(folder / "rules", RULES, **(kept | settings))


def send(
    service: Service,
    verb: str,
    path: str,
    body: str | bytes | None = None,
    *,
    token: str = ADA,
    kind: str = "application/yaml",
    **headers: str,
) -> Reply:
    """One request by this token; a version may be given as `match`."""
    named = {"If-Match": f'"{headers.pop("match")}"'} if "match" in headers else {}
    named |= {name.replace("_", "-"): value for name, value in headers.items()}
    named |= {"Authorization": f"Bearer {token}"} if token else {}
    named |= {} if body is None else {"Content-Type": kind}
    return ask(service.debug[0], verb, path, body=body.encode() if isinstance(body, str) else body, headers=named)


def put(service: Service, text: str | bytes = BLOG, path: str = "/rules/blog", **options: str) -> Reply:
    """Put rules of a domain that has none, or in place of version `match`."""
    if "match" not in options and "If_Match" not in options:
        options.setdefault("If_None_Match", "*")
    return send(service, "PUT", path, text, **options)


def version(reply: Reply) -> str:
    """The version that was made."""
    assert reply.status in {200, 201}, reply.text
    found: str = json.loads(reply.text)["version"]
    assert reply.headers["ETag"] == f'"{found}"'
    return found


def wrong(reply: Reply) -> tuple[int, str]:
    """The status and what is wrong, as a problem says it."""
    assert reply.headers["Content-Type"].startswith("application/problem+json"), reply.text
    found = json.loads(reply.text)
    assert found["status"] == reply.status
    return reply.status, found["detail"]


def limit_of(service: Service, domain: str = "blog") -> int:
    """The requests that a user of the domain has in force; 0: there is no such rule."""
    book = service.loading.book
    assert book is not None
    rule = book.match(domain, (("user", "ada"),))
    return 0 if rule is None or rule.limit is None else rule.limit.requests


def wait_for(limit: int, service: Service) -> None:
    """Until the rules in force have this limit."""
    late = monotonic() + 60
    while limit_of(service) != limit:
        assert monotonic() < late, service.loading.problems
        sleep(0.01)


def test_rules_are_put_read_changed_rolled_back_and_deleted(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    made = put(service, path="/rules/blog?why=ticket%201&who=ada@laptop")
    first = version(made)
    wait_for(5, service)
    read = send(service, "GET", "/rules/blog", token="")
    second = version(put(service, HIGHER, match=first, token=BOB))
    wait_for(50, service)
    third = version(send(service, "POST", "/rules/blog/rollback?to=1", match=second))
    wait_for(5, service)
    fourth = version(send(service, "DELETE", "/rules/blog?why=closed", match=third))
    wait_for(0, service)
    past = json.loads(send(service, "GET", "/rules/blog/history", token="").text)["versions"]

    assert made.status == 201
    assert made.headers["Location"] == "/rules/blog"
    assert (read.text, read.headers["ETag"]) == (BLOG, f'"{first}"')
    assert read.headers["Content-Type"] == "application/yaml; charset=utf-8"
    assert [each["version"] for each in past] == [fourth, third, second, first]
    assert [each["replaces"] for each in past] == [third, second, first, None]
    assert [each["who"] for each in past] == ["ada", "ada", "bob", "ada@laptop by the token of ada"]
    assert [each["why"] for each in past] == ["closed", "", "", "ticket 1"]
    assert [each["deleted"] for each in past] == [True, False, False, False]
    assert (past[1]["restores"], past[0]["address"]) == (first, "127.0.0.1")
    assert send(service, "GET", "/rules/blog/history/2").text == HIGHER
    assert send(service, "GET", f"/rules/blog/history/{first}").text == BLOG
    assert wrong(send(service, "GET", "/rules/blog")) == (404, 'there are no rules of domain "blog" here')
    assert version(put(service)).startswith("5-")
    lines = [record.getMessage() for record in caplog.records if record.name.endswith("rules_api")]
    assert lines[0] == (
        f"rules of domain blog put by ada@laptop by the token of ada from 127.0.0.1: version {first} in place of none:"
        " ticket 1"
    )
    assert lines[2] == f"rules of domain blog rolled back by ada from 127.0.0.1: version {third} in place of {second}"


def test_all_documents_are_listed(service: Service) -> None:
    first = version(put(service))
    put(service, '{"domain": "team/a"}', "/rules/team%2Fa", kind="application/json")
    wait_for(5, service)
    late = monotonic() + 60
    while len(listed := json.loads(service.get("/rules").text)["documents"]) < 2:
        assert monotonic() < late
        sleep(0.01)

    assert [(each["domain"], each["format"], each["bytes"]) for each in listed] == [
        ("blog", "yaml", len(BLOG)),
        ("team/a", "json", 20),
    ]
    assert listed[0]["version"] == first
    read = service.get("/rules/team%2Fa")
    assert (read.text, read.headers["Content-Type"]) == (
        '{"domain": "team/a"}',
        "application/json; charset=utf-8",
    )
    sources = json.loads(service.get("/status").text)["reload"]["sources"]
    assert [(each["kind"], each["documents"], each["current"]) for each in sources] == [
        ("files", 1, True),
        ("api", 2, True),
    ]


def test_a_version_that_is_not_present_is_refused_with_the_present_one(service: Service) -> None:
    first = version(put(service))
    second = version(put(service, HIGHER, match=first))

    for reply in (
        put(service, BLOG, match=first),
        put(service),
        send(service, "DELETE", "/rules/blog", match=first),
        send(service, "POST", "/rules/blog/rollback?to=1", match=first),
        put(service, BLOG, If_Match=f'W/"{second}"'),
    ):
        assert wrong(reply) == (412, f"the present version is {second}, by ada")
        assert json.loads(reply.text)["version"] == second
    for verb, path, body in (("PUT", "", BLOG), ("DELETE", "", None), ("POST", "/rollback?to=1", None)):
        assert wrong(send(service, verb, f"/rules/blog{path}", body))[0] == 428
    assert wrong(put(service, path="/rules/team%2Fa", match=first)) == (412, "there are no rules of this domain here")
    assert version(put(service, BLOG, If_Match=f'"x", "{second}"')).startswith("3-")
    assert version(put(service, HIGHER, If_Match="*")).startswith("4-")
    same = put(service, HIGHER, If_Match="*")
    assert (version(same)[:2], json.loads(same.text)["changed"]) == ("4-", False)
    assert service.get("/rules/blog", If_None_Match="x").status == 200
    read = ask(service.debug[0], "GET", "/rules/blog", headers={"If-None-Match": f'W/"{version(same)}"'})
    assert (read.status, read.body) == (304, b"")


def test_a_token_changes_the_rules_of_its_domains_and_nothing_else(service: Service) -> None:
    reading = send(service, "GET", "/rules", token="")
    shop = RULES.replace("domain: shop", "domain: more")

    assert reading.status == 200
    assert wrong(put(service, token=""))[0] == 401
    assert wrong(put(service, token="c" * 32))[0] == 401
    assert wrong(put(service, shop, "/rules/more")) == (
        403,
        'the token of ada may not change the rules of domain "more"',
    )
    assert version(put(service, shop, "/rules/more", token=BOB))
    assert version(put(service, '{"domain": "team/x"}', "/rules/team%2Fx", kind="application/json"))
    assert version(put(service, token=ADMIN))
    assert json.loads(send(service, "GET", "/rules/blog/history").text)["versions"][0]["who"] == ""
    refused = send(service, "POST", "/reload", token=BOB)
    assert (refused.status, refused.text) == (403, "the token of bob changes rules alone\n")
    assert put(service, Sec_Fetch_Site="cross-site", token=ADMIN).status == 403


def test_with_a_token_for_reading_each_of_them_reads(tmp_path: Path) -> None:
    with opened(tmp_path, admin_read_needs_token="true") as service:
        assert [send(service, "GET", path, token=ADA).status for path in ("/rules", "/status")] == [200, 200]
        assert send(service, "GET", "/rules", token=ADMIN).status == 200
        assert wrong(send(service, "GET", "/rules", token=""))[0] == 401
        assert wrong(send(service, "GET", "/openapi.json", token=""))[0] == 401


@pytest.mark.parametrize(
    ("kind", "text", "error"),
    [
        (
            "application/yaml",
            BLOG.replace("hour", "fortnight"),
            {"file": "api:blog", "line": 5, "column": 24, "message": 'unit "fortnight" is not one of '},
        ),
        (
            "application/json",
            '{"domain": "blog", "descriptors": [{"key": "user", "rate_limit": {"unit": "fortnight"}}]}',
            {
                "file": "api:blog",
                "pointer": "/descriptors/0/rate_limit/unit",
                "line": 0,
                "message": 'unit "fortnight" is not one of ',
            },
        ),
        ("application/yaml", "", {"file": "api:blog", "message": "the file is empty"}),
        (
            "application/yaml",
            BLOG.replace("domain: blog", "domain: more"),
            {"line": 2, "column": 9, "message": 'domain "more" is not the one of the path, "blog"'},
        ),
        (
            "application/yaml",
            BLOG.replace("domain: blog", "domain: shop"),
            {"line": 2, "column": 9, "message": 'domain "shop" is already in '},
        ),
        ("application/yaml", b"domain: blog # \xff", {"line": 1, "message": "byte 0xff is not UTF-8"}),
        ("application/yaml", "domain: " + "[" * 200, {"message": "lists and maps are nested deeper than 100"}),
        ("application/json", '{"domain": ' * 10_000, {"message": "lists and objects are nested deeper than 100"}),
        (
            "application/yaml",
            "domain: blog\ndescriptors: [{key: user, values_from: /etc/passwd, rate_limit: {unlimited: true}}]",
            {"message": "values_from: only rules files can name data files; write the values here"},
        ),
    ],
    ids=lambda value: value[:16] if isinstance(value, str) else None,
)
def test_what_cannot_be_loaded_is_refused_with_its_places(
    service: Service, kind: str, text: str | bytes, error: dict[str, Any]
) -> None:
    refused = put(service, text, kind=kind)
    checked = send(service, "POST", "/rules/blog/check", text, kind=kind)
    compared = send(service, "POST", "/rules/blog/diff", text, kind=kind)

    assert wrong(refused) == (422, "the rules cannot be loaded with this document")
    for found in (json.loads(refused.text)["errors"], json.loads(checked.text)["errors"]):
        message = error.get("message", "")
        assert found[0]["message"].startswith(message)
        assert {name: found[0][name] for name in error if name != "message"} == {
            name: value for name, value in error.items() if name != "message"
        }
    assert wrong(compared)[0] == 422
    assert wrong(send(service, "GET", "/rules/blog"))[0] == 404


def test_a_domain_of_a_file_is_not_one_of_the_api(service: Service, tmp_path: Path) -> None:
    refused = put(service, RULES, "/rules/shop", token=BOB)
    place = tmp_path / "rules" / "rules.yaml"

    assert wrong(refused) == (409, f'the rules of domain "shop" are in {place}:1:9')
    assert json.loads(refused.text)["owner"] == "files"
    assert wrong(service.get("/rules/shop"))[0] == 409


def test_a_domain_of_a_file_is_one_of_the_api_where_that_comes_first(tmp_path: Path) -> None:
    with opened(tmp_path, rules_precedence="api,files") as service:
        made = put(service, "domain: shop\ndescriptors: []\n", "/rules/shop", token=BOB)
        assert version(made)
    with opened(tmp_path, rules_precedence="files,api", rules_store=str(tmp_path / "other")) as service:
        assert wrong(put(service, RULES, "/rules/shop", token=BOB))[0] == 409


@pytest.mark.parametrize(
    ("path", "options", "status", "detail"),
    [
        ("/rules/blog", {"kind": "text/html"}, 415, "send the rules with Content-Type: application/yaml"),
        ("/rules/blog", {"Content_Encoding": "gzip"}, 415, "the body must not be compressed"),
        ("/rules/%2E%2E%00", {}, 400, "the domain is printable text"),
        (f"/rules/{'x' * 256}", {"token": BOB}, 400, "the domain is printable text of at most 255 characters"),
        (f"/rules/blog?why={'x' * 501}", {}, 400, "why and who are one line of at most 500 characters each"),
        ("/rules/blog?why=a%0Ab", {}, 400, "why and who are one line"),
        ("/rules/blog/more", {}, 404, "there is nothing at this path"),
    ],
)
def test_what_is_wrong_with_a_request_is_a_problem(
    service: Service, path: str, options: dict[str, str], status: int, detail: str
) -> None:
    found = wrong(put(service, path=path, **options))

    assert (found[0], found[1][: len(detail)]) == (status, detail)


def test_a_document_is_bounded_in_bytes(service: Service) -> None:
    fits = BLOG + "#" * (MAX_DOCUMENT_BYTES - len(BLOG))

    assert wrong(put(service, f"{fits}#")) == (413, "the body is larger than 1048576 bytes")
    assert version(put(service, fits))


def test_check_and_diff_say_what_the_commands_say_and_change_nothing(service: Service) -> None:
    doubtful = BLOG.replace("key: user  #", "key: ip\n    value: 10.0.0.0/8  #")
    checked = json.loads(send(service, "POST", "/rules/blog/check", doubtful).text)
    added = json.loads(send(service, "POST", "/rules/blog/diff", BLOG).text)
    put(service)
    wait_for(5, service)
    changed = json.loads(send(service, "POST", "/rules/blog/diff", HIGHER).text)
    same = json.loads(send(service, "POST", "/rules/blog/diff", BLOG).text)

    assert (checked["rules"], checked["domains"], checked["errors"]) == (4, 2, [])
    assert [(each["file"], each["line"]) for each in checked["warnings"]] == [("api:blog", 5)]
    assert (added["added"], added["changes"][0]["descriptors"]) == (1, ["user"])
    assert (changed["changed"], changed["changes"][0]["old"], changed["changes"][0]["new"]) == (
        1,
        {"rule": "blog.user", "place": "api:blog:5:5", "limit": "5 requests per hour", "requests": 5},
        {"rule": "blog.user", "place": "api:blog:5:5", "limit": "50 requests per hour", "requests": 50},
    )
    assert (same["same"], same["changes"]) == (True, [])
    assert wrong(send(service, "POST", "/rules/blog/check", BLOG, token=""))[0] == 401
    assert wrong(send(service, "POST", "/rules/shop/diff", RULES, token=BOB))[0] == 409
    assert len(json.loads(service.get("/rules/blog/history").text)["versions"]) == 1


def test_what_would_be_too_much_work_at_once_is_refused(service: Service) -> None:
    trial = service.server._rules._trial
    trial._waiting = 16
    busy = send(service, "POST", "/rules/blog/check", BLOG)
    trial._waiting = 0

    assert wrong(busy) == (503, "too many documents are tried out at once")
    assert busy.headers["Retry-After"] == "1"


def test_of_many_changes_the_first_are_listed_and_all_counted(service: Service) -> None:
    many = "".join(f"\n  - {{key: k{n}, rate_limit: {{unit: hour, requests_per_unit: 5}}}}" for n in range(1001))
    compared = json.loads(send(service, "POST", "/rules/blog/diff", f"domain: blog\ndescriptors:{many}").text)

    assert (compared["added"], len(compared["changes"])) == (1001, 1000)


def test_without_a_store_rules_are_checked_but_not_changed(tmp_path: Path) -> None:
    with opened(tmp_path, rules_store="") as service:
        refused = wrong(put(service))
        listed = json.loads(service.get("/rules").text)
        assert refused == (501, "this service changes no rules: RULES_STORE is not set; see docs/rules-api.md")
        assert listed == {"store": None, "trouble": refused[1], "documents": []}
        assert json.loads(send(service, "POST", "/rules/blog/check", BLOG).text)["errors"] == []


def test_while_redis_is_away_rules_stay_and_puts_get_503(tmp_path: Path) -> None:
    settings = {"rules_store": "redis", "backend_type": "redis"}
    with start_redis(tmp_path / "redis") as redis:
        port = redis.port
        settings["redis_url"] = f"127.0.0.1:{port}"
        with opened(tmp_path, **settings) as service:
            first = version(put(service))
            wait_for(5, service)
            redis.__exit__(None, None, None)
            refused = put(service, HIGHER, match=first)
            assert refused.status == 503
            assert "those in force stay" in wrong(refused)[1]
            assert refused.headers["Retry-After"] == "1"
            assert wrong(send(service, "GET", "/rules/blog/history"))[0] == 503
            assert send(service, "GET", "/rules/blog").text == BLOG
            assert limit_of(service) == 5


def test_a_body_that_does_not_end_delays_no_other(service: Service) -> None:
    with socket.create_connection(service.debug[0]) as slow:
        head = f"PUT /rules/blog HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {ADA}\r\nIf-None-Match: *\r\n"
        slow.sendall(f"{head}Content-Type: application/yaml\r\nContent-Length: 1000\r\n\r\ndomain".encode())
        assert version(put(service))


def test_who_may_write_to_the_unix_socket_may_change_rules(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with (
        opened(tmp_path, admin_token="", rules_tokens="", debug_uds=str(path)),
        socket.socket(socket.AF_UNIX) as client,
    ):
        client.connect(str(path))
        body = BLOG.encode()
        head = "PUT /rules/blog HTTP/1.1\r\nHost: localhost\r\nIf-None-Match: *\r\nConnection: close\r\n"
        client.sendall(f"{head}Content-Type: application/yaml\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        reply = b"".join(iter(lambda: client.recv(65536), b""))
        assert b" 201 Created" in reply
        assert b'"address": "the unix socket"' in reply


def test_a_client_generated_from_the_description_tells_the_whole_story(service: Service, tmp_path: Path) -> None:
    folder = peers.openapi()
    environ = os.environ | {"PYTHONPATH": f"{folder}:{tmp_path}"}
    described = tmp_path / "openapi.json"
    described.write_bytes(service.get("/openapi.json").body)
    (tmp_path / "config.yaml").write_text("post_hooks: []\ncontent_type_overrides: {application/yaml: text/plain}\n")
    generate: list[str | Path] = [
        "generate",
        "--path",
        described,
        "--config",
        tmp_path / "config.yaml",
        "--meta",
        "none",
    ]
    command = [sys.executable, "-m", "openapi_python_client", *generate, "--output-path", tmp_path / "rules_client"]
    subprocess.run(command, env=environ, check=True, capture_output=True)
    script = Path(__file__).with_name("openapi_client.py")
    url = f"http://127.0.0.1:{service.debug[0].port}"
    told = subprocess.run(
        [sys.executable, script, url, ADMIN], env=environ, check=False, capture_output=True, text=True
    )

    assert told.returncode == 0, told.stderr
    operations = {operation for operation, _ in json.loads(told.stdout)}
    paths = json.loads(described.read_text())["paths"].values()
    assert operations == {each["operationId"] for path in paths for verb, each in path.items() if verb != "parameters"}


def test_the_description_has_all_paths(service: Service) -> None:
    listed = service.get("/nothing").text
    described = json.loads(service.get("/openapi.json").text)["paths"]

    paths = {f"{verb.upper()} {path}" for path, each in described.items() for verb in each if verb != "parameters"}
    assert paths == set(re.findall(r"^(\S+ /rules\S*):", listed, re.MULTILINE))
