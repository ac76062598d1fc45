"""What becomes of requests, counted by domain: each request has one outcome, and descriptors without a rule show."""

from typing import Any

from ratelimit_service.api.ratelimit import ShouldRateLimit
from ratelimit_service.api.response import ResponseEncoder
from ratelimit_service.limiter.limiter import Limiter
from ratelimit_service.model import Descriptor, Request
from ratelimit_service.rules.bans import FOR_EVER, make_ban
from ratelimit_service.server.series import domain_numbers
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.telemetry.tally import OUTCOMES, parted
from tests.books import book
from tests.clocks import Clock
from tests.verdicts import check

RULES = """
    domain: shop
    descriptors:
      - key: user
        rate_limit: {unit: minute, requests_per_unit: 1}
        descriptors:
          - key: path
            descriptors:
              - key: verb
                rate_limit: {unit: minute, requests_per_unit: 1}
      - key: user
        value: root
      - key: watched
        shadow_mode: true
        rate_limit: {unit: minute, requests_per_unit: 1}
      - key: quota
        quota_mode: true
        rate_limit: {unit: minute, requests_per_unit: 1}
      - key: big_quota
        quota_mode: true
        rate_limit: {unit: minute, requests_per_unit: 9}
      - key: base
        rate_limit: {unit: minute, requests_per_unit: 1, name: base}
      - key: vip
        rate_limit: {unit: minute, requests_per_unit: 9, replaces: [{name: base}]}
    """


def limiter(**options: Any) -> Limiter:
    made = Limiter(MemoryStore(1000, Clock()), **options)
    made.book = book(RULES)
    return made


def ask(tested: Limiter, *entries: tuple[str, str], domain: str = "shop") -> None:
    check(tested, Request(domain, [Descriptor(entries)]))


def outcomes(tested: Limiter, domain: str = "shop") -> dict[str, int]:
    """Those that there were."""
    numbers = dict(zip(OUTCOMES, domain_numbers(tested.domains.of(domain)), strict=False))
    return {outcome: number for outcome, number in numbers.items() if number}


def shapes(tested: Limiter) -> dict[tuple[str, ...], float]:
    return {parted(name): count for name, count in tested.unmatched.seen().counts.items()}


def test_a_request_is_allowed_or_refused() -> None:
    tested = limiter()

    for _ in range(3):
        ask(tested, ("user", "ada"))

    assert outcomes(tested) == {"allowed": 1, "refused": 2}


def test_what_only_a_shadow_rule_would_refuse_is_shadow() -> None:
    tested = limiter()

    for _ in range(3):
        ask(tested, ("watched", "x"))

    assert outcomes(tested) == {"allowed": 1, "shadow": 2}


def test_what_only_the_shadow_mode_of_the_service_lets_pass_is_shadow() -> None:
    tested = limiter(shadow_mode=True)

    for _ in range(3):
        ask(tested, ("user", "ada"))

    assert outcomes(tested) == {"allowed": 1, "shadow": 2}


def test_a_request_with_a_quota_left_is_allowed() -> None:
    tested = limiter()

    for _ in range(3):
        check(tested, Request("shop", [Descriptor((("quota", "x"),)), Descriptor((("big_quota", "x"),))]))

    assert outcomes(tested) == {"allowed": 3}


def test_a_request_is_counted_once_however_many_descriptors_it_has() -> None:
    tested = limiter()

    check(tested, Request("shop", [Descriptor((("user", name),)) for name in "abcd"]))

    assert outcomes(tested) == {"allowed": 1}


def test_domains_without_rules_are_counted_together() -> None:
    tested = limiter()

    ask(tested, ("user", "ada"), domain="one")
    ask(tested, ("user", "ada"), domain="two")

    assert outcomes(tested, "other") == {"unlimited": 2}
    assert outcomes(tested) == {}
    assert shapes(tested) == {}


def test_bytes_that_are_no_request_have_failed() -> None:
    tested = limiter()

    ShouldRateLimit(tested, ResponseEncoder()).call(b"\xff", lambda _: None)

    assert outcomes(tested, "other") == {"failed": 1}


def test_outcomes_stay_when_rules_are_loaded_again() -> None:
    tested = limiter()
    ask(tested, ("user", "ada"))

    tested.book = book(RULES)

    assert outcomes(tested) == {"allowed": 1}


def test_a_request_about_which_the_rules_say_nothing_is_unlimited() -> None:
    tested = limiter()

    ask(tested, ("login", "ada"))
    check(tested, Request("shop", [Descriptor((("login", "ada"),)), Descriptor((("path", "/"),))]))
    check(tested, Request("shop", [Descriptor((("login", "ada"),)), Descriptor((("quota", "x"),))]))
    check(tested, Request("shop", [Descriptor((("login", "ada"),)), Descriptor((("user", "root"),))]))

    assert outcomes(tested) == {"unlimited": 2, "allowed": 2}


def test_a_request_that_a_ban_alone_is_about_is_not_unlimited() -> None:
    tested = limiter()
    for domain in ("shop", "elsewhere"):
        ban = make_ban(domain, [("login", "eve")], length=FOR_EVER, why="x", who="x", now=0)
        tested.bans.put(ban, quietly=True)
        ask(tested, ("login", "eve"), domain=domain)

    assert outcomes(tested) == outcomes(tested, "other") == {"refused": 1}


def test_a_descriptor_that_no_rule_fits_is_counted_by_its_keys() -> None:
    tested = limiter()

    ask(tested, ("login", "ada"))
    ask(tested, ("login", "bob"))
    ask(tested, ("login", "ada"), ("path", "/x"))

    assert tested.domains.of("shop").unmatched == 3
    assert shapes(tested) == {("shop", "login"): 2, ("shop", "login", "path"): 1}


def test_a_descriptor_that_ends_before_or_behind_a_rule_is_counted() -> None:
    tested = limiter()

    ask(tested, ("user", "ada"), ("path", "/x"))
    ask(tested, ("user", "ada"), ("path", "/x"), ("verb", "GET"), ("more", "x"))

    assert tested.domains.of("shop").unmatched == 2


def test_a_descriptor_that_the_file_exempts_is_not_counted_as_one_without_a_rule() -> None:
    tested = limiter()

    ask(tested, ("user", "root"))

    assert tested.domains.of("shop").unmatched == 0
    assert outcomes(tested) == {"allowed": 1}


def test_a_replaced_descriptor_is_not_one_without_a_rule() -> None:
    tested = limiter()

    check(tested, Request("shop", [Descriptor((("base", "x"),)), Descriptor((("vip", "x"),))]))

    assert tested.domains.of("shop").unmatched == 0


def test_made_up_keys_do_not_push_out_one_that_is_asked_about_more_often() -> None:
    tested = limiter()

    for number in range(5_000):
        ask(tested, (f"k{number}", "x"))
        if number > 4_000:
            ask(tested, ("forgotten", "x"))

    found = shapes(tested)
    assert max(found, key=found.__getitem__) == ("shop", "forgotten")
    assert len(found) <= 512
    assert tested.domains.of("shop").unmatched == 5_999


def test_long_and_many_keys_are_cut() -> None:
    tested = limiter()

    ask(tested, ("k" * 60_000, "x"))
    ask(tested, ("k" * 50_000, "x"))
    ask(tested, *((f"{number:0100}", "x") for number in range(10)))

    assert shapes(tested) == {("shop", "k" * 127 + "…"): 2, ("other",): 1}
