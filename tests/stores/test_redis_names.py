"""What counters are called in Redis; with `KEY_FORMAT=envoyproxy` as envoyproxy/ratelimit calls them."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.algorithms.kinds import Block
from ratelimit_service.limiter.limiter import Limiter
from ratelimit_service.model import Descriptor, Limit, Request, Unit
from ratelimit_service.rules.rule import ALONE, REQUEST, Level, Rule, counter_key
from ratelimit_service.stores.hit import Hit
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.stores.redis.envoyproxy import EnvoyproxyScript, counts_as_envoyproxy
from ratelimit_service.stores.redis.keys import cluster_key, cluster_second, first_counter, plain_second, slot_of
from ratelimit_service.stores.redis.target import is_per_second
from ratelimit_service.system.calendar import Calendar
from ratelimit_service.system.clock import DAY, MINUTE
from ratelimit_service.telemetry.tally import Tally
from tests.books import book
from tests.clocks import Clock
from tests.parts import parts_of
from tests.redis import Redis, start_redis
from tests.stores.charging import Charge, charge_all, descriptor
from tests.stores.redis_stores import charge, hit_of, opened, rule

run: Callable[[Coroutine[Any, Any, None]], None] = uvloop.run


def envoyproxy_hit(domain: str, unit: Unit, *entries: tuple[str, str], shared: str | None = None) -> Hit:
    """A hit of a rule as envoyproxy has it."""
    levels = tuple(Level(f"{key}_{shared or value}", shared) for key, value in entries)
    of = Rule(domain, levels, Limit(10, unit, unit.window), rule().algorithm)
    return Hit(of, counter_key(of, entries), 1, tally=Tally(), quota=False)


@pytest.mark.parametrize(
    ("hit", "seconds", "name"),
    [
        (envoyproxy_hit("domain", Unit.SECOND, ("key", "value")), 1234, "domain_key_value_1234"),
        (
            envoyproxy_hit("domain", Unit.MINUTE, ("key2", "value2"), ("subkey2", "subvalue2")),
            1234,
            "domain_key2_value2_subkey2_subvalue2_1200",
        ),
        (envoyproxy_hit("domain", Unit.HOUR, ("key3", "value3")), 1_000_000, "domain_key3_value3_997200"),
        (envoyproxy_hit("domain", Unit.DAY, ("key3", "value3")), 1_000_000, "domain_key3_value3_950400"),
        (envoyproxy_hit("domain", Unit.SECOND, ("key", "")), 1234, "domain_key__1234"),
        (envoyproxy_hit("a|b", Unit.SECOND, ("k=", "v%~|")), 1234, "a|b_k=_v%~|_1234"),
        (envoyproxy_hit("domain", Unit.SECOND, ("key", "value1"), shared="value*"), 1234, "domain_key_value*_1234"),
    ],
)
def test_names_are_those_that_envoyproxys_own_tests_pin(hit: Hit, seconds: int, name: str) -> None:
    script = EnvoyproxyScript("", 0, Clock(seconds * 1_000_000))
    prefixed = EnvoyproxyScript("prefix:", 0, Clock(seconds * 1_000_000))

    assert script.key(hit) == name
    assert prefixed.key(hit) == f"prefix:{name}"


def test_a_counter_that_is_named_keeps_its_name_and_is_decided_in_its_window() -> None:
    clock = Clock(1_199_999_999)
    script = EnvoyproxyScript("", 0, clock)
    hit = envoyproxy_hit("shop", Unit.MINUTE, ("user", "ada"))
    name = script.key(hit)
    clock.advance(2)
    keys, arguments, runs = script.encode(parts_of([hit], names=[name]))
    script.decode([b"1199999999", 3], runs)

    assert keys == ["shop_user_ada_1140"]
    assert arguments[0] == 1_199_999_999
    assert (hit.decision.remaining, hit.decision.reset_after) == (6, 1)


def test_only_aligned_fixed_windows_are_counted_as_envoyproxy_does() -> None:
    first = Rule("shop", (), Limit(1, Unit.MINUTE, Unit.MINUTE.window, first_request=True), rule().algorithm)

    by_calendar = Rule("shop", (), Limit(1, Unit.DAY, DAY, calendar=Calendar("day")), rule().algorithm)
    double = Rule("shop", (), Limit(1, Unit.MINUTE, 2 * Unit.MINUTE.window), rule().algorithm)

    assert counts_as_envoyproxy(rule())
    assert not counts_as_envoyproxy(double)
    assert not counts_as_envoyproxy(rule(algorithm="token_bucket"))
    assert not counts_as_envoyproxy(rule(together=1))
    assert not counts_as_envoyproxy(first)
    assert not counts_as_envoyproxy(by_calendar)
    assert not counts_as_envoyproxy(
        Rule("shop", (), Limit(1, Unit.MINUTE, MINUTE, kind=Block(MINUTE)), rule().algorithm)
    )


@pytest.mark.parametrize("prefix", ["", "limits:", "{limits}:"])
@pytest.mark.parametrize("together", [ALONE, REQUEST])
@given(st.text(max_size=50))
def test_a_block_is_in_the_slot_of_its_counter_and_tells_its_name(prefix: str, together: int, value: str) -> None:
    of = Rule("shop", (Level("user"),), Limit(1, Unit.MINUTE, MINUTE), rule().algorithm, together=together)
    counter = cluster_key(prefix)(Hit(of, counter_key(of, (("user", value),)), 1, tally=Tally(), quota=False))

    block = cluster_second(counter, "|block")

    assert slot_of(block) == slot_of(counter)
    assert block.startswith(f"{counter}|block")
    assert first_counter(block.encode()) == first_counter(plain_second(counter, "|block").encode()) == counter.encode()
    assert first_counter(counter.encode()) == counter.encode()


def test_no_two_limits_of_a_descriptor_share_a_counter_of_envoyproxy() -> None:
    """In its first minute an hour starts when the minute does, and that is all that envoyproxy's names tell."""
    limits = book("""
        domain: shop
        descriptors:
          - key: user
            charge: each
            rate_limits:
              - {unit: minute, requests_per_unit: 10}
              - {unit: hour, requests_per_unit: 100}
        """)

    assert [counts_as_envoyproxy(rule) for rule in limits.rules] == [False, False]


@pytest.mark.parametrize("of_file", ["each", "together"])
@pytest.mark.parametrize(
    "limits",
    [
        "rate_limit: {unit: second, requests_per_unit: 9}",
        "charge: each, rate_limit: {unit: second, requests_per_unit: 9}",
        "charge: together, rate_limit: {unit: second, requests_per_unit: 9}",
        "rate_limits: [{unit: second, requests_per_unit: 9}, {unit: day, requests_per_unit: 9}]",
        "charge: each, rate_limits: [{unit: second, requests_per_unit: 9}]",
    ],
)
def test_a_limit_sent_with_a_request_has_the_name_and_the_place_of_the_rules_counter(of_file: str, limits: str) -> None:
    limiter = Limiter(MemoryStore(10, Clock()))
    limiter.book = book(f"domain: shop\ncharge: {of_file}\ndescriptors: [{{key: user, {limits}}}]")
    entries = (("user", "ada"),)
    sent = Limit(3, Unit.SECOND, Unit.SECOND.window)

    of_rule = limiter.plan(Request("shop", [Descriptor(entries)])).charged[0]
    [of_sent] = limiter.plan(Request("shop", [Descriptor(entries, override=sent)])).charged

    assert cluster_key("")(of_sent) == cluster_key("")(of_rule)
    assert is_per_second(of_sent.rule) == is_per_second(of_rule.rule)
    assert counts_as_envoyproxy(of_sent.rule) == counts_as_envoyproxy(of_rule.rule)


def test_a_counter_that_envoyproxy_has_begun_goes_on_and_stays_readable_for_it(redis: Redis) -> None:
    async def story() -> None:
        async with opened(f"127.0.0.1:{redis.port}", KEY_FORMAT="envoyproxy", CACHE_KEY_PREFIX="up:") as store:
            hit = envoyproxy_hit("shop", Unit.YEAR, ("user", "ada"))
            name = f"up:shop_user_ada_{int(time.time()) // 31_536_000 * 31_536_000}"
            # As envoyproxy does: INCRBY, then EXPIRE.
            redis.cli("INCRBY", name, "7")
            redis.cli("EXPIRE", name, "31536000")

            answers = [await charge(store, Hit(hit.rule, hit.key, 1, tally=Tally(), quota=False)) for _ in range(5)]

            assert [answer.hits[0].decision.allowed for answer in answers] == [True, True, True, False, False]
            assert [answer.hits[0].decision.remaining for answer in answers] == [2, 1, 0, 0, 0]
            assert redis.cli("GET", name) == "12"
            assert 31_536_000 <= int(redis.cli("TTL", name)) <= 31_536_300

    run(story())


def test_a_refund_under_envoyproxys_name_never_goes_below_an_untouched_counter(redis: Redis) -> None:
    async def story() -> None:
        async with opened(f"127.0.0.1:{redis.port}", KEY_FORMAT="envoyproxy", CACHE_KEY_PREFIX="re:") as store:
            hit = envoyproxy_hit("shop", Unit.YEAR, ("user", "ada"))

            def of(cost: int) -> Hit:
                return Hit(hit.rule, hit.key, cost, tally=Tally(), quota=False)

            answer = await charge(store, of(3), of(-1), of(0), of(-5), of(0))

            assert [each.decision.remaining for each in answer.hits] == [7, 8, 8, 10, 10]
            assert redis.cli("KEYS", "re:shop*") == ""

    run(story())


@pytest.mark.parametrize("value", ["x", "1.5", "9" * 30])
def test_what_is_no_count_under_envoyproxys_name_is_written_over_and_harms_no_other(redis: Redis, value: str) -> None:
    async def story() -> None:
        async with opened(f"127.0.0.1:{redis.port}", KEY_FORMAT="envoyproxy", CACHE_KEY_PREFIX="odd:") as store:
            odd, other = (
                envoyproxy_hit("shop", Unit.YEAR, ("user", name)) for name in (f"odd{value}", f"other{value}")
            )
            name = f"odd:shop_user_odd{value}_{int(time.time()) // 31_536_000 * 31_536_000}"
            redis.cli("SET", name, value)
            answers = await asyncio.gather(charge(store, odd), charge(store, other))

            assert [answer.hits[0].decision.remaining for answer in answers] == [9, 9]
            assert redis.cli("GET", name) == "1"

    run(story())


@pytest.mark.parametrize("count", [10**15 - 1, 2**52, 10**18 - 1, 2**63 - 1])
def test_no_flood_under_envoyproxys_name_begins_a_counter_anew(redis: Redis, count: int) -> None:
    async def story() -> None:
        async with opened(f"127.0.0.1:{redis.port}", KEY_FORMAT="envoyproxy", CACHE_KEY_PREFIX="flood:") as store:
            hit = envoyproxy_hit("shop", Unit.YEAR, ("user", str(count)))
            name = f"flood:shop_user_{count}_{int(time.time()) // 31_536_000 * 31_536_000}"
            redis.cli("SET", name, str(count))
            answers = [
                await charge(store, Hit(hit.rule, hit.key, cost, tally=Tally(), quota=False))
                for cost in (2**50, 1, -1, 1)
            ]

            assert [answer.hits[0].decision.allowed for answer in answers] == [False, False, True, False]
            assert int(redis.cli("GET", name)) >= count - 1
            assert int(redis.cli("TTL", name)) > 0

    run(story())


def test_other_algorithms_keep_our_names_and_a_request_may_have_both(redis: Redis) -> None:
    async def story() -> None:
        async with opened(f"127.0.0.1:{redis.port}", KEY_FORMAT="envoyproxy", CACHE_KEY_PREFIX="both:") as store:
            bucket = rule(algorithm="token_bucket")
            answer = await charge(store, envoyproxy_hit("shop", Unit.YEAR, ("user", "eve")), hit_of(bucket))

            assert answer.allowed

    run(story())
    names = sorted(redis.cli("KEYS", "both:*shop*").split("\n"))
    assert [name.partition("_")[0] for name in names] == ["both:rl2|shop|user=ada|token", "both:shop"]


def test_names_begin_with_the_prefix_and_a_version(redis: Redis) -> None:
    async def story() -> None:
        async with opened(f"127.0.0.1:{redis.port}", CACHE_KEY_PREFIX="mine:") as store:
            await charge(store, hit_of(rule()))

    run(story())
    assert "mine:rl2|shop|user=ada|fixed_window/31536000000000" in redis.cli("KEYS", "mine:*").split("\n")


def test_every_counter_has_an_expiry(redis: Redis) -> None:
    async def story() -> None:
        async with opened(f"127.0.0.1:{redis.port}", CACHE_KEY_PREFIX="ttl:") as store:
            for algorithm in ("fixed_window", "sliding_window", "sub_windows", "sliding_log", "token_bucket"):
                for cost in (1, 2, -1, 5000):
                    await charge(store, hit_of(rule(algorithm=algorithm), cost=cost))

    run(story())
    names = redis.cli("KEYS", "ttl:*").split("\n")
    assert len([name for name in names if "|shop|" in name]) == 5
    assert all(int(redis.cli("PTTL", name)) > 0 for name in names)


def test_keys_of_fixed_windows_outlive_them_by_chance_and_others_do_not(redis: Redis) -> None:
    async def story() -> None:
        async with opened(
            f"127.0.0.1:{redis.port}", CACHE_KEY_PREFIX="jitter:", EXPIRATION_JITTER_MAX_SECONDS="1000000000"
        ) as store:
            for algorithm in ("fixed_window", "sub_windows"):
                for key in "abcdefgh":
                    await charge(store, hit_of(rule(algorithm=algorithm), key))

    run(story())
    names = redis.cli("KEYS", "jitter:rl2|shop*").split("\n")
    longest = {
        algorithm: max(int(redis.cli("TTL", name)) for name in names if algorithm in name)
        for algorithm in ("fixed_window", "sub_windows")
    }
    # The jitter is 30 years, the window one: of eight keys, all draw less than one once in a trillion runs.
    assert longest["fixed_window"] > 32_000_000
    assert longest["sub_windows"] < 70_000_000


def test_a_unix_socket_and_a_database_are_used(redis: Redis) -> None:
    async def story() -> None:
        async with opened(redis.socket, CACHE_KEY_PREFIX="unix:") as store:
            assert (await charge(store, hit_of(rule()))).allowed
        async with opened(f"redis://127.0.0.1:{redis.port}/3", CACHE_KEY_PREFIX="three:") as store:
            assert (await charge(store, hit_of(rule()))).allowed

    run(story())
    assert "unix:" in redis.cli("KEYS", "unix:*")
    assert "three:" in redis.cli("-n", "3", "KEYS", "*")


def test_rules_of_one_second_may_have_a_redis_of_their_own(redis: Redis, tmp_path: Path) -> None:
    # Its state outlives its second: a fixed window's may have expired before it is looked for.
    limit = Limit(1, Unit.SECOND, Unit.SECOND.window, burst=1000)
    second = Rule("shop", (), limit, rule(algorithm="token_bucket").algorithm)
    with start_redis(tmp_path) as fast:

        async def story() -> None:
            async with opened(
                f"127.0.0.1:{redis.port}",
                CACHE_KEY_PREFIX="per:",
                REDIS_PERSECOND="true",
                REDIS_PERSECOND_URL=f"127.0.0.1:{fast.port}",
            ) as store:
                answer = await charge(store, hit_of(rule()), hit_of(second, cost=1000), hit_of(rule(), "eve"))
                assert answer.allowed
                assert "user=ada|token_bucket/1000000" in fast.cli("KEYS", "per:rl2|shop*")

        run(story())
    names = redis.cli("KEYS", "per:rl2|shop*").split("\n")
    assert len(names) == 2


IN_ONE_STEP = """
    domain: shop
    descriptors:
      - key: user
        rate_limits:
          - {unit: second, requests_per_unit: 1, algorithm: sub_windows}
          - {unit: year, requests_per_unit: 1000}
"""


def test_what_is_charged_together_has_one_redis_also_where_there_is_one_for_rules_of_one_second(
    redis: Redis, tmp_path: Path
) -> None:
    crowd = Charge("shop", descriptor("user=ada"), 2)
    with start_redis(tmp_path) as fast:
        settings = {"REDIS_PERSECOND": "true", "REDIS_PERSECOND_URL": f"127.0.0.1:{fast.port}"}
        hits = asyncio.run(charge_all(book(IN_ONE_STEP), f"127.0.0.1:{redis.port}", [crowd] * 3, **settings))

    assert [hit.decision.allowed for hit in hits] == [False] * 3
    assert [year.decision.remaining for hit in hits for year in hit.beside] == [1000] * 3
