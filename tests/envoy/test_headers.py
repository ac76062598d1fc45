"""What callers of a real Envoy are told: each header on real responses, with Envoy's own headers and without."""

import http.client
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import http_sf
import pytest

from tests.envoy.proxy import Envoy, bootstrap, by, route, start_envoy
from tests.processes import START_SECONDS, Reply, Service, ask, eventually, start_service

RULES: Final = """
domain: shop
headers: [ratelimit, x_ratelimit, ietf]
retry_after: true
problem_body: true
rule_metadata: true
descriptors:
  - key: user
    rate_limits:
      - {unit: year, requests_per_unit: 2, name: 'per "user"'}
      - {unit: 5 years, requests_per_unit: 9}
  - {key: closed, rate_limit: {unit: year, requests_per_unit: 0}}
  - {key: denied, rate_limit: {deny: true}}
  - {key: maintenance, rate_limit: {deny: true, for: 1 hour}}
  - {key: blocked, rate_limit: {unit: minute, requests_per_unit: 1, block_for: 1 year}}
  - {key: free, rate_limit: {allow: true}}
  - {key: soft, rate_limit: {unit: year, requests_per_unit: 1, exceed: 1}}
  - {key: trial, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: slow, rate_limit: {unit: year, requests_per_unit: 2, burst: 1, algorithm: token_bucket}}
  - {key: small, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: large, quota_mode: true, rate_limit: {unit: week, requests_per_unit: 1}}
  - key: paid
    charge: first
    rate_limits:
      - {unit: year, requests_per_unit: 1, name: plan}
      - {unit: year, requests_per_unit: 2, name: credits}
  - {key: tokens, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: bytes, rate_limit: {unit: year, requests_per_unit: 100, quota_unit: content-bytes}}
  - {key: evil, rate_limit: {unit: year, requests_per_unit: 1, name: "a\\r\\nx-evil: 1\\"é"}}
"""
QUIET_RULES: Final = """
domain: quiet
headers: []
retry_after_jitter: 100%
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 1, name: users}}
  - {key: closed, rate_limit: {unit: year, requests_per_unit: 0}}
"""
SETTLED_RULES: Final = """
domain: settled
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 1}}
"""

_METADATA: Final = [
    {
        "header": {"key": "x-metadata", "value": "%DYNAMIC_METADATA(envoy.filters.http.ratelimit)%"},
        "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
    }
]


class Told(NamedTuple):
    """A response of Envoy."""

    status: int
    headers: Mapping[str, Sequence[str]]
    """All values by name in lower case."""
    body: str

    def one(self, name: str) -> str | None:
        """The value of a header that is sent once at most."""
        values = self.headers.get(name, [])
        assert len(values) < 2, f"{name}: {values}"
        return values[0] if values else None

    @property
    def metadata(self) -> Any:
        return json.loads(self.one("x-metadata") or "null")


def get(envoy: Envoy, path: str, user: str = "ada", **headers: str) -> Told:
    connection = http.client.HTTPConnection("127.0.0.1", envoy.port, timeout=START_SECONDS)
    try:
        connection.request("GET", path, headers={"x-user": user} | headers)
        response = connection.getresponse()
        found: dict[str, list[str]] = {}
        for name, value in response.getheaders():
            found.setdefault(name.lower(), []).append(value)
        return Told(response.status, found, response.read().decode())
    finally:
        connection.close()


@pytest.fixture(scope="module")
def told_service(tmp_path_factory: pytest.TempPathFactory, transport: str) -> Iterator[Service]:
    """The service with rules for all that it may say, of two domains; another is told by settings."""
    folder = tmp_path_factory.mktemp("told")
    rules = folder / "given"
    rules.mkdir()
    for name, text in (("shop", RULES), ("quiet", QUIET_RULES), ("settled", SETTLED_RULES)):
        (rules / f"{name}.yaml").write_text(text, encoding="utf-8")
    environ = {
        "TRANSPORT": transport,
        "LIMIT_RESPONSE_HEADERS_ENABLED": "true",
        "LIMIT_LIMIT_HEADER": "X-Limit",
        "RESPONSE_HEADERS": "ietf",
    }
    with start_service(folder, rules, environ) as service:
        yield service


ROUTES: Final = [
    *(route(f"/{key}", by((key, "x-user")), response_headers_to_add=_METADATA) for key in ("user", "closed", "denied")),
    *(route(f"/{key}", by((key, "x-user")), response_headers_to_add=_METADATA) for key in ("free", "soft", "trial")),
    *(
        route(f"/{key}", by((key, "x-user")), response_headers_to_add=_METADATA)
        for key in ("slow", "evil", "maintenance", "blocked", "paid")
    ),
    route("/quota", by(("small", "x-user")), by(("large", "x-user")), response_headers_to_add=_METADATA),
    route("/both", by(("user", "x-user")), by(("denied", "x-user")), response_headers_to_add=_METADATA),
    route("/tokens", per_route={"rate_limits": [by(("tokens", "x-user"), hits_addend={"number": 3})]}),
    route(
        "/bytes",
        per_route={
            "rate_limits": [
                by(("bytes", "x-user"), hits_addend={"number": 0}),
                by(("bytes", "x-user"), hits_addend={"format": "%BYTES_RECEIVED%"}, apply_on_stream_done=True),
            ]
        },
    ),
    route("/quiet-user", by(("user", "x-user")), per_route={"domain": "quiet"}),
    route("/quiet-closed", by(("closed", "x-user")), per_route={"domain": "quiet"}),
    route("/settled", by(("user", "x-user")), per_route={"domain": "settled"}),
    route("/nowhere", by(("user", "x-user")), per_route={"domain": "nowhere"}),
]


@pytest.fixture(scope="module")
def envoy(told_service: Service, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Envoy]:
    """Envoy that adds nothing of its own."""
    with start_envoy(tmp_path_factory.mktemp("plain"), bootstrap([told_service.grpc_port], ROUTES)) as envoy:
        yield envoy


@pytest.fixture(scope="module")
def wordy_envoy(told_service: Service, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Envoy]:
    """Envoy that adds all it can."""
    options = {"enable_x_ratelimit_headers": "DRAFT_VERSION_03", "enable_retry_after_header": True}
    configuration = bootstrap([told_service.grpc_port], ROUTES, filter_options=options)
    with start_envoy(tmp_path_factory.mktemp("wordy"), configuration) as envoy:
        yield envoy


def seconds(value: str | None) -> int:
    assert value is not None
    return int(value)


def test_an_allowed_request_has_each_set_of_headers(envoy: Envoy) -> None:
    told = get(envoy, "/user")

    assert told.status == 200
    assert (told.one("x-limit"), told.one("ratelimit-remaining")) == ("2", "1")
    assert 0 < seconds(told.one("ratelimit-reset")) <= 31_536_000
    assert told.one("x-ratelimit-limit") == r'2, 2;w=31536000;name="per \"user\"", 9;w=157680000'
    assert told.one("x-ratelimit-remaining") == "1"
    assert told.one("x-ratelimit-reset") == told.one("ratelimit-reset")
    assert items(told.one("ratelimit-policy")) == [
        ('per "user"', {"q": 2, "w": 31_536_000}),
        ("user.per_5_years", {"q": 9, "w": 157_680_000}),
    ]
    (first, second) = items(told.one("ratelimit"))
    assert (first[0], first[1]["r"], second[0], second[1]["r"]) == ('per "user"', 1, "user.per_5_years", 8)
    assert str(first[1]["t"]) == told.one("x-ratelimit-reset")
    assert told.one("retry-after") is None
    assert told.one("x-metadata") is None
    assert told.body == "echo"


def test_a_refused_request_has_them_too_and_retry_after_body_and_metadata(envoy: Envoy) -> None:
    told = [get(envoy, "/user", "bob") for _ in range(3)][-1]

    assert told.status == 429
    assert (told.one("x-limit"), told.one("ratelimit-remaining")) == ("2", "0")
    assert items(told.one("ratelimit"))[0][1]["r"] == 0
    assert told.one("retry-after") == told.one("x-ratelimit-reset") == str(items(told.one("ratelimit"))[0][1]["t"])
    assert told.one("content-type") == "application/problem+json"
    assert json.loads(told.body) == {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "status": 429,
    }
    refused_by = told.metadata["refused_by"]
    assert refused_by.pop("place").endswith("/shop.yaml:10")
    assert refused_by == {"domain": "shop", "rule": "user.per_year", "name": 'per "user"'}


@pytest.mark.parametrize(
    ("path", "limit", "policy"),
    [("/closed", "0, 0;w=31536000", '"closed";q=0;w=31536000'), ("/denied", "0", '"denied";q=0')],
)
def test_what_is_always_refused_is_not_told_to_come_back(envoy: Envoy, path: str, limit: str, policy: str) -> None:
    told = get(envoy, path)

    assert (told.status, told.one("retry-after")) == (429, None)
    assert told.one("x-ratelimit-limit") == limit
    assert told.one("ratelimit-policy") == policy
    assert told.one("ratelimit") == f'"{path[1:]}";r=0'
    assert told.metadata["refused_by"]["rule"] == path[1:]


def test_what_is_closed_for_a_time_is_told_how_long(envoy: Envoy) -> None:
    told = get(envoy, "/maintenance")

    assert (told.status, told.one("retry-after")) == (429, "3600")
    assert told.one("ratelimit") == '"maintenance";r=0;t=3600'


def test_what_is_blocked_is_told_until_when(envoy: Envoy) -> None:
    get(envoy, "/blocked")
    told = get(envoy, "/blocked")

    assert told.status == 429
    assert 31_536_000 - 60 < seconds(told.one("retry-after")) <= 31_536_000


def test_what_is_banned_is_told_how_long(envoy: Envoy, told_service: Service) -> None:
    ban = {"domain": "shop", "entries": [{"key": "free", "value": "mallory"}], "for": "1h", "why": "a test"}
    made = ask(told_service.debug_port, "/bans", method="POST", body=json.dumps(ban))
    assert made.status == 200, made.body

    eventually(lambda: get(envoy, "/free", "mallory").status == 429, "mallory is banned")

    told = get(envoy, "/free", "mallory")
    assert 3600 - 60 < seconds(told.one("retry-after")) <= 3601
    assert told.one("ratelimit-policy") == '"banned";q=0'
    assert told.metadata == {"refused_by": {"domain": "shop", "rule": "banned"}}


def test_a_request_that_costs_more_than_its_limit_is_not_told_to_come_back(envoy: Envoy) -> None:
    told = get(envoy, "/tokens")

    assert (told.status, told.one("retry-after")) == (429, None)


def test_a_bucket_is_told_by_its_next_token(envoy: Envoy) -> None:
    """Half a year, not the year of its window."""
    get(envoy, "/slow")
    told = get(envoy, "/slow")

    assert told.status == 429
    assert 15_768_000 - 60 < seconds(told.one("retry-after")) <= 15_768_000
    assert items(told.one("ratelimit")) == [("slow", {"r": 0, "t": seconds(told.one("retry-after"))})]


def test_quotas_are_told_by_the_first_that_has_room_again(envoy: Envoy) -> None:
    get(envoy, "/quota")
    told = get(envoy, "/quota")

    assert told.status == 429
    assert 0 < seconds(told.one("retry-after")) <= 604_800
    assert len(items(told.one("ratelimit"))) == 2
    assert told.metadata["refused_by"]["rule"] == "large"


def test_of_limits_with_a_deny_among_them_waiting_does_not_help(envoy: Envoy) -> None:
    told = get(envoy, "/both", "carl")

    assert (told.status, told.one("retry-after")) == (429, None)
    assert told.metadata["refused_by"]["rule"] == "denied"


def test_the_soft_part_is_told(envoy: Envoy) -> None:
    first, soft, refused = (get(envoy, "/soft") for _ in range(3))

    assert [told.status for told in (first, soft, refused)] == [200, 200, 429]
    assert [told.one("x-ratelimit-exceeded") for told in (first, soft, refused)] == [None, "1", None]
    assert [list(told.metadata or ()) for told in (first, soft, refused)] == [[], ["soft_limit"], ["refused_by"]]


def test_of_a_list_the_limit_that_was_charged_is_told(envoy: Envoy) -> None:
    told = [get(envoy, "/paid") for _ in range(4)]

    assert [each.status for each in told] == [200, 200, 200, 429]
    assert [each.metadata.get("charged_to") for each in told] == ["plan", "credits", "credits", None]
    assert [each.one("x-ratelimit-remaining") for each in told] == ["0", "1", "0", "0"]
    assert [each.one("ratelimit-remaining") for each in told] == ["0", "1", "0", "0"]


def test_a_trial_is_in_the_headers_of_envoyproxy_only(envoy: Envoy) -> None:
    told = [get(envoy, "/trial") for _ in range(3)][-1]

    assert told.status == 200
    assert told.one("ratelimit-remaining") == "0"
    assert told.one("x-ratelimit-limit") is told.one("ratelimit") is told.one("retry-after") is None
    assert told.metadata is None


@pytest.mark.parametrize("path", ["/free", "/nowhere"])
def test_what_is_not_limited_is_told_nothing(envoy: Envoy, path: str) -> None:
    told = get(envoy, path)

    assert told.status == 200
    assert not [name for name in told.headers if "ratelimit" in name or name == "retry-after"]


def test_a_limit_of_bytes_says_so(envoy: Envoy) -> None:
    """Each request is let in by what is left, and charged its bytes when it is done."""

    def post() -> Reply:
        return ask(envoy.port, "/bytes", {"x-user": "ada"}, method="POST", body="0123456789")

    def left(told: Reply) -> int:
        return int(items(told.headers["ratelimit"])[0][1]["r"])

    first = post()

    assert first.headers["ratelimit-policy"] == '"bytes";q=100;qu="content-bytes";w=31536000'
    assert left(first) == 100
    # On a busy machine Envoy may give up its call about a request that is done: then the next one is charged.
    eventually(lambda: left(post()) in range(10, 100, 10), "10 bytes are charged")


def test_names_cannot_end_a_header(envoy: Envoy) -> None:
    """Envoy sees one header, whose name of a policy is the rule's, encoded."""
    told = get(envoy, "/evil", '"\r\n x-worse: 1'.replace("\r\n", ""))

    assert told.status == 200
    assert told.one("x-evil") is None
    assert items(told.one("ratelimit-policy")) == [('a%0D%0Ax-evil: 1"%C3%A9', {"q": 1, "w": 31_536_000})]


def test_a_domain_that_says_nothing_has_what_the_settings_say(envoy: Envoy) -> None:
    told = get(envoy, "/settled")

    assert (told.one("x-limit"), told.one("ratelimit-remaining")) == ("1", "0")
    assert told.one("ratelimit-policy") == '"user";q=1;w=31536000'
    assert told.one("x-ratelimit-limit") is None


def test_a_domain_can_be_silent_whatever_the_settings_say(envoy: Envoy) -> None:
    get(envoy, "/quiet-user")
    told = get(envoy, "/quiet-user")

    assert (told.status, told.body) == (429, "")
    assert not [name for name in told.headers if "ratelimit-" in name or name in ("retry-after", "content-type")]


def test_what_envoy_writes_itself_stands_beside_ours_and_is_the_same(wordy_envoy: Envoy) -> None:
    """So with x_ratelimit of ours, its own should be off: a client sees each header twice."""
    for told in (get(wordy_envoy, "/slow", "both"), get(wordy_envoy, "/slow", "both")):
        for name in ("x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"):
            ours, its = told.headers[name]
            assert ours == its


def test_envoy_itself_knows_one_limit_of_a_list_and_escapes_no_name(wordy_envoy: Envoy) -> None:
    ours, its = get(wordy_envoy, "/user", "list").headers["x-ratelimit-limit"]

    assert ours == r'2, 2;w=31536000;name="per \"user\"", 9;w=157680000'
    assert its == '2, 2;w=31536000;name="per "user""'


def test_envoy_leaves_our_retry_after_as_it_is(wordy_envoy: Envoy) -> None:
    told = [get(wordy_envoy, "/user", "dora") for _ in range(3)][-1]

    assert told.status == 429
    assert told.one("retry-after") == str(items(told.one("ratelimit"))[0][1]["t"])


def test_envoys_own_retry_after_is_lengthened_by_our_jitter(wordy_envoy: Envoy) -> None:
    """Envoy makes it of duration_until_reset; up to twice as long with 100 %."""
    get(wordy_envoy, "/quiet-user", "erin")
    waits = [seconds(get(wordy_envoy, "/quiet-user", "erin").one("retry-after")) for _ in range(20)]

    assert len(set(waits)) > 10
    assert max(waits) - min(waits) > 1000


def test_envoy_tells_those_who_should_not_come_back_to_wait_until_the_window_ends(wordy_envoy: Envoy) -> None:
    """Its own header has no word for never: one more reason to let the service send Retry-After."""
    assert 1 < seconds(get(wordy_envoy, "/quiet-closed").one("retry-after")) <= 31_536_000


def test_envoy_gives_the_body_to_a_grpc_call_as_the_text_of_its_status(envoy: Envoy) -> None:
    told = get(envoy, "/denied", **{"content-type": "application/grpc"})

    assert told.one("content-type") == "application/grpc"
    assert told.one("grpc-status") == "14"
    assert (told.one("grpc-message") or "").startswith('{"type":')


def test_json_sends_the_same_headers_as_its_own(told_service: Service) -> None:
    body = json.dumps({"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "json"}]}]})

    told = [ask(told_service.http_port, "/json", method="POST", body=body) for _ in range(3)][-1]

    assert told.status == 429
    assert told.headers["content-type"].startswith("application/json")
    assert told.headers["ratelimit-remaining"] == "0"
    (first, _) = items(told.headers["ratelimit"])
    assert told.headers["retry-after"] == str(first[1]["t"])
    assert {"key": "Content-Type", "value": "application/problem+json"} in json.loads(told.body)["responseHeadersToAdd"]


def items(value: str | None) -> list[tuple[str, dict[str, Any]]]:
    """The items of a structured field."""
    assert value is not None
    parsed: Any = http_sf.parse(value.encode(), tltype="list")
    return list(parsed)
