"""What callers are told beside the decision: headers, Retry-After, jitter, body and metadata."""

import json
from collections.abc import Callable, Mapping, Sequence
from textwrap import indent
from typing import Any

import http_sf
import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.algorithms import open_algorithm
from ratelimit_service.api.generated.envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest, RateLimitResponse
from ratelimit_service.api.headers import MAX_LIMITS, PROBLEM, HeaderNames
from ratelimit_service.api.ratelimit import ShouldRateLimit
from ratelimit_service.api.response import ResponseEncoder, random_share
from ratelimit_service.limiter.limiter import Limiter
from ratelimit_service.limiter.verdict import Verdict
from ratelimit_service.model import NEVER, Decision, Limit, Unit
from ratelimit_service.rules.bans import EVERY_DOMAIN, FOR_EVER, Ban
from ratelimit_service.rules.response import HEADERS, MAX_NAME_LENGTH, SHARES, Jitter, ResponseOptions
from ratelimit_service.rules.rule import Entries, Level, Rule
from ratelimit_service.stores.hit import Hit
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.stores.store import Done
from ratelimit_service.system.clock import DAY, MINUTE, SECOND
from ratelimit_service.telemetry.tally import Tally
from tests.books import book
from tests.clocks import Clock

ALL = "headers: [ratelimit, x_ratelimit, ietf]\nretry_after: true"

Headers = Mapping[str, str]


class LaterStore(MemoryStore):
    """A store that does not answer at once."""

    charge = None  # type: ignore[assignment]  # it takes its time

    def hit(self, hits: Sequence[Hit], done: Done, timeout: int | None = None) -> None:
        MemoryStore.charge(self, hits)
        done(None)


class Shop:
    """A service with these descriptors, and with `top` at the top of its file; its time stands still."""

    def __init__(
        self,
        descriptors: str,
        top: str = ALL,
        draw: Callable[[], int] = random_share,
        store: type[MemoryStore] = MemoryStore,
        **options: Any,
    ) -> None:
        self.clock = Clock(100 * DAY)  # at midnight
        self.limiter = Limiter(store(1000, self.clock), **options)
        self.limiter.book = book(f"domain: shop\n{top}\ndescriptors:\n{indent(descriptors.strip(), '  ')}\n")
        self.method = ShouldRateLimit(self.limiter, ResponseEncoder(draw=draw))

    def ask(self, *keys: str, hits: int = 1) -> RateLimitResponse:
        """The response to a request with a descriptor for each key."""
        request = RateLimitRequest(domain="shop", hits_addend=hits)
        for key in keys:
            request.descriptors.add().entries.add(key=key, value="x")
        replies: list[Any] = []
        self.method.call(request.SerializeToString(), replies.append)
        return RateLimitResponse.FromString(replies[0])

    def headers(self, *keys: str, hits: int = 1) -> Headers:
        """Its headers, by name."""
        return headers_of(self.ask(*keys, hits=hits))


def headers_of(response: RateLimitResponse) -> Headers:
    pairs = [(header.key, header.value) for header in response.response_headers_to_add]
    assert len(dict(pairs)) == len(pairs), "a header is sent twice"
    return dict(pairs)


def items(value: str) -> list[tuple[str, dict[str, Any]]]:
    """The items of a structured field, which is written in the canonical form."""
    parsed: Any = http_sf.parse(value.encode(), tltype="list")
    assert http_sf.ser(parsed) == value
    return list(parsed)


USER = "- {key: user, rate_limit: {unit: minute, requests_per_unit: 2, name: users}}"


def test_the_sets_of_headers_of_one_limit() -> None:
    shop = Shop(USER)

    first, _, third = (shop.headers("user") for _ in range(3))

    assert first == {
        "RateLimit-Limit": "2",
        "RateLimit-Remaining": "1",
        "RateLimit-Reset": "60",
        "X-RateLimit-Limit": '2, 2;w=60;name="users"',
        "X-RateLimit-Remaining": "1",
        "X-RateLimit-Reset": "60",
        "RateLimit-Policy": '"users";q=2;w=60',
        "RateLimit": '"users";r=1;t=60',
    }
    assert third == {
        **first,
        "RateLimit-Remaining": "0",
        "X-RateLimit-Remaining": "0",
        "RateLimit": '"users";r=0;t=60',
        "Retry-After": "60",
    }


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ("[]", set()),
        ("[ratelimit]", {"RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"}),
        ("[x_ratelimit]", {"X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"}),
        ("[ietf]", {"RateLimit-Policy", "RateLimit"}),
    ],
)
def test_a_domain_chooses_its_sets(headers: str, expected: set[str]) -> None:
    assert set(Shop(USER, f"headers: {headers}").headers("user")) == expected


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ("[ratelimit]", {"X-RateLimit-Limit": "2", "X-RateLimit-Remaining": "1", "Reset": "60"}),
        (
            "[ratelimit, x_ratelimit]",
            {"X-RateLimit-Limit": '2, 2;w=60;name="users"', "X-RateLimit-Remaining": "1", "X-RateLimit-Reset": "60"},
        ),
    ],
)
def test_where_an_operator_names_headers_as_another_set_does_that_set_alone_is_sent(
    headers: str, expected: Headers
) -> None:
    shop = Shop(USER, f"headers: {headers}")
    names = HeaderNames("X-RateLimit-Limit", "X-RateLimit-Remaining", "Reset")
    shop.method = ShouldRateLimit(shop.limiter, ResponseEncoder(names))

    assert shop.headers("user") == expected


LIMIT_TABLE: Sequence[tuple[str, Sequence[str], Headers]] = [
    (
        "- {key: a, rate_limit: {calendar: {unit: month}, requests_per_unit: 5}}",
        ["a"],
        {"RateLimit-Policy": '"a";q=5', "RateLimit": '"a";r=4;t=1728000', "X-RateLimit-Reset": "1728000"},
    ),
    (
        "- {key: a, rate_limit: {unit: 90 seconds, requests_per_unit: 5}}",
        ["a"],
        {"X-RateLimit-Limit": "5, 5;w=90", "RateLimit-Policy": '"a";q=5;w=90', "RateLimit": '"a";r=4;t=90'},
    ),
    (
        "- {key: a, value: x, descriptors: [], rate_limit: {unit: week, requests_per_unit: 5}}",
        ["a"],
        {"RateLimit-Policy": '"a_x";q=5;w=604800'},
    ),
    (
        "- {key: a, rate_limit: {unit: hour, requests_per_unit: 5, quota_unit: content-bytes}}",
        ["a"],
        {"X-RateLimit-Limit": "5, 5;w=3600", "RateLimit-Policy": '"a";q=5;qu="content-bytes";w=3600'},
    ),
    (
        "- {key: a, rate_limit: {unit: hour, requests_per_unit: 5, quota_unit: micro-usd}}",
        ["a"],
        {"RateLimit-Policy": '"a";q=5;qu="micro-usd";w=3600', "RateLimit": '"a";r=4;t=3600'},
    ),
    (
        """
- key: a
  rate_limits:
    - {unit: second, requests_per_unit: 3, name: burst}
    - {unit: hour, requests_per_unit: 100}
- {key: b, rate_limit: {unit: day, requests_per_unit: 7}}
""",
        ["a", "b"],
        {
            "RateLimit-Limit": "3",
            "X-RateLimit-Limit": '3, 3;w=1;name="burst", 100;w=3600, 7;w=86400',
            "X-RateLimit-Remaining": "2",
            "RateLimit-Policy": '"burst";q=3;w=1, "a.per_hour";q=100;w=3600, "b";q=7;w=86400',
            "RateLimit": '"burst";r=2;t=1, "a.per_hour";r=99;t=3600, "b";r=6;t=86400',
        },
    ),
    (
        "- {key: a, rate_limit: {unlimited: true}}\n- {key: b, rate_limit: {unit: day, requests_per_unit: 7}}",
        ["a", "b", "unknown"],
        {"RateLimit-Limit": "7", "X-RateLimit-Limit": "7, 7;w=86400", "RateLimit": '"b";r=6;t=86400'},
    ),
    (
        "- {key: a, rate_limit: {unit: minute, requests_per_unit: 60, burst: 5, algorithm: token_bucket}}",
        ["a", "a"],
        {"RateLimit-Reset": "2", "X-RateLimit-Reset": "2", "RateLimit": '"a";r=4;t=1, "a";r=3;t=1'},
    ),
    (
        "- {key: a, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}",
        ["a"],
        {"RateLimit-Limit": "1", "RateLimit-Remaining": "0", "RateLimit-Reset": "86400"},
    ),
    (
        """
- {key: a, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}
- {key: b, rate_limit: {unit: minute, requests_per_unit: 7}}
""",
        ["a", "b"],
        {"RateLimit-Limit": "1", "X-RateLimit-Limit": "7, 7;w=60", "X-RateLimit-Reset": "60"},
    ),
]


@pytest.mark.parametrize("store", [MemoryStore, LaterStore])
@pytest.mark.parametrize(("descriptors", "keys", "expected"), LIMIT_TABLE)
def test_an_allowed_request_is_told_its_limits(
    descriptors: str, keys: Sequence[str], expected: Headers, store: type[MemoryStore]
) -> None:
    found = Shop(descriptors, store=store).headers(*keys)

    assert {name: found.get(name) for name in expected} == expected
    assert "Retry-After" not in found
    if "shadow_mode" in descriptors and "b" not in keys:
        assert found.keys() == expected.keys()


@pytest.mark.parametrize("keys", [["unknown"], ["free"]])
def test_what_nothing_limits_has_no_headers(keys: Sequence[str]) -> None:
    assert Shop("- {key: free, rate_limit: {allow: true}}").headers(*keys) == {}


def test_a_limit_that_comes_with_a_request_has_the_headers_of_its_domain() -> None:
    shop = Shop(USER)
    request = RateLimitRequest(domain="shop")
    added = request.descriptors.add(limit={"requests_per_unit": 5, "unit": "HOUR"})
    added.entries.add(key="user", value="x")
    replies: list[Any] = []

    shop.method.call(request.SerializeToString(), replies.append)

    found = headers_of(RateLimitResponse.FromString(replies[0]))
    assert found["X-RateLimit-Limit"] == "5, 5;w=3600"
    assert found["RateLimit-Policy"] == '"override";q=5;w=3600'


REFUSALS: Sequence[tuple[str, Sequence[str], str | None]] = [
    ("- {key: a, rate_limit: {unit: minute, requests_per_unit: 1}}", ["a"], "60"),
    ("- {key: a, rate_limit: {unit: minute, requests_per_unit: 0}}", ["a"], None),
    ("- {key: a, rate_limit: {deny: true}}", ["a"], None),
    ("- {key: a, rate_limit: {unit: minute, requests_per_unit: 1, block_for: 15 minutes}}", ["a"], "900"),
    # A token every 6 s.
    ("- {key: a, rate_limit: {unit: minute, requests_per_unit: 10, burst: 1, algorithm: token_bucket}}", ["a"], "6"),
    ("- {key: a, rate_limit: {unit: minute, requests_per_unit: 1, algorithm: sliding_log}}", ["a"], "60"),
    ("- {key: a, rate_limit: {unit: minute, requests_per_unit: 1, algorithm: sub_windows, parts: 10}}", ["a"], "66"),
    (
        """
- {key: a, rate_limit: {unit: minute, requests_per_unit: 1}}
- {key: b, rate_limit: {unit: hour, requests_per_unit: 1}}
- {key: c, rate_limit: {unit: day, requests_per_unit: 100}}
""",
        ["a", "b", "c"],
        "3600",
    ),
    (
        "- {key: a, rate_limit: {unit: minute, requests_per_unit: 1}}\n- {key: b, rate_limit: {deny: true}}",
        ["a", "b"],
        None,
    ),
    (
        "- {key: a, rate_limits: [{unit: hour, requests_per_unit: 1}, {unit: day, requests_per_unit: 1}]}",
        ["a"],
        "86400",
    ),
    # Of quotas the first that has room again lets the request pass.
    (
        """
- {key: a, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
- {key: b, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
""",
        ["a", "b"],
        "60",
    ),
    (
        """
- {key: a, quota_mode: true, rate_limit: {deny: true}}
- {key: b, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
""",
        ["a", "b"],
        "3600",
    ),
    (
        """
- {key: a, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}
- {key: b, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 100}}
- {key: c, rate_limit: {unit: hour, requests_per_unit: 1}}
""",
        ["a", "b", "c"],
        "3600",
    ),
    ("- {key: a, quota_mode: true, rate_limit: {deny: true}}", ["a"], None),
]  # fmt: skip


@pytest.mark.parametrize(("descriptors", "keys", "seconds"), REFUSALS)
def test_a_refusal_says_when_to_come_back(descriptors: str, keys: Sequence[str], seconds: str | None) -> None:
    shop = Shop(descriptors)
    shop.ask(*keys)

    response = shop.ask(*keys)

    assert response.overall_code == RateLimitResponse.OVER_LIMIT
    assert headers_of(response).get("Retry-After") == seconds
    if seconds is not None:  # which is true, to the second
        shop.clock.advance(int(seconds) * SECOND - 1_000_001)
        assert shop.ask(*keys, hits=1).overall_code == RateLimitResponse.OVER_LIMIT


@pytest.mark.parametrize(("descriptors", "keys", "seconds"), [case for case in REFUSALS if case[2]])
def test_a_caller_that_comes_back_then_is_allowed(descriptors: str, keys: Sequence[str], seconds: str) -> None:
    shop = Shop(descriptors)
    shop.ask(*keys)
    shop.ask(*keys)

    shop.clock.advance(int(seconds) * SECOND)

    assert shop.ask(*keys).overall_code == RateLimitResponse.OK


def test_a_request_that_costs_more_than_its_limit_should_not_come_back() -> None:
    found = Shop(USER).headers("user", hits=3)

    assert "Retry-After" not in found
    assert found["RateLimit"] == '"users";r=0;t=60'


def test_a_denied_rule_has_a_policy_of_0_without_a_window() -> None:
    found = Shop("- {key: a, rate_limit: {deny: true, name: banned}}").headers("a")

    assert found["X-RateLimit-Limit"] == "0"
    assert found["RateLimit-Policy"] == '"banned";q=0'
    assert found["RateLimit"] == '"banned";r=0'


ADA: Entries = (("user", "x"),)


def test_a_ban_is_told_as_a_limit_of_0_with_the_time_that_is_left() -> None:
    shop = Shop(USER, f"{ALL}\nrule_metadata: true\nproblem_body: true")
    shop.limiter.bans.clock = shop.clock
    shop.limiter.bans.put(ban("shop", ADA, until=shop.clock() + 90 * SECOND - 1))

    response = shop.ask("user")

    assert headers_of(response) == {
        "RateLimit-Limit": "0",
        "RateLimit-Remaining": "0",
        "RateLimit-Reset": "90",
        "X-RateLimit-Limit": "0",
        "X-RateLimit-Remaining": "0",
        "X-RateLimit-Reset": "90",
        "RateLimit-Policy": '"banned";q=0',
        "RateLimit": '"banned";r=0;t=90',
        "Retry-After": "90",
        "Content-Type": "application/problem+json",
    }
    assert response.raw_body == PROBLEM
    assert metadata(response) == {"refused_by": {"domain": "shop", "rule": "banned"}}


def test_a_ban_for_ever_is_told_no_time() -> None:
    shop = Shop(USER)
    shop.limiter.bans.put(ban("shop", ADA, until=FOR_EVER))

    found = shop.headers("user")

    assert "Retry-After" not in found
    assert found["RateLimit"] == '"banned";r=0'


def test_in_a_domain_without_rules_a_ban_is_told_as_the_settings_say() -> None:
    options = ResponseOptions(("ietf",), retry_after=True)
    shop = Shop(USER)
    shop.limiter.bans.clock = shop.clock
    shop.limiter.book = book("domain: other", response=options)
    assert shop.headers("user") == {}

    shop.limiter.bans.put(ban(EVERY_DOMAIN, ADA, until=shop.clock() + MINUTE))

    assert shop.headers("user") == {
        "RateLimit-Policy": '"banned";q=0',
        "RateLimit": '"banned";r=0;t=60',
        "Retry-After": "60",
    }


def ban(domain: str, entries: Entries, until: int) -> Ban:
    return Ban(domain, entries, until=until, made=0, who="test", why="test")


def test_a_rule_that_denies_may_tell_a_time_to_wait() -> None:
    rule = "- {key: a, rate_limit: {deny: true, for: 1 hour}}"
    shop = Shop(rule, f"{ALL}\nretry_after_jitter: 10%", draw=lambda: SHARES // 2)

    response = shop.ask("a")

    found = headers_of(response)
    assert response.statuses[0].duration_until_reset.seconds == 3780
    assert [found[name] for name in ("Retry-After", "RateLimit-Reset", "X-RateLimit-Reset")] == ["3780"] * 3
    assert found["RateLimit"] == '"a";r=0;t=3780'


@pytest.mark.parametrize(
    "limit",
    [
        "{unit: minute, requests_per_unit: 0, algorithm: sliding_log}",
        "{unit: minute, requests_per_unit: 0, algorithm: token_bucket}",
        "{unit: minute, requests_per_unit: 0, algorithm: leaky_bucket, burst: 5}",
        "{deny: true}",
    ],
)
def test_what_is_never_allowed_has_no_time_to_come_back(limit: str) -> None:
    found = Shop(f"- {{key: a, rate_limit: {limit}}}", f"{ALL}\nretry_after_jitter: 10%").headers("a", hits=9)

    assert found["RateLimit-Remaining"] == found["X-RateLimit-Remaining"] == "0"
    assert not {"RateLimit-Reset", "X-RateLimit-Reset", "Retry-After"} & found.keys()
    assert found["RateLimit"] == '"a";r=0'


def test_a_window_of_0_tells_when_it_ends_as_envoyproxy_in_envoyproxys_header_alone() -> None:
    found = Shop("- {key: a, rate_limit: {unit: minute, requests_per_unit: 0}}", ALL).headers("a")

    assert found["RateLimit-Reset"] == "60"
    assert not {"X-RateLimit-Reset", "Retry-After"} & found.keys()
    assert found["RateLimit"] == '"a";r=0'


def test_a_soft_limit_of_0_has_a_time_to_come_back() -> None:
    shop = Shop("- {key: a, rate_limit: {unit: minute, requests_per_unit: 0, exceed: 1}}", ALL)

    assert [shop.headers("a")["X-RateLimit-Reset"] for _ in range(2)] == ["60", "60"]


def test_with_global_shadow_mode_nothing_is_said_of_a_refusal() -> None:
    shop = Shop(USER, f"{ALL}\nproblem_body: true\nrule_metadata: true", shadow_mode=True)

    response = [shop.ask("user") for _ in range(3)][-1]

    assert response.overall_code == RateLimitResponse.OK
    assert "Retry-After" not in headers_of(response)
    assert response.raw_body == b""
    assert not response.HasField("dynamic_metadata")


SOFT = "- {key: user, rate_limit: {unit: day, requests_per_unit: 2, exceed: 3}}"


def test_the_soft_part_of_a_limit_is_told() -> None:
    shop = Shop(SOFT, "headers: [ietf]")

    found = [shop.headers("user").get("X-RateLimit-Exceeded") for _ in range(6)]

    assert found == [None, None, "1", "2", "3", None]


def test_the_soft_part_is_told_with_any_headers_and_only_with_some() -> None:
    for headers in HEADERS:
        assert Shop(SOFT, f"headers: [{headers}]").headers("user", hits=5)["X-RateLimit-Exceeded"] == "3"
    assert Shop(SOFT, "retry_after: true").headers("user", hits=5) == {}


def test_of_two_soft_limits_the_one_further_above_counts() -> None:
    shop = Shop(
        """
- key: user
  rate_limits:
    - {unit: day, requests_per_unit: 4, exceed: 10}
    - {unit: week, requests_per_unit: 2, exceed: 10}
    - {unit: month, requests_per_unit: 9, exceed: 10}
""",
        "headers: [ratelimit]\nrule_metadata: true",
    )

    response = shop.ask("user", hits=5)

    assert headers_of(response)["X-RateLimit-Exceeded"] == "3"
    assert metadata(response)["soft_limit"]["rule"] == "user.per_week"


def metadata(response: RateLimitResponse) -> Any:
    return MessageToDict(response.dynamic_metadata)


def test_the_rule_that_refused_is_in_the_metadata() -> None:
    shop = Shop(USER, "rule_metadata: true")

    responses = [shop.ask("user") for _ in range(3)]

    assert [response.HasField("dynamic_metadata") for response in responses] == [False, False, True]
    assert metadata(responses[2]) == {
        "refused_by": {"domain": "shop", "rule": "user", "name": "users", "place": "1.yaml:4"}
    }


@pytest.mark.parametrize(
    ("descriptors", "rule"),
    [
        ("- {key: a, rate_limit: {deny: true}}\n- {key: b, rate_limit: {allow: true}}", "a"),
        (
            """
- {key: a, quota_mode: true, rate_limit: {deny: true}}
- {key: b, quota_mode: true, rate_limit: {deny: true}}
""",
            "b",
        ),
        ("- {key: a, rate_limit: {deny: true}}\n- {key: b, quota_mode: true, rate_limit: {deny: true}}", "a"),
        ("- {key: a, rate_limit: {deny: true}}\n- {key: b, shadow_mode: true, rate_limit: {deny: true}}", "a"),
        ("- {key: a, quota_mode: true, rate_limit: {deny: true}}\n- {key: b, rate_limit: {deny: true}}", "b"),
    ],
)
def test_of_several_the_last_that_denies_refused_and_quotas_only_by_themselves(descriptors: str, rule: str) -> None:
    response = Shop(descriptors, "rule_metadata: true").ask("a", "b")

    assert response.overall_code == RateLimitResponse.OVER_LIMIT
    assert metadata(response)["refused_by"]["rule"] == rule


def test_the_rule_is_beside_what_dynamic_metadata_has() -> None:
    shop = Shop("- {key: a, rate_limit: {deny: true}}", "rule_metadata: true")
    shop.method = ShouldRateLimit(shop.limiter, ResponseEncoder(dynamic_metadata=True))

    assert metadata(shop.ask("a")) == {
        "domain": "shop",
        "descriptors": [{"entries": ["a=x"]}],
        "hitsAddend": 1.0,
        "refused_by": {"domain": "shop", "rule": "a", "place": "1.yaml:4"},
    }


def test_the_metadata_of_a_rule_is_bounded() -> None:
    long = "n" * 10_000

    refused_by = metadata(
        Shop(f"- {{key: {long}, rate_limit: {{deny: true, name: {long}}}}}", "rule_metadata: true").ask(long)
    )

    assert {name: len(text) for name, text in refused_by["refused_by"].items() if name in ("rule", "name")} == {
        "rule": 256,
        "name": 256,
    }  # fmt: skip


def test_a_refusal_has_one_fixed_body_and_its_type() -> None:
    shop = Shop(USER, "problem_body: true")

    responses = [shop.ask("user") for _ in range(3)]

    assert [response.raw_body for response in responses] == [b"", b"", PROBLEM]
    assert [headers_of(response) for response in responses] == [{}, {}, {"Content-Type": "application/problem+json"}]
    assert json.loads(PROBLEM) == {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "status": 429,
    }


@pytest.mark.parametrize(
    ("jitter", "draw", "seconds"),
    [
        ("10%", 0, 60),
        ("10%", SHARES // 2, 63),
        ("10%", SHARES - 1, 66),
        ("100%", SHARES - 1, 120),
        ("0%", SHARES - 1, 60),
        ("5 seconds", SHARES // 2, 63),
        ("5 seconds", SHARES - 1, 65),
    ],
)
def test_jitter_lengthens_every_wait_of_a_refusal_by_the_same_share(jitter: str, draw: int, seconds: int) -> None:
    shop = Shop(
        "- {key: a, rate_limit: {unit: minute, requests_per_unit: 1}}",
        f"{ALL}\nretry_after_jitter: {jitter}",
        draw=lambda: draw,
    )

    allowed, refused = shop.ask("a"), shop.ask("a")

    assert headers_of(allowed)["RateLimit-Reset"] == "60"
    assert allowed.statuses[0].duration_until_reset.seconds == 60
    assert refused.statuses[0].duration_until_reset.seconds == seconds
    found = headers_of(refused)
    assert [found[name] for name in ("Retry-After", "RateLimit-Reset", "X-RateLimit-Reset")] == [str(seconds)] * 3
    assert found["RateLimit"] == f'"a";r=0;t={seconds}'


def test_jitter_is_random_and_never_shortens() -> None:
    shop = Shop(
        "- {key: a, rate_limit: {unit: year, requests_per_unit: 1}}", "retry_after: true\nretry_after_jitter: 10%"
    )
    shop.ask("a")
    exact = int(Shop("- {key: a, rate_limit: {unit: year, requests_per_unit: 1}}").headers("a")["RateLimit-Reset"])

    waits = [int(shop.headers("a")["Retry-After"]) for _ in range(50)]

    assert len(set(waits)) > 40
    assert exact <= min(waits)
    assert max(waits) <= exact * 1.1 + 1


def test_jitter_alone_lengthens_what_envoy_makes_its_header_of() -> None:
    shop = Shop(
        "- {key: a, rate_limit: {unit: minute, requests_per_unit: 1}}",
        "retry_after_jitter: 100%",
        draw=lambda: SHARES // 2,
    )
    shop.ask("a")

    response = shop.ask("a")

    assert response.statuses[0].duration_until_reset.seconds == 90
    assert headers_of(response) == {}


def test_the_headers_of_a_request_with_many_limits_are_bounded() -> None:
    keys = [f"k{number}" for number in range(100)]
    name = '\\"' * 200
    shop = Shop(
        "\n".join(
            f'- {{key: {key}, rate_limit: {{unit: day, requests_per_unit: {100 - number}, name: "{name}{number}"}}}}'
            for number, key in enumerate(keys)
        )
    )

    found = shop.headers(*keys)

    limits = items(found["RateLimit"])
    assert [item[1]["r"] for item in limits] == list(range(10))
    assert len(limits) == MAX_LIMITS == len(items(found["RateLimit-Policy"]))
    assert found["X-RateLimit-Limit"].count("w=86400") == MAX_LIMITS
    assert sum(map(len, found.values())) < 12_000


ANY_NAME = st.text(max_size=300) | st.text('\r\n\t\0"\\;,=\x7f\x80é€😀%: ', max_size=300)


def hit_with(
    name: str, level: str, limit: Limit, decision: Decision, *, quota: bool = False, shadow: bool = False
) -> Hit:
    rule = Rule("shop", (Level(level),), limit, open_algorithm("token_bucket"), name=name, shadow=shadow)
    made = Hit(rule, "key", 1, tally=Tally(), quota=quota)
    made.decision = decision
    return made


limits = st.builds(
    lambda requests, unit, times: Limit(requests, unit, unit.window * times),
    st.integers(0, 100) | st.integers(0, 2**50),
    st.sampled_from([*Unit]),
    st.integers(1, 100),
)
decisions = st.builds(
    Decision, st.booleans(), st.integers(0, 2**50), st.integers(0, 5), st.integers(0, 2**52), st.just(NEVER)
)


@given(
    st.lists(st.builds(hit_with, ANY_NAME, ANY_NAME, limits, decisions, quota=st.booleans(), shadow=st.booleans())),
    st.booleans(),
    st.integers(0, SHARES - 1),
)
def test_no_name_and_no_number_can_break_a_header(hits: list[Hit], allowed: bool, share: int) -> None:
    options = ResponseOptions(HEADERS, True, Jitter(percent=100), problem_body=True, rule_metadata=True)
    encoder = ResponseEncoder(HeaderNames("A", "B", "C"), draw=lambda: share)

    found = headers_of(RateLimitResponse.FromString(encoder.encode(Verdict(allowed, hits, response=options), b"")))

    for value in found.values():
        assert value.isascii()
        assert value.isprintable()
    assert {name for name in found if not name.startswith(("X-", "RateLimit"))} <= {
        "A", "B", "C", "Retry-After", "Content-Type"
    }  # fmt: skip
    told = [hit for hit in hits if not hit.rule.shadow]
    assert ("RateLimit" in found) == bool(told)
    if told:
        policies = items(found["RateLimit-Policy"])
        service_limits = items(found["RateLimit"])
        assert len(policies) == len(service_limits) == min(len(told), MAX_LIMITS)
        for (name, policy), (same_name, service_limit) in zip(policies, service_limits, strict=True):
            assert isinstance(name, str)
            assert name == same_name
            assert len(name) <= MAX_NAME_LENGTH
            assert policy["q"] >= 0
            assert policy["w"] >= 1
            assert service_limit["r"] >= 0
            assert service_limit.get("t", 0) >= 0
        if len(told) <= MAX_LIMITS:
            assert [policy[1] for policy in policies] == [
                {"q": min(hit.limit.requests, 999_999_999_999_999), "w": hit.limit.window // SECOND} for hit in told
            ]
            for (name, _), hit in zip(policies, told, strict=True):
                plain = hit.rule.name or hit.rule.levels[0].name or "override"
                if plain.isascii() and plain.isprintable() and len(plain) <= MAX_NAME_LENGTH:
                    assert name == plain


@given(st.text(max_size=300), st.text(max_size=300))
def test_nothing_of_a_request_is_in_any_header(key: str, value: str) -> None:
    shop = Shop(
        '- {key: "*", value: "*", rate_limit: {unit: minute, requests_per_unit: 1}}', f"{ALL}\nrule_metadata: true"
    )

    def told(key: str, value: str) -> list[tuple[Headers, Any]]:
        request = RateLimitRequest(domain="shop")
        request.descriptors.add().entries.add(key=key, value=value)
        replies: list[Any] = []
        for _ in range(2):
            shop.method.call(request.SerializeToString(), replies.append)
        responses = map(RateLimitResponse.FromString, replies)
        return [(headers_of(response), metadata(response)) for response in responses]

    assert told(f"k{key}", f"{value}1") == told("plain", "plain")


@pytest.mark.parametrize(
    ("requests", "window", "charges", "expected"),
    [
        (1, MINUTE, 1, 60 * SECOND),
        (60, MINUTE, 1, SECOND),
        (60, MINUTE, 60, SECOND),
        (7, MINUTE, 1, 8_571_429),
        (3, MINUTE, 2, 20 * SECOND),
    ],
)
def test_a_bucket_tells_when_its_next_token_comes(requests: int, window: int, charges: int, expected: int) -> None:
    algorithm = open_algorithm("token_bucket")
    limit = Limit(requests, Unit.MINUTE, window)
    _, decision = algorithm.hit(None, limit, charges, 10**15)

    assert algorithm.room_after(limit, decision.reset_after) in range(expected, expected + 2)


@given(
    st.integers(1, 10_000),
    st.integers(1, 500),
    st.integers(0, 10**9),
    st.sampled_from(["token_bucket", "leaky_bucket"]),
)
def test_at_the_time_that_a_bucket_tells_it_has_one_more_and_not_before(
    requests: int, cost: int, later: int, name: str
) -> None:
    algorithm = open_algorithm(name)
    limit = Limit(requests, Unit.HOUR, Unit.HOUR.window, burst=500)
    now = 10**15
    state, _ = algorithm.hit(None, limit, cost, now)
    now += later
    _, before = algorithm.hit(state, limit, 0, now)
    wait: int = algorithm.room_after(limit, before.reset_after)

    def left(moment: int) -> int:
        return algorithm.hit(state, limit, 0, moment)[1].remaining

    if before.reset_after:
        assert left(now + wait) >= before.remaining + 1
        assert left(now + wait - 3) <= before.remaining or wait <= 3
