"""Limits of places, as requests meet them: who takes one, what gives it back, and what is answered and counted."""

import pytest
from google.protobuf.json_format import MessageToDict

from ratelimit_service.api.generated.envoy.service.ratelimit.v3.rls_pb2 import RateLimitResponse
from ratelimit_service.api.response import ResponseEncoder
from ratelimit_service.errors import RulesError
from ratelimit_service.limiter.limiter import Limiter
from ratelimit_service.model import Descriptor, Request
from ratelimit_service.rules.descriptor_name import descriptor_name, read_descriptor_name
from ratelimit_service.rules.rule import counter_key, rule_in_full
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.system.clock import DAY, HOUR, MINUTE, SECOND, duration_in_words
from ratelimit_service.telemetry.gauges import Gauges
from tests.books import book
from tests.shop import Shop, entries_of, summary

EXPORTS = """
    domain: shop
    headers: [ietf, x_ratelimit]
    descriptors:
      - key: path
        value: /export
        descriptors:
          - key: request_id
            rate_limit: {concurrency: 2, hold: 60s, place: request_id}
      - key: path
        value: /report
        descriptors:
          - key: request_id
            rate_limits:
              - {unit: minute, requests_per_unit: 3}
              - {concurrency: 2, hold: 60s, place: request_id}
      - key: request_id
        descriptors:
          - key: user
            rate_limit: {concurrency: 1, hold: 60s, place: request_id}
      - key: job
        rate_limit: {concurrency: 1, hold: 60s, place: job}
        shadow_mode: true
    """


def export(shop: Shop, request: str, cost: int = 1) -> tuple[bool, int] | None:
    """Is it refused, and how many places are free."""
    return summary(shop.ask(f"path=/export request_id={request}", cost=cost))[0]


def test_requests_under_way_are_limited_and_a_refund_with_the_same_id_gives_a_place_back() -> None:
    shop = Shop(EXPORTS)

    assert [export(shop, "a"), export(shop, "b"), export(shop, "c")] == [(False, 1), (False, 0), (True, 0)]
    assert export(shop, "c", -1) == (False, 0)  # Envoy gives back what was refused too
    assert export(shop, "c") == (True, 0)
    assert export(shop, "a", -1) == (False, 1)
    assert export(shop, "c") == (False, 0)


def test_a_gauge_has_the_most_places_of_one_counter_that_were_taken_lately() -> None:
    shop = Shop(EXPORTS)
    book = shop.limiter.book
    assert book is not None
    before = shop.limiter.gauges
    for request in ("a", "b", "c"):
        export(shop, request)
    shop.ask("request_id=a user=ada")
    shop.ask("path=/report request_id=a")
    export(shop, "a", -1)

    found = {rule.path[1:]: shop.limiter.gauges.get(rule.tally) for rule in book.rules}

    assert before == {}
    assert found == {
        ("path_/export", "request_id"): Gauges(places_taken=2),
        ("path_/report", "request_id", "per_minute"): None,
        ("path_/report", "request_id", "at_once"): Gauges(places_taken=1),
        ("request_id", "user"): Gauges(places_taken=1),
        ("job",): None,
    }


def test_a_retry_with_the_same_id_takes_no_second_place() -> None:
    shop = Shop(EXPORTS)

    assert [export(shop, "a"), export(shop, "a"), export(shop, "b"), export(shop, "a")] == [
        (False, 1),
        (False, 1),
        (False, 0),
        (False, 0),
    ]


def test_a_place_that_nothing_gives_back_is_free_after_hold_and_counted() -> None:
    shop = Shop(EXPORTS)
    export(shop, "a")
    export(shop, "b", 2)
    shop.clock.now += MINUTE

    assert export(shop, "c") == (False, 1)
    assert shop.counts("path_/export", "request_id") == {
        "total_hits": 4,
        "within_limit": 2,
        "near_limit": 1,
        "over_limit": 1,
        "denied_below_limit": 1,
        "places_expired": 1,
    }


def test_each_value_of_the_other_entries_has_places_of_its_own_wherever_the_id_stands() -> None:
    shop = Shop(EXPORTS)

    refused = [
        shop.ask(f"request_id={request} user={user}").allowed
        for request, user in [("a", "ada"), ("b", "bob"), ("c", "ada"), ("a", "ada")]
    ]

    assert refused == [True, True, False, True]


def test_a_window_beside_places_counts_all_ids_and_is_not_refunded_when_one_ends() -> None:
    shop = Shop(EXPORTS)
    asked = [("a", 1), ("a", -1), ("b", 1), ("c", 1), ("b", -1), ("d", 1), ("c", -1), ("d", 1)]

    got = [summary(shop.ask(f"path=/report request_id={request}", cost=cost))[0] for request, cost in asked]

    assert got == [
        (False, 1),
        (False, 2),
        (False, 1),
        (False, 0),
        (False, 1),
        (True, 0),  # by the minute, so no place is taken
        (False, 2),
        (True, 0),
    ]
    assert shop.counts("path_/report", "request_id", "at_once")["spared"] == 2
    assert "total_negative_hits" not in shop.counts("path_/report", "request_id", "per_minute")


def test_places_take_no_more_memory_than_the_store_may() -> None:
    shop = Shop(EXPORTS)
    shop.store = MemoryStore(1000, shop.clock, max_bytes=50_000)
    shop.limiter = Limiter(shop.store)
    shop.limiter.book = book(EXPORTS.replace("{concurrency: 1, ", "{concurrency: 10000, "))
    sizes = []
    for number in range(4000):
        shop.ask(f"request_id=r{number} user=u{number % 2}")
        sizes.append(shop.store.bytes)

    assert 30_000 < max(sizes) <= 50_000
    assert shop.store.evicted > 0


def test_shadow_mode_lets_pass_without_a_place() -> None:
    shop = Shop(EXPORTS)

    assert [shop.ask(f"job={job}").allowed for job in ("a", "b")] == [True, True]
    assert shop.counts("job")["shadow_mode"] == 1


def test_the_status_has_the_places_no_unit_and_what_is_free() -> None:
    shop = Shop(EXPORTS)
    plan = shop.limiter.plan(Request("shop", [Descriptor(entries_of("path=/export request_id=a"))]))

    encoded = shop.limiter.decide_now(plan, ResponseEncoder().encode, b"")
    response = RateLimitResponse.FromString(encoded or b"")

    assert MessageToDict(response.statuses[0]) == {
        "code": "OK",
        "currentLimit": {"requestsPerUnit": 2},
        "limitRemaining": 1,
        "durationUntilReset": "60s",
    }
    assert {header.key: header.value for header in response.response_headers_to_add} == {
        "RateLimit-Policy": '"path_/export.request_id";q=2;qu="concurrent-requests"',
        "RateLimit": '"path_/export.request_id";r=1;t=60',
        "X-RateLimit-Limit": "2, 2",
        "X-RateLimit-Remaining": "1",
        "X-RateLimit-Reset": "60",
    }


def test_the_ids_are_in_no_key_and_in_no_name_of_a_hot_descriptor() -> None:
    rules = book(EXPORTS)
    entries = entries_of("path=/export request_id=a")
    rule = rules.match("shop", entries)
    assert rule is not None
    key = counter_key(rule, entries)

    assert key == "shop|path=/export|request_id~request_id|places"
    assert read_descriptor_name(descriptor_name(rule, key)).entries == (("path", "/export"), ("request_id", "*"))


def test_a_reload_with_another_hold_and_fewer_places_keeps_who_holds_one() -> None:
    shop = Shop(EXPORTS)
    export(shop, "a")
    export(shop, "b")

    shop.limiter.book = book(EXPORTS.replace("{concurrency: 2, hold: 60s", "{concurrency: 1, hold: 1 hour"))

    assert [export(shop, "b"), export(shop, "a", -1), export(shop, "c")] == [(False, 0), (False, 0), (True, 0)]


ABSENT = "no descriptor above this limit has that key and no value; write the limit into a descriptor - key:"


@pytest.mark.parametrize(
    ("text", "at", "expected"),
    [
        ("key: p, rate_limit: {concurrency: 2, hold: 1s, place: id}", "id}", f'place "id": {ABSENT} id'),
        ("key: id, value: x, rate_limit: {concurrency: 2, hold: 1s, place: id}", "id}", f'place "id": {ABSENT} id'),
        (
            "key: id, rate_limit: {concurrency: 2, hold: 60s}",
            "rate_limit",
            "concurrency needs place, the key of the entry that names each request, such as place: request_id",
        ),
        (
            "key: id, rate_limit: {concurrency: 2, place: id}",
            "rate_limit",
            (
                "concurrency needs hold, the time after which a place that nothing gave back is free; "
                "write more than the longest request takes, such as hold: 60s"
            ),
        ),
        *(
            (
                f"key: id, rate_limit: {{concurrency: 2, hold: 60s, place: id, {option}: {value}}}",
                option,
                f"{option} contradicts concurrency, which counts the requests under way: remove one of them",
            )
            for option, value in [
                ("unit", "day"),
                ("requests_per_unit", "5"),
                ("algorithm", "token_bucket"),
                ("burst", "5"),
                ("exceed", "5"),
                ("block_for", "day"),
                ("count_refused", "true"),
                ("quota_unit", "requests"),
            ]
        ),
        (
            "key: id, rate_limit: {unlimited: true, concurrency: 2}",
            "concurrency",
            "concurrency contradicts unlimited: remove one of them",
        ),
        (
            "key: id, rate_limit: {unit: day, requests_per_unit: 1, hold: 1s}",
            "hold",
            "hold has no meaning without concurrency",
        ),
        (
            "key: id, rate_limit: {concurrency: 10001, hold: 60s, place: id}",
            "10001",
            "concurrency must be a whole number from 0 to 10000, not the number 10001",
        ),
        (
            "key: id, rate_limit: {concurrency: 2, hold: soon, place: id}",
            "soon",
            'hold "soon" must be a time from 100ms to 100 years, such as 60s or "5 minutes"',
        ),
        (
            "key: id, rate_limit: {concurrency: 2, hold: 99ms, place: id}",
            "99ms",
            'hold "99ms" must be a time from 100ms to 100 years, such as 60s or "5 minutes"',
        ),
        (
            "key: id, rate_limits: [{concurrency: 2, hold: 1s, place: id}, {concurrency: 3, hold: 2s, place: id}]",
            "{concurrency: 3",
            "concurrency is given twice in rate_limits, first at 1.yaml:1:54",
        ),
    ],
)
def test_a_malformed_limit_of_places_is_refused_at_its_place(text: str, at: str, expected: str) -> None:
    file = f"{{domain: shop, descriptors: [{{{text}}}]}}"

    with pytest.raises(RulesError) as caught:
        book(file)

    assert [str(problem) for problem in caught.value.problems] == [f"1.yaml:1:{file.index(at) + 1}: {expected}"]


@pytest.mark.parametrize(("written", "hold"), [("60s", MINUTE), ("500ms", SECOND // 2), ("2h", 2 * HOUR), ("day", DAY)])
def test_a_hold_is_read_in_every_form(written: str, hold: int) -> None:
    (found,) = book(
        f"{{domain: shop, descriptors: [{{key: id, rate_limit: {{concurrency: 1, hold: {written}, place: id}}}}]}}"
    ).rules

    assert found.limit is not None
    assert found.limit.window == hold
    assert rule_in_full(found) == f"1 request at once (each id holds a place for {duration_in_words(hold)} at most)"
