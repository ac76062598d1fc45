"""What a resource of xDS says, and what our own options in the metadata of a descriptor add to it."""

from typing import Any

import pytest

from ratelimit_service.errors import RulesError
from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.reading.parse import parse
from ratelimit_service.rules.rule import Rule
from ratelimit_service.rules.sources import open_document
from tests.rules.planes import config

FIVE = {"unit": "HOUR", "requests_per_unit": 5}


def book(*descriptors: dict[str, Any]) -> RuleBook:
    """The book of one resource, as a worker opens it."""
    return parse([open_document("xds", "xds", "resource shop", config("shop", *descriptors))])


def only(*descriptors: dict[str, Any]) -> Rule:
    """The only rule of one resource."""
    (rule,) = book(*descriptors).rules
    return rule


def problems(*descriptors: dict[str, Any]) -> list[str]:
    """What is wrong with the descriptors."""
    with pytest.raises(RulesError) as raised:
        book(*descriptors)
    return [str(problem) for problem in raised.value.problems]


def own(**options: Any) -> dict[str, Any]:
    """Metadata with these options of ours."""
    return {"metadata": {"ratelimit_service": options}}


def test_everything_that_the_message_has_is_read() -> None:
    limit = {"unit": "WEEK", "requests_per_unit": 4_294_967_295, "name": "all", "replaces": [{"name": "other"}]}
    flags = {"shadow_mode": True, "quota_mode": True, "detailed_metric": True, "metadata": {"plan": {"name": "gold"}}}
    rule = only({"key": "a", "value": "b", "descriptors": [{"key": "c", "rate_limit": limit, **flags}]})

    assert rule.limit is not None
    assert (rule.path, rule.limit.requests, rule.limit.window) == (("shop", "a_b", "c"), 4_294_967_295, 604_800 * 10**6)
    assert (rule.name, rule.replaces) == ("all", frozenset({"other"}))
    assert (rule.shadow, rule.quota, rule.detailed) == (True, True, True)
    assert rule.metadata == {"plan": {"name": "gold"}}
    assert str(rule.place) == "resource shop /descriptors/0/descriptors/0/rate_limit"


def test_what_envoyproxy_does_not_look_at_in_an_unlimited_rule_is_no_error() -> None:
    assert only({"key": "a", "rate_limit": {"unlimited": True, "requests_per_unit": 7}}).limit is None


def test_metadata_may_have_options_of_ours_and_others_beside_them() -> None:
    more = own(algorithm="token_bucket", burst=9, lease="off", on_store_failure="closed", charge="together")
    more["metadata"]["plan"] = "gold"
    rule = only({"key": "user", "rate_limit": FIVE, **more})

    assert rule.limit is not None
    assert (rule.algorithm.name, rule.limit.burst, rule.on_store_failure) == ("token_bucket", 9, "closed")
    assert rule.metadata == {"plan": "gold"}


def test_options_of_ours_take_the_place_of_what_the_message_must_say() -> None:
    paths = {
        rule.path[1]: (rule.limit and rule.limit.requests, rule.limit and rule.limit.window_label, rule.deny)
        for rule in book(
            {"key": "big", "rate_limit": FIVE, **own(requests_per_unit=5_000_000_000, unit="5 minutes")},
            {"key": "bill", "rate_limit": FIVE, **own(calendar={"unit": "month"})},
            {"key": "bad", "rate_limit": FIVE, **own(deny=True)},
            {"key": "alone", **own(unit="day", requests_per_unit=3)},
            {"key": "two", "rate_limit": FIVE, **own(rate_limits=[{"unit": "day", "requests_per_unit": 8}])},
        ).rules
    }

    assert paths == {
        "big": (5_000_000_000, "per_5_minutes", False),
        "bill": (5, "per_calendar_month", False),
        "bad": (None, None, True),
        "alone": (3, "per_day", False),
        "two": (8, "per_day", False),
    }


def test_options_of_the_domain_stand_in_a_descriptor_of_the_first_level() -> None:
    (domain,) = book({"key": "user", "rate_limit": FIVE, **own(domain={"headers": ["ietf"]})}).domains.values()

    assert domain.response is not None
    assert domain.response.headers == ("ietf",)


def test_wrong_options_are_errors_with_their_paths() -> None:
    at = "resource shop /descriptors/0/metadata/ratelimit_service"
    twice = {"key": "b", "rate_limit": FIVE, **own(domain={"settle": "x"})}
    below = {"key": "c", "descriptors": [{"key": "d", "rate_limit": FIVE, **own(domain={})}]}
    wrong = own(algoritm="x", key="z", values_from="/etc/passwd", exceed=1.5, domain={"settle": "y", "domain": "z"})
    found = problems({"key": "a", "rate_limit": FIVE, **wrong}, twice, below, {"key": "e", **own()})

    assert f'{at}/algoritm: unknown key "algoritm"; did you mean algorithm?' in found
    assert f"{at}/key: key stands in the descriptor itself, not in its metadata" in found
    assert f"{at}/domain/domain: domain stands in the resource itself, not in metadata" in found
    second = (
        "resource shop /descriptors/1/metadata/ratelimit_service/domain/settle: settle of the domain is given twice"
    )
    assert f"{second}, first at /descriptors/0/metadata/ratelimit_service/domain/settle" in found
    deep = "resource shop /descriptors/2/descriptors/0/metadata/ratelimit_service/domain"
    assert f"{deep}: the options of the domain belong in a descriptor of the first level" in found
    assert any(each.startswith(f"{at}/exceed: exceed must be a whole number") for each in found)
    assert problems({"key": "a", "metadata": {"ratelimit_service": 5}}) == [
        f"{at}: ratelimit_service must be a struct of options of this service"
    ]
