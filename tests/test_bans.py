"""Bans: what a banned request is answered, what it charges and counts, and how soon a change is seen."""

from typing import Any

import pytest

from ratelimit_service.api.generated.envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest, RateLimitResponse
from ratelimit_service.api.ratelimit import ShouldRateLimit
from ratelimit_service.api.response import ResponseEncoder
from ratelimit_service.errors import RpcError
from ratelimit_service.model import NEVER, Descriptor, Limit, Request, Unit
from ratelimit_service.rules.bans import FOR_EVER, Ban, make_ban
from ratelimit_service.system.clock import HOUR, MINUTE, SECOND
from tests.books import book
from tests.shop import Shop, counted, entries_of, summary
from tests.verdicts import check

RULES = """
    domain: shop
    descriptors:
      - key: user
        rate_limit: {unit: minute, requests_per_unit: 10, name: user}
      - key: ip
        rate_limit: {unit: minute, requests_per_unit: 5, name: ip}
      - key: staff
        rate_limit: {allow: true, replaces: [{name: user}, {name: ip}, {name: banned}]}
      - key: watched
        shadow_mode: true
        rate_limit: {unit: minute, requests_per_unit: 5}
      - key: quota
        quota_mode: true
        rate_limit: {unit: minute, requests_per_unit: 5}
    """

TOGETHER = """
    domain: shop
    charge: together
    descriptors:
      - key: user
        rate_limit: {unit: minute, requests_per_unit: 5}
      - key: ip
        rate_limit: {unit: minute, requests_per_unit: 5}
    """


class BanShop(Shop):
    """A limiter with its bans."""

    def __init__(self, rules: str = RULES, **options: Any) -> None:
        super().__init__(rules, 1_000_000_000 * SECOND, **options)
        self.bans = self.limiter.bans
        self.bans.clock = self.clock
        self.method = ShouldRateLimit(self.limiter, ResponseEncoder())

    def ban(self, *entries: str, domain: str = "shop", length: int = HOUR) -> Ban:
        """Make one, of entries such as `user=ada`."""
        pairs = [pair for entry in entries for pair in entries_of(entry)]
        made = make_ban(domain, pairs, length=length, why="spam", who="ada", now=self.clock())
        self.bans.put(made)
        return made

    def told(
        self, *descriptors: str, domain: str = "shop", cost: int = 1, override: Limit | None = None
    ) -> tuple[bool, list[tuple[bool, int] | None]]:
        """Whether it is allowed, and of each descriptor whether it is over and what remains."""
        verdict = self.ask(*descriptors, domain=domain, cost=cost, override=override)
        return verdict.allowed, summary(verdict)

    def call(self, *descriptors: str) -> RateLimitResponse:
        """The response to a message of Envoy's, by the cache of plans."""
        message = RateLimitRequest(domain="shop")
        for each in descriptors:
            added = message.descriptors.add()
            for key, value in entries_of(each):
                added.entries.add(key=key, value=value)
        responses: list[bytes | RpcError] = []
        self.method.call(message.SerializeToString(), responses.append)
        (response,) = responses
        assert isinstance(response, bytes)
        return RateLimitResponse.FromString(response)

    def requests(self, domain: str = "shop") -> dict[str, int]:
        """What was counted of requests for the domain, without zeros."""
        return counted(self.limiter.domains.of(domain))


def test_a_banned_descriptor_is_denied_without_a_counter() -> None:
    shop = BanShop()
    shop.ban("user=ada")

    assert shop.told("user=ada") == (False, [(True, 0)])
    assert shop.told("user=eve") == (True, [(False, 9)])
    assert shop.store.counters == 1
    assert shop.requests() == {"refused": 1, "allowed": 1, "banned": 1}


@pytest.mark.parametrize(
    "descriptor",
    ["user=ada", "staff= user=ada", "nowhere=x user=ada", "user=ada more=x", "watched=1 user=ada", "quota=1 user=ada"],
)
def test_a_ban_holds_whatever_rule_applies_or_none(descriptor: str) -> None:
    shop = BanShop()
    shop.ban("user=ada")

    assert shop.told(descriptor) == (False, [(True, 0)])


def test_a_client_that_rotates_in_its_network_is_banned_by_the_name_of_its_counter() -> None:
    shop = BanShop(RULES.replace("key: ip\n", "key: ip\n        prefix: {ipv6: 64}\n"))
    before = [shop.told(f"ip=2001:db8:1:2::{number}")[0] for number in range(6)]
    shop.ban("ip=2001:db8:1:2::/64")

    assert before == [True] * 5 + [False]
    assert [shop.told(f"ip=2001:db8:1:{network}::1") for network in (2, 3)] == [
        (False, [(True, 0)]),
        (True, [(False, 4)]),
    ]


def test_a_ban_comes_before_allow_shadow_and_quota() -> None:
    shop = BanShop()
    for entry in ("staff=", "watched=1", "quota=1"):
        shop.ban(entry)

    assert [shop.told(entry)[0] for entry in ("staff=", "watched=1", "quota=1")] == [False] * 3
    assert shop.told("quota=1", "quota=2") == (False, [(True, 0), (False, 4)])


def test_quota_mode_makes_no_quota_of_a_ban() -> None:
    shop = BanShop(quota_mode=True)
    shop.ban("user=ada")

    assert shop.told("user=ada", "user=eve") == (False, [(True, 0), (False, 9)])


def test_a_ban_comes_before_a_limit_that_the_request_brings() -> None:
    shop = BanShop()
    shop.ban("user=ada")

    assert shop.told("user=ada", override=Limit(1000, Unit.HOUR, HOUR)) == (False, [(True, 0)])


def test_no_rule_of_the_request_replaces_a_ban_and_a_banned_rule_replaces_none() -> None:
    shop = BanShop()
    shop.ban("user=ada")
    assert shop.told("user=ada", "staff=") == (False, [(True, 0), (False, 4294967295)])

    shop.ban("staff=")
    assert shop.told("user=eve", "staff=") == (False, [(False, 9), (True, 0)])


@pytest.mark.parametrize("domain", ["mail", "*"])
def test_a_ban_holds_in_a_domain_without_rules(domain: str) -> None:
    shop = BanShop()
    shop.ban("user=ada", domain=domain)

    assert shop.told("user=ada", "user=eve", domain="mail") == (False, [(True, 0), None])
    assert shop.told("user=eve", domain="mail") == (True, [None])
    assert shop.requests("mail") == {"refused": 1, "unlimited": 1, "banned": 1}


def test_where_the_rules_of_any_domain_apply_a_banned_descriptor_is_counted_with_them() -> None:
    shop = BanShop('domain: "*"\ndescriptors: [{key: user, rate_limit: {unit: minute, requests_per_unit: 10}}]')
    shop.ban("user=ada", domain="mail")

    assert shop.told("user=ada", domain="mail") == (False, [(True, 0)])
    assert shop.requests("*") == {"refused": 1, "banned": 1}
    assert shop.requests("mail") == {}


def test_a_ban_of_every_domain_holds_in_each() -> None:
    shop = BanShop()
    shop.ban("user=ada", domain="*")

    assert shop.told("user=ada") == (False, [(True, 0)])


def test_the_other_descriptors_are_charged_as_of_any_refused_request() -> None:
    shop = BanShop()
    shop.ban("user=ada")

    assert shop.told("user=ada", "ip=1") == (False, [(True, 0), (False, 4)])
    assert shop.told("ip=1") == (True, [(False, 3)])


def test_where_limits_are_charged_together_a_ban_keeps_the_others_from_being_charged() -> None:
    shop = BanShop(TOGETHER)
    shop.ban("user=ada")

    assert shop.told("user=ada", "ip=1") == (False, [(True, 0), (False, 5)])
    assert shop.told("ip=1") == (True, [(False, 4)])


def test_global_shadow_mode_lets_the_banned_pass_and_counts_them() -> None:
    shop = BanShop(shadow_mode=True)
    shop.ban("user=ada")

    assert shop.told("user=ada") == (True, [(True, 0)])
    assert shop.requests() == {"shadow": 1, "banned": 1}
    assert shop.limiter.totals.global_shadow_mode == 1


def test_a_refund_is_allowed_and_a_look_is_denied() -> None:
    shop = BanShop()
    shop.ban("user=ada")

    assert shop.told("user=ada", cost=-1)[0]
    assert not shop.told("user=ada", cost=0)[0]


def test_a_change_is_seen_by_the_next_call_also_of_requests_whose_plan_is_cached() -> None:
    shop = BanShop()
    codes = [shop.call("user=ada").overall_code for _ in range(3)]
    made = shop.ban("user=ada")
    codes.append(shop.call("user=ada").overall_code)
    shop.bans.drop(made.key, "lifted by ada")
    codes.append(shop.call("user=ada").overall_code)

    ok = RateLimitResponse.OK
    assert codes == [ok, ok, ok, RateLimitResponse.OVER_LIMIT, ok]


def test_a_ban_ends_at_its_time() -> None:
    shop = BanShop()
    shop.ban("user=ada", length=MINUTE)
    before = shop.call("user=ada").overall_code
    shop.clock.advance(MINUTE)
    shop.bans.sweep()

    assert (before, shop.call("user=ada").overall_code) == (RateLimitResponse.OVER_LIMIT, RateLimitResponse.OK)
    assert len(shop.bans) == 0


def test_the_response_tells_when_the_ban_ends_also_by_a_cached_plan() -> None:
    shop = BanShop()
    shop.ban("user=ada", length=MINUTE)
    shop.ban("user=eve", length=FOR_EVER)
    left = []
    for _ in range(3):
        left.append(shop.call("user=ada").statuses[0].duration_until_reset.seconds)
        shop.clock.advance(7 * SECOND)
        shop.bans.sweep()
    endless = shop.call("user=eve").statuses[0]

    assert left == [60, 53, 46]
    assert endless.code == RateLimitResponse.OVER_LIMIT
    assert not endless.HasField("duration_until_reset")
    assert shop.bans.denial(shop.ban("user=eve", length=FOR_EVER)).decision.retry_after == NEVER


def test_a_reload_keeps_bans_also_where_the_new_rules_have_no_such_domain() -> None:
    shop = BanShop()
    shop.ban("user=ada")
    shop.limiter.book = book("domain: mail\ndescriptors: []\n")

    assert shop.told("user=ada") == (False, [(True, 0)])


def test_a_request_that_asks_why_gets_no_reason_for_a_banned_descriptor_to_be_without_limit() -> None:
    shop = BanShop()
    shop.ban("user=ada")
    verdict = check(shop.limiter, Request("shop", [Descriptor(entries_of("no=1 user=ada"))], explain=True))

    assert verdict.unmatched == [""]
