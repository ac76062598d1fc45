"""What a request through a real Envoy gets: every kind of rule, every way of asking, every part of the answer."""

import json
import re

import pytest

from tests.envoy.proxy import Envoy
from tests.processes import Service


def test_requests_above_a_limit_are_refused_with_429(envoy: Envoy) -> None:
    """And one user's requests are not another's."""
    assert envoy.statuses(5, "/user", x_user="ada") == [200, 200, 200, 429, 429]
    assert envoy.statuses(1, "/user", x_user="bob") == [200]


def test_the_longest_header_that_envoy_takes_is_counted_as_any_other(envoy: Envoy) -> None:
    """60 KiB for all headers together, by default; and each value for itself, to its last character."""
    longest = "=" * 59_000

    assert envoy.statuses(4, "/user", x_user=f"{longest}a") == [200, 200, 200, 429]
    assert envoy.statuses(1, "/user", x_user=f"{longest}b") == [200]


def test_a_refusal_says_that_it_is_one(envoy: Envoy) -> None:
    """Envoy's header for it, and nothing of what stands behind."""
    passed = envoy.get("/user", x_user="eve")
    refused = envoy.get("/closed")

    assert (passed.status, passed.body) == (200, "echo")
    assert "x-envoy-ratelimited" not in passed.headers
    assert (refused.status, refused.body) == (429, "")
    assert refused.headers["x-envoy-ratelimited"] == "true"


def test_what_is_denied_always_has_a_limit_of_0_and_no_time_to_come_back(envoy: Envoy) -> None:
    """Beside a limit that has room; in the service's headers and in those that Envoy makes itself."""
    refused = envoy.get("/denied", x_user="denied")

    assert refused.status == 429
    assert "retry-after" not in refused.headers
    assert (refused.headers["ratelimit-limit"], refused.headers["ratelimit-remaining"]) == ("0", "0")
    assert (refused.headers["x-ratelimit-limit"], refused.headers["x-ratelimit-remaining"]) == ("0, 3;w=31536000", "0")


def test_a_blocked_client_is_told_when_its_block_ends(envoy: Envoy) -> None:
    """Two years, though its window ends with this one; and nobody else is blocked."""
    replies = [envoy.get("/login", x_user="blocked") for _ in range(4)]

    assert [reply.status for reply in replies] == [200, 200, 429, 429]
    assert all(0 <= 63_072_000 - int(reply.headers["x-ratelimit-reset"]) < 60 for reply in replies[2:])
    assert all(0 <= 63_072_000 - int(reply.headers["ratelimit-reset"]) < 60 for reply in replies[2:])
    assert [reply.headers["x-ratelimit-remaining"] for reply in replies] == ["1", "0", "0", "0"]
    assert envoy.statuses(1, "/login", x_user="other") == [200]


def test_the_service_s_headers_are_on_the_response(envoy: Envoy) -> None:
    """Passed or refused; the reset is at the end of the year."""
    replies = [envoy.get("/user", x_user="header") for _ in range(4)]

    assert [reply.headers["ratelimit-limit"] for reply in replies] == ["3"] * 4
    assert [reply.headers["ratelimit-remaining"] for reply in replies] == ["2", "1", "0", "0"]
    assert all(0 < int(reply.headers["ratelimit-reset"]) <= 31_536_000 for reply in replies)


def test_envoy_makes_its_own_headers_of_the_answer(envoy: Envoy) -> None:
    """DRAFT_VERSION_03 has the window of each limit, which Envoy takes from the unit."""
    replies = [envoy.get("/user", x_user="draft") for _ in range(4)]

    assert [reply.headers["x-ratelimit-limit"] for reply in replies] == ["3, 3;w=31536000"] * 4
    assert [reply.headers["x-ratelimit-remaining"] for reply in replies] == ["2", "1", "0", "0"]
    assert all(0 < int(reply.headers["x-ratelimit-reset"]) <= 31_536_000 for reply in replies)


def test_the_tightest_of_several_limits_is_in_the_headers(envoy: Envoy) -> None:
    """A user has 3 a year, and 1 at the checkout."""
    headers = envoy.get("/both", x_user="tight", x_page="checkout").headers

    assert (headers["ratelimit-limit"], headers["ratelimit-remaining"]) == ("1", "0")
    assert headers["x-ratelimit-limit"] == "1, 3;w=31536000, 1;w=31536000"


def test_a_shadow_rule_never_refuses(envoy: Envoy, service: Service) -> None:
    """It counts what it would have refused."""
    assert envoy.statuses(4, "/trial", x_user="ada") == [200] * 4
    assert envoy.get("/trial", x_user="ada").headers["ratelimit-remaining"] == "0"
    assert metric(service, "shadow_mode", key1="trial") == 4


def test_a_nested_rule_counts_apart_from_the_one_above(envoy: Envoy) -> None:
    """(user) and (user, page) are two counters; a page without a rule is not limited."""
    assert envoy.statuses(2, "/page", x_user="nest", x_page="checkout") == [200, 429]
    assert envoy.statuses(5, "/page", x_user="nest", x_page="blog") == [200] * 5
    assert envoy.statuses(5, "/page", x_user="nest", x_page="other") == [200] * 5
    assert envoy.statuses(4, "/user", x_user="nest") == [200, 200, 200, 429]


def test_one_refused_descriptor_refuses_the_request(envoy: Envoy) -> None:
    """The other one has been charged all the same."""
    assert envoy.statuses(2, "/both", x_user="any", x_page="checkout") == [200, 429]
    assert envoy.statuses(2, "/user", x_user="any") == [200, 429]


def test_a_wildcard_counts_each_value_or_all_together(envoy: Envoy) -> None:
    """share_threshold makes one counter of them."""
    assert envoy.statuses(2, "/file", x_file="each/a") == [200, 429]
    assert envoy.statuses(1, "/file", x_file="each/b") == [200]
    assert envoy.statuses(1, "/file", x_file="all/a.pdf") == [200]
    assert envoy.statuses(1, "/file", x_file="all/b.pdf") == [429]
    assert envoy.statuses(2, "/file", x_file="all/a.txt") == [200, 200]


def test_a_request_costs_what_it_says(envoy: Envoy) -> None:
    """Of 10 tokens: 4, 5, then 2 are too many; what was refused has been counted."""
    costs = ("4", "5", "2")

    assert [envoy.get("/tokens", x_user="cost", x_tokens=cost).status for cost in costs] == [200, 200, 429]
    assert envoy.get("/tokens", x_user="cost", x_tokens="1").status == 429


def test_a_route_can_say_what_its_requests_cost(envoy: Envoy) -> None:
    """Three each, of ten."""
    assert envoy.statuses(4, "/three", x_user="route") == [200, 200, 200, 429]


def test_a_cost_of_nothing_only_looks(envoy: Envoy) -> None:
    """As often as one likes; it is refused once the limit has been crossed."""
    assert envoy.statuses(20, "/look", x_user="look") == [200] * 20
    assert envoy.get("/tokens", x_user="look", x_tokens="10").status == 200
    assert envoy.get("/look", x_user="look").status == 200
    assert envoy.get("/tokens", x_user="look", x_tokens="1").status == 429
    assert envoy.get("/look", x_user="look").status == 429


def test_a_limit_that_envoy_brings_along_wins_over_the_rules(envoy: Envoy) -> None:
    """Two a year by the route's metadata; a route without has the rules' one a year."""
    replies = [envoy.get("/acme", x_user="override") for _ in range(3)]

    assert [reply.status for reply in replies] == [200, 200, 429]
    assert [reply.headers["ratelimit-limit"] for reply in replies] == ["2", "2", "2"]
    assert envoy.statuses(2, "/tenant", x_user="rules") == [200, 429]


def test_the_unlimited_are_not_limited(envoy: Envoy) -> None:
    """Nor do they get headers of a limit."""
    replies = [envoy.get("/vip", x_user="queen") for _ in range(20)]

    assert [reply.status for reply in replies] == [200] * 20
    assert "ratelimit-limit" not in replies[0].headers


@pytest.mark.parametrize("path", ["/unknown-key", "/unknown-domain"])
def test_what_no_rule_is_about_passes(envoy: Envoy, path: str) -> None:
    """An entry without a rule, and a domain without any."""
    assert envoy.statuses(10, path, x_user="ada") == [200] * 10


def test_a_limit_can_replace_another_in_a_request(envoy: Envoy) -> None:
    """A member is not held to the limit of guests, and does not use it up."""
    assert envoy.statuses(4, "/member", x_user="carl") == [200, 200, 200, 429]
    assert envoy.statuses(2, "/guest", x_user="carl") == [200, 429]


def test_a_request_is_refused_when_all_its_quotas_are_used_up(envoy: Envoy) -> None:
    """One and two a year: the third is refused."""
    assert envoy.statuses(3, "/quota", x_user="quota") == [200, 200, 429]


def test_filters_behind_see_which_quotas_are_left(envoy: Envoy) -> None:
    """Dynamic metadata: what was asked, and what the rules say, merged, of those not used up."""
    both = json.loads(envoy.get("/quota", x_user="seen").headers["x-metadata"])
    one = json.loads(envoy.get("/quota", x_user="seen").headers["x-metadata"])

    assert both == {
        "domain": "shop",
        "descriptors": [{"entries": ["small=seen"]}, {"entries": ["large=seen"]}],
        "metadata": {"bucket": "small", "colour": {"light": "grey", "dark": "black"}},
    }
    assert one["metadata"] == {"bucket": "large", "colour": {"dark": "black"}}


def test_envoy_had_no_error_from_the_service(envoy: Envoy) -> None:
    """Every one of these answers was the service's own."""
    before = envoy.stat("cluster.echo.ratelimit.ok")

    assert envoy.statuses(2, "/vip", x_user="count") == [200, 200]
    assert envoy.stat("cluster.echo.ratelimit.ok") == before + 2
    assert envoy.stat("cluster.echo.ratelimit.error") == 0


def metric(service: Service, stat: str, **labels: str) -> float:
    """What has been counted for the rule with these labels."""
    told = ",".join(f'{name}="{value}"' for name, value in {"domain": "shop", **labels}.items())
    found = re.search(
        rf"^ratelimit_service_rate_limit_{stat}\{{{re.escape(told)}\}} (\S+)$", service.metrics(), re.MULTILINE
    )
    return float(found[1]) if found else 0
