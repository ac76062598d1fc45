"""With `hash_values` a secret value is found nowhere: not in Redis, not in what the service says, in no encoding.

The same story without the option shows that each place would have it, so that it is looked for where it could be.
"""

import base64
import json
import re
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import grpc
import pytest
from click.testing import CliRunner
from redis import Redis as Client

from ratelimit_service.api.explanation import EXPLAIN
from ratelimit_service.api.generated.envoy.extensions.common.ratelimit.v3.ratelimit_pb2 import RateLimitDescriptor
from ratelimit_service.api.generated.envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest, RateLimitResponse
from ratelimit_service.api.ratelimit import ShouldRateLimit
from ratelimit_service.cli import main
from ratelimit_service.rules.secret import HashValue
from tests import peers
from tests.processes import Process, Service, ask, start_service
from tests.redis import Redis, start_redis
from tests.sampled import extended

KEY: Final = "0123456789abcdef0123456789abcdef"
HASH: Final = HashValue(KEY)

MARK: Final = "Zq7XkVw9TbN2"
"""In all secret values, and nowhere else; its letters and digits are never escaped."""

PLAIN, EXACT, PATTERN, LISTED, BANNED = (
    f'sk|{MARK}=%"é',
    *(f"{start}_{MARK}" for start in ("paid", "test", "listed", "banned")),
)
TOKENS: Final = f"gold_{MARK},gold\n{HASH(f'digest_{MARK}')},gold\n"
LONG: Final = MARK * 60
"""Longer than a key of Redis may be."""

LIMIT: Final = "rate_limit: {unit: year, requests_per_unit: 2}"
RULES: Final = f"""\
domain: shop
lookup:
  - {{from: tokens.csv, key: token, as: tier, else: free, HASHED}}
descriptors:
  - {{key: tier, value_to_metric: true, {LIMIT}, descriptors: [{{key: token, detailed_metric: true, {LIMIT}}}]}}
  - {{key: tier, value: gold, detailed_metric: true, rate_limit: {{unit: year, requests_per_unit: 4}}}}
  - {{key: api_key, values: [{LISTED}, {LISTED}2], label: partners, HASHED value_to_metric: true, {LIMIT}}}
  - {{key: api_key, values: [{LISTED}3], HASHED value_to_metric: true, {LIMIT}}}
  - {{key: address, prefix: {{ipv4: 24}}, value_to_metric: true, HASHED {LIMIT}}}
  - {{key: api_key, HASHED detailed_metric: true, {LIMIT}, descriptors: [{{key: path, {LIMIT}}}]}}
  - {{key: api_key, value: test_*, HASHED value_to_metric: true, {LIMIT}, metadata: {{of: test}}}}
  - {{key: api_key, value: {EXACT}, HASHED {LIMIT}, descriptors: [{{key: path, {LIMIT}}}]}}
  - {{key: user, descriptors: [{{key: api_key, {LIMIT}}}]}}
  - key: user
    value: list
    descriptors:
      - {{key: api_key, rate_limits: [{{unit: day, requests_per_unit: 9}}, {{unit: year, requests_per_unit: 9}}]}}
"""

MORE_RULES: Final = f"""\
domain: rest
otherwise: {{detailed_metric: true, {LIMIT}}}
descriptors:
  - {{key: api_key, values_from: partners.txt, HASHED value_to_metric: true, {LIMIT[:-1]}, block_for: 1 day}}}}
  - {{key: api_key, regex: "re_.*", HASHED value_to_metric: true, {LIMIT}}}
  - {{key: session, values: [none], not: true, HASHED value_to_metric: true, {LIMIT}}}
"""
PARTNERS: Final = f"# of partners\npartner_{MARK}\n"


def write_rules(folder: Path, hashed: str) -> None:
    folder.mkdir(parents=True)
    (folder / "rules.yaml").write_text(RULES.replace("HASHED", hashed))
    (folder / "tokens.csv").write_text(TOKENS)
    (folder / "more.yaml").write_text(MORE_RULES.replace("HASHED", hashed))
    (folder / "partners.txt").write_text(PARTNERS)


ENVIRON: Final[Mapping[str, str]] = {
    "LOG_LEVEL": "debug",
    "HASH_KEY": KEY,
    "RESPONSE_DYNAMIC_METADATA": "true",
    "RESPONSE_HEADERS": "x_ratelimit,ietf",
    "RESPONSE_RETRY_AFTER": "true",
    "RESPONSE_PROBLEM_BODY": "true",
    "RESPONSE_RULE_METADATA": "true",
    "REQUEST_MAX_DESCRIPTORS": "5",
    "REQUEST_MAX_VALUE_LENGTH": "2000",
    "STORE_DEADLINE": "30s",
    "EXPIRATION_JITTER_MAX_SECONDS": "0",
}


def request(*descriptors: Sequence[tuple[str, str]], domain: str = "shop", limit: int | None = None) -> bytes:
    message = RateLimitRequest(domain=domain)
    for entries in descriptors:
        descriptor = message.descriptors.add()
        if limit is not None:
            descriptor.limit.unit = limit  # type: ignore[assignment] # any number may be sent
            descriptor.limit.requests_per_unit = 3
        for key, value in entries:
            descriptor.entries.append(RateLimitDescriptor.Entry(key=key, value=value))
    return message.SerializeToString()


REQUESTS: Final = [
    *[request([("api_key", value)]) for value in (PLAIN, EXACT, PATTERN, LONG) for _ in range(3)],
    *[request([("api_key", value)]) + EXPLAIN for value in (PLAIN, EXACT, PATTERN, LISTED, f"{LISTED}3")],
    *[request([("token", f"{start}_{MARK}")]) for start in ("gold", "digest", "other") for _ in range(3)],
    request([("token", f"gold_{MARK}"), ("token", PLAIN)], [("token", PLAIN), ("token", f"gold_{MARK}")]),
    request([("token", f"gold_{MARK}")]) + EXPLAIN,
    request([("token", f"gold_{MARK}")], limit=6),
    request([("token", f"gold_{MARK}"), ("verb", "GET")]) + EXPLAIN,
    *[request([("address", address)]) for address in ("192.0.2.1", "192.0.2.77", f"no{MARK}")],
    request([("api_key", PLAIN), ("path", "/")]),
    request([("user", "ada"), ("api_key", PLAIN)], [("user", "list"), ("api_key", EXACT)]),
    *[
        request([(key, f"{start}_{MARK}")], domain="rest") + more
        for key, start in (("api_key", "partner"), ("api_key", "re"), ("api_key", "other"), ("session", "any"))
        for more in (b"", b"", b"", EXPLAIN)
    ],
    request([("path", "/"), ("api_key", PLAIN)], domain="rest"),
    # nothing matches these
    *[
        request(*descriptors, domain=domain) + more
        for domain in ("shop", "other")
        for more in (b"", EXPLAIN)
        for descriptors in (
            [[("api_key", PLAIN), ("verb", "GET")]],
            [[("path", "/"), ("api_key", PLAIN)], [("api_key", EXACT), ("user", "ada")]],
            [[("verb", "GET"), ("api_key", PATTERN)]],
        )
    ],
    # limits that come with requests: in place of a rule, and of none; and one that is wrong
    *[request([("api_key", value)], limit=6) for value in (PLAIN, EXACT, PATTERN, LONG)],
    request([("verb", "GET"), ("api_key", PLAIN)], limit=3),
    request([("api_key", PLAIN)], limit=77),
    # too large, and no requests at all
    request(*[[("api_key", PLAIN)]] * 6),
    request([("api_key", MARK * 200)]),
    request([("api_key", PLAIN)])[:-3],
    request([("api_key", PLAIN)], domain=""),
]

BODIES: Final = [
    {"domain": "none", "descriptors": [{"entries": [{"key": "api_key", "value": PLAIN}]}]},
    {"domain": "shop", "descriptors": [{"entries": [{"key": "api_key", "value": PLAIN}]}]},
    {"domain": "shop", "descriptors": [{"entries": {"key": "api_key", "value": PLAIN}}]},
    {"domain": "shop", "descriptors": [{"entries": [{"key": "api_key", "value": [PLAIN]}]}]},
    {"domain": "shop", "descriptors": {"entries": [{"key": "api_key", "value": PLAIN}]}},
    {"domain": "shop", "descriptors": [{"entries": [["api_key", PLAIN]]}]},
    {"domain": "shop", "descriptors": [[{"key": "api_key", "value": PLAIN}]]},
    {"domain": "shop", "descriptors": [[["api_key", PLAIN]]]},
    {"domain": "shop", "descriptors": PLAIN},
]


def forms_of(mark: str) -> Iterator[str]:
    """The mark as it may be found, in lower case."""
    plain = mark.encode()
    yield mark
    yield plain.hex()
    yield "".join(f"%{byte:02x}" for byte in plain)
    yield ", ".join(map(str, plain))
    for before in range(3):  # the letters that do not depend on what is before and behind
        yield base64.b64encode(b"\0" * before + plain)[4:-4].decode()
        yield base64.urlsafe_b64encode(b"\0" * before + plain)[4:-4].decode()


FORMS: Final = re.compile("|".join(re.escape(form.lower()) for form in forms_of(MARK)))


def test_each_form_of_a_value_is_found() -> None:
    for before in ("", "a", "ab"):
        value = f"{before}{PLAIN}".encode()
        for text in (value.hex().upper(), base64.b64encode(value).decode(), str(list(value)), json.dumps(PLAIN)):
            assert FORMS.search(text.lower()), text
    assert FORMS.search(HASH(PLAIN)) is None


Found = dict[str, str]
"""Everything that was said and kept, by where."""


def call_all(service: Service, found: Found) -> None:
    """The requests by gRPC, by POST /json and /explain, and such that are no HTTP."""
    answers: list[object] = []
    with grpc.insecure_channel(f"127.0.0.1:{service.grpc_port}") as channel:
        method = channel.unary_unary(ShouldRateLimit.path, request_serializer=None, response_deserializer=None)
        for body in REQUESTS:
            try:
                response = method(body, timeout=60)
            except grpc.RpcError as error:
                answers += [error.code(), error.details(), error.trailing_metadata()]
            else:
                answers += [response, RateLimitResponse.FromString(response)]
    found["gRPC"] = "\n".join(map(str, answers))
    for name, port in (("/json", service.http_port), ("/explain", service.debug_port)):
        found[name] = "\n".join(str(ask(port, name, method="POST", body=json.dumps(body))) for body in BODIES)
    beyond = f"POST /json HTTP/1.1\r\nHost: here\r\nContent-Length: 1\r\n\r\n{{{PLAIN}\r\n{PLAIN}: {PLAIN}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", service.http_port), timeout=60) as connection:
        connection.sendall(beyond.encode())
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(4096):
            pass


def pages(service: Service, found: Found) -> None:
    for path in (
        "/",
        "/bans",
        "/metrics",
        "/rlconfig",
        "/stats",
        "/status",
        "/status/access",
        "/status/now",
        "/status/past",
        "/status/refusals",
        "/status/recent",
        "/status/hot",
        "/status/rules",
        "/status/settings",
        "/nothing",
    ):
        found[path] = str(ask(service.debug_port, path))
    found["/metrics"] += service.metrics()


Run = Callable[..., str]
"""Runs a command of ours, and returns what it prints."""


def runner(service: Service, environ: Mapping[str, str], caplog: pytest.LogCaptureFixture) -> Run:
    """In this process: there are forty of them. What they log would be on stderr too."""
    settings = {**environ, "RULES_PATH": str(service.rules)}

    def run(*arguments: str) -> str:
        caplog.clear()
        done = CliRunner().invoke(main, arguments, env=settings)
        assert isinstance(done.exception, SystemExit | None), arguments
        return done.output + caplog.text

    return run


def bans(service: Service, run: Run, found: Found, *, in_redis: bool) -> None:
    """Bans are made and shown, refuse requests, and are lifted: by value and by digest."""
    at = () if in_redis else ("--at", f"http://127.0.0.1:{service.debug_port}")
    why = ("--for", "1h", "--why", "a test")
    banned = f"api_key={BANNED}"
    said = [run("ban", "shop", banned, *why, *at), run("ban", "*", f"{banned}2", "path=/", *why, *at)]
    said += [run("ban", "shop", banned, "--for", "soon", "--why", "x", *at), run("unban", "shop", f"{banned}3", *at)]
    body = json.dumps({"domain": "shop", "descriptors": [{"entries": [{"key": "api_key", "value": BANNED}]}]})
    service.wait_until(lambda: ask(service.http_port, "/json", method="POST", body=body).status == 429, "it is banned")
    said += [
        str(ask(service.http_port, "/json", method="POST", body=body)),
        run("bans", *at),
        run("bans", "--json", *at),
    ]
    shown: Found = {}
    pages(service, shown)
    said += [str(shown), run("explain", "shop", banned, "--at", f"127.0.0.1:{service.debug_port}")]
    said += [run("unban", "shop", f"api_key={HASH(BANNED)}", *at), run("unban", "shop", banned, *at)]
    found["bans"] = "\n".join(said)


def commands(service: Service, run: Run, found: Found, *, in_redis: bool) -> None:
    """What `explain` and `counters` print; the value is an argument, or else its digest."""
    asked = (f"api_key={PLAIN}", f"api_key={EXACT}", "+", "path=/", f"api_key={PATTERN}", "+", f"token=gold_{MARK}")
    found["explain"] = run("explain", "shop", *asked) + run("explain", "shop", *asked, "--json")
    found["explain"] += run("explain", "shop", f"api_key={PLAIN}", "--limit", "3/year")
    for entry in (f"api_key=partner_{MARK}", f"api_key=re_{MARK}", f"api_key={PLAIN}", f"session={PLAIN}"):
        found["explain"] += run("explain", "rest", entry)
    found["explain --at"] = run("explain", "shop", *asked, "--at", f"127.0.0.1:{service.debug_port}")
    found["top"] = run("top", f"127.0.0.1:{service.debug_port}", "--json", "--interval", "0.1")
    found["check"] = run("check")
    old = service.rules.parent / "old"
    write_rules(old, "hash_values: true,")
    (old / "rules.yaml").write_text((old / "rules.yaml").read_text().replace("2}", "1}"))
    found["diff"] = run("diff", str(old), str(service.rules)) + run("diff", str(old), str(service.rules), "--json")
    if not in_redis:
        return
    found["counters"] = run("counters", "shop") + run("counters", "shop", "--json")
    for value in (PLAIN, EXACT, PATTERN, LISTED, "none"):
        found["counters"] += run("counters", "shop", f"api_key={value}")
    found["counters"] += run("counters", "shop", f"token=gold_{MARK}") + run("counters", "rest")
    found["counters"] += run("counters", "rest", f"api_key=partner_{MARK}") + run(
        "counters", "rest", f"api_key={PLAIN}"
    )
    found["counters"] += run("counters", "shop", f"api_key={PLAIN}", "--rule", "nothing")
    found["counters"] += run("counters", "shop", f"api_key={PLAIN}", "--rule", "shop.user.api_key")
    by_value, by_digest = (run("counters", "shop", f"api_key={value}") for value in (EXACT, HASH(EXACT)))
    found["by value"], found["by digest"] = by_value, by_digest
    found["counters"] += run("counters", "shop", f"api_key={PATTERN}", "--reset", "--yes")


def kept(redis: Redis) -> str:
    """Every key and its value."""
    with Client(port=redis.port) as client:
        return "\n".join(f"{key} {client.dump(key)!r}" for key in client.scan_iter())


@contextmanager
def monitored(redis: Redis, folder: Path, found: Found) -> Iterator[None]:
    """All commands that Redis gets meanwhile."""
    folder.mkdir()
    monitor = Process([str(peers.redis_cli()), "-p", str(redis.port), "monitor"], folder, {})
    with monitor:
        monitor.wait_until(lambda: "OK" in monitor.log, "the monitor listens")
        yield
        redis.cli("PING", "the end")
        monitor.wait_until(lambda: "the end" in monitor.log, "the monitor has all commands")
        found["MONITOR"] = monitor.log


def story(folder: Path, hashed: str, store: str, caplog: pytest.LogCaptureFixture) -> Found:
    """Everything that is said and kept while a service with these rules answers."""
    found: Found = {}
    write_rules(folder / "rules", hashed)
    rules = RULES.replace("HASHED", hashed)
    with ExitStack() as stack:
        environ = dict(ENVIRON)
        redis = None
        if store == "grpcio":
            environ["TRANSPORT"] = "grpcio"
        elif store != "memory":
            redis = stack.enter_context(start_redis(folder / "redis"))
            environ |= {"REDIS_URL": f"127.0.0.1:{redis.port}", "ON_STORE_FAILURE": "local"}
            environ |= {"WORKERS": "2"} if store == "workers" else {}
            environ |= {"KEY_FORMAT": "envoyproxy"} if store == "envoyproxy" else {}
            stack.enter_context(monitored(redis, folder / "monitor", found))
        service = stack.enter_context(start_service(folder / "service", folder / "rules", environ))
        call_all(service, found)
        pages(service, found)
        run = runner(service, environ, caplog)
        bans(service, run, found, in_redis=redis is not None)
        commands(service, run, found, in_redis=redis is not None)
        if redis is not None:
            found["Redis"] = kept(redis)
        service.write_rules(f"{rules}  - {{key: api_key, value: {EXACT}, hash_values: true, {LIMIT}, unit: x}}\n")
        service.wait_until(lambda: "rules not loaded" in service.log, "refuses the rules")
        afterwards: Found = {}
        service.write_rules(rules)
        service.write_rules(f"{TOKENS}gold_{MARK},silver\n", "tokens.csv")
        service.wait_until(lambda: "is given twice" in service.log, "refuses the data file")
        pages(service, afterwards)
        found["bad rules"] = str(afterwards)
        service.stop()
        found["log"] = service.log
    return found


ALWAYS: Final = {
    "gRPC",
    "/json",
    "/explain",
    "/metrics",
    "/rlconfig",
    "/stats",
    "/status",
    "/status/now",
    "/status/recent",
    "/status/hot",
    "/status/refusals",
    "/status/rules",
    "explain",
    "explain --at",
    "top",
    "diff",
    "bans",
}
ALWAYS_FOUND: Final = ALWAYS | {"bad rules", "log"}
FOUND_WITH_REDIS: Final = ALWAYS_FOUND | {"MONITOR", "Redis", "counters", "by value"}


def places(found: Found) -> set[str]:
    return {place for place, text in found.items() if FORMS.search(text.lower())}


@pytest.mark.slow
@pytest.mark.parametrize("store", ["memory", "workers", *map(extended, ["grpcio", "redis", "envoyproxy"])])
def test_a_secret_value_is_found_nowhere(tmp_path: Path, store: str, caplog: pytest.LogCaptureFixture) -> None:
    found = story(tmp_path / "story", "hash_values: true,", store, caplog)

    assert places(found) == set()
    digest = re.compile(r"h-[0-9a-f]{32}")
    assert {place for place in ALWAYS_FOUND if digest.search(found[place])} == ALWAYS_FOUND
    if "Redis" in found:
        assert found["by digest"] == found["by value"] != ""
        assert HASH(PLAIN) in found["Redis"]


@pytest.mark.slow
@pytest.mark.parametrize("store", [extended("memory"), "redis"])
def test_without_the_option_it_would_be_found_everywhere(
    tmp_path: Path, store: str, caplog: pytest.LogCaptureFixture
) -> None:
    found = story(tmp_path / "story", "", store, caplog)

    assert places(found) - {"by digest"} == (ALWAYS_FOUND if store == "memory" else FOUND_WITH_REDIS)


TWO: Final = f"""\
domain: shop
descriptors:
  - {{key: api_key, hash_values: true, {LIMIT}}}
  - {{key: user, {LIMIT}}}
"""


def statuses(service: Service) -> tuple[int, int]:
    """The HTTP statuses of a request with a secret value, and of one without."""
    api_key, user = (
        ask(service.http_port, "/json", method="POST", body=json.dumps(BODIES[1]).replace("api_key", key)).status
        for key in ("api_key", "user")
    )
    return api_key, user


def test_instances_with_one_key_share_counters_and_those_of_another_key_start_afresh(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{KEY}\n")
    with start_redis(tmp_path / "redis") as redis:
        environ = {"REDIS_URL": f"127.0.0.1:{redis.port}", "STORE_DEADLINE": "30s"}
        with start_service(tmp_path / "one", TWO, {**environ, "HASH_KEY": KEY}) as one:
            assert [statuses(one), statuses(one), statuses(one)] == [(200, 200), (200, 200), (429, 429)]
            with start_service(tmp_path / "two", TWO, {**environ, "HASH_KEY_FILE": str(tmp_path / "key")}) as two:
                assert statuses(two) == (429, 429)
        with start_service(tmp_path / "new", TWO, {**environ, "HASH_KEY": KEY[::-1]}) as new:
            assert [statuses(new), statuses(new), statuses(new)] == [(200, 429), (200, 429), (429, 429)]


def test_without_a_key_rules_with_secret_values_are_refused_when_redis_has_the_counters(tmp_path: Path) -> None:
    rules = TWO.replace("hash_values: true, ", "")
    with start_redis(tmp_path / "redis") as redis:
        environ = {"REDIS_URL": f"127.0.0.1:{redis.port}", "STORE_DEADLINE": "30s"}
        with start_service(tmp_path / "one", TWO, environ, wait_until_healthy=False) as service:
            service.wait_until(lambda: "rules not loaded" in service.log, "refuses the rules")
            assert "hash_values needs a key that all instances share: set HASH_KEY or HASH_KEY_FILE" in service.log
            assert not service.healthy
            service.write_rules(rules)
            service.wait_until(lambda: service.healthy, "has good rules")
            service.write_rules(TWO)
            service.wait_until(lambda: "the old rules stay" in service.log, "refuses the rules again")
            assert statuses(service) == (200, 200)


def test_without_a_key_counters_in_memory_survive_a_reload(tmp_path: Path) -> None:
    with start_service(tmp_path / "one", TWO) as service:
        assert [statuses(service), statuses(service)] == [(200, 200), (200, 200)]
        service.write_rules(TWO + "  - key: more\n")
        service.wait_until(lambda: service.log.count("rules loaded") == 2, "loads the rules again")
        assert statuses(service) == (429, 429)
