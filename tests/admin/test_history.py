"""What happened lately, minute by minute, with bounded memory."""

import asyncio
import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.errors import RpcError
from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.reading.parse import parse
from ratelimit_service.rules.sources.yaml_text import YamlText
from ratelimit_service.server.history import MAX_DOMAINS, MAX_RULES, History
from ratelimit_service.server.per_minute import MinuteSums
from ratelimit_service.server.state import ServiceState
from ratelimit_service.system.clock import MINUTE, SECOND
from ratelimit_service.telemetry.logs import pass_events
from ratelimit_service.telemetry.tally import OUTCOMES, Tallies, Tally
from tests.admin.service import Service
from tests.clocks import Clock
from tests.processes import eventually

ALLOWED, REFUSED = 0, 1


def of_domains() -> MinuteSums[str]:
    return MinuteSums(len(OUTCOMES), MAX_DOMAINS, "other")


def _state(service: Service) -> ServiceState:
    return ServiceState(service.limiter, service.method, service.loading, service.health, service.store.metrics)


def rows(history: MinuteSums[str], domain: str = "shop") -> list[list[int]]:
    return [list(row) for row in history.rows(domain)]


def test_a_minute_has_what_the_counts_grew_by() -> None:
    history = of_domains()
    history.add(0, [("shop", (3, 1, 0, 0, 0, 0, 0))])
    history.add(0, [("shop", (5, 1, 0, 0, 0, 0, 0))])
    history.add(2, [("shop", (5, 8, 0, 0, 0, 0, 2))])

    allowed, refused, *others, failed = rows(history)

    assert allowed[-3:] == [5, 0, 0]
    assert refused[-3:] == [1, 0, 7]
    assert failed[-3:] == [0, 0, 2]
    assert sum(map(sum, others)) == 0
    assert len(allowed) == 60


def test_the_sixty_first_minute_is_forgotten() -> None:
    history = of_domains()
    history.add(0, [("shop", (1, 0, 0, 0, 0, 0, 0))])
    history.add(59, [("shop", (3, 0, 0, 0, 0, 0, 0))])
    before = rows(history)[ALLOWED]
    history.add(60, [("shop", (3, 0, 0, 0, 0, 0, 0))])
    after = rows(history)[ALLOWED]

    assert (before[0], before[-1], sum(before)) == (1, 2, 3)
    assert (after[-2:], sum(after)) == ([2, 0], 2)


def test_a_pause_of_more_than_an_hour_leaves_nothing() -> None:
    history = of_domains()
    history.add(7, [("shop", (9, 0, 0, 0, 0, 0, 0))])
    history.add(1000, [("shop", (10, 0, 0, 0, 0, 0, 0))])

    assert rows(history)[ALLOWED] == [0] * 59 + [1]


def test_domains_beyond_the_bound_are_added_up_as_other_until_one_makes_room() -> None:
    history = of_domains()
    names = [f"domain{number}" for number in range(MAX_DOMAINS + 2)]
    history.add(0, [(name, (1, 0, 0, 0, 0, 0, 0)) for name in names])
    history.add(30, [(name, (1, 0, 0, 0, 0, 0, 0)) for name in names])
    full = history.keys
    history.add(60, [(names[-1], (6, 4, 0, 0, 0, 0, 0))])

    assert full == ("other", *names[:MAX_DOMAINS])
    assert history.keys == ("other", names[-1])
    assert [rows(history, names[-1])[outcome][-1] for outcome in (ALLOWED, REFUSED)] == [5, 4]


def test_the_counts_of_a_domain_that_fell_take_nothing_away() -> None:
    history = of_domains()
    history.add(0, [("shop", (5, 0, 0, 0, 0, 0, 0))])
    history.add(0, [("shop", (2, 0, 0, 0, 0, 0, 0))])
    history.add(0, [("shop", (3, 0, 0, 0, 0, 0, 0))])

    assert rows(history)[ALLOWED][-1] == 6


def test_a_sum_of_the_largest_costs_ends_at_64_bits() -> None:
    history = of_domains()
    history.add(0, [("shop", (2**50 * 16_384, 0, 0, 0, 0))])
    history.add(0, [("shop", (2**50 * 32_768, 0, 0, 0, 0))])

    assert rows(history)[ALLOWED][-1] == 2**64 - 1


Step = tuple[int, str, tuple[int, int], bool]
"""Minutes that pass, a key, what its counts grow by, and whether they began at 0 before."""

STEPS = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 0, 1, 2, 29, 59, 60, 61]),
        st.sampled_from("abcde"),
        st.tuples(st.integers(0, 3), st.integers(0, 3)),
        st.booleans(),
    ),
    max_size=40,
)


@pytest.mark.parametrize("other", [None, "other"])
@given(steps=STEPS)
def test_sums_are_those_of_a_history_that_keeps_everything(other: str | None, steps: list[Step]) -> None:
    sums = MinuteSums(2, 3, other)
    everything: list[tuple[int, str, tuple[int, int]]] = []
    counts = dict.fromkeys("abcde", (0, 0))
    with_room: list[str] = []
    minute = 0
    for passed, key, (one, two), anew in steps:
        minute += passed
        before, counts[key] = counts[key], (one, two) if anew else (counts[key][0] + one, counts[key][1] + two)
        grown = max(0, counts[key][0] - before[0]), max(0, counts[key][1] - before[1])
        sums.add(minute, counts.items())
        with_room = [kept for kept in with_room if any(kept == name and minute - at < 60 for at, name, _ in everything)]
        if any(grown):
            if key not in with_room and len(with_room) < 3:
                with_room.append(key)
            everything.append((minute, key if key in with_room else "other", grown))

    for name in sums.keys:
        for column, row in enumerate(sums.rows(name)):
            for ago, number in enumerate(reversed(row)):
                assert number == sum(one[column] for at, kept, one in everything if (at, kept) == (minute - ago, name))
    assert set(sums.keys) == {*with_room, *([other] if other else [])}


def test_memory_is_bounded_whatever_the_domains_are_called() -> None:
    counts = [(f"{number:0900}", (number, 1, 0, 0, 0, 0, 0)) for number in range(1, 2001)]
    tracemalloc.start()
    history = of_domains()
    for minute in range(10):
        history.add(minute, [(name, (allowed + minute, 1, 0, 0, 0, 0, 0)) for name, (allowed, *_) in counts])
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert len(history.keys) == MAX_DOMAINS + 1
    assert used < 330_000 + 400 * len(counts)


def test_the_last_minute_is_the_last_one_only(service: Service) -> None:
    clock = Clock(1_000_000_000)
    history = History(_state(service), clock)
    latency = service.method.latency
    latency.observe_all(40_000, 100)
    service.method.calls += 100
    for _ in range(13):
        clock.advance(5 * SECOND)
        history.look()
    service.method.calls += 7
    latency.observe_all(2_000_000, 7)
    service.limiter.domains.of("shop").policy_refused += 3
    clock.advance(SECOND)

    minute = history.last_minute()

    assert (minute.calls, minute.latency.calls, minute.seconds) == (7, 7, 56)
    assert dict(zip(OUTCOMES, minute.outcomes, strict=True)) == dict.fromkeys(OUTCOMES, 0) | {"policy_refused": 3}
    assert [bucket.calls for bucket in minute.latency.buckets()[:6]] == [0, 0, 0, 0, 0, 7]


def test_each_minute_has_its_latency(service: Service) -> None:
    clock = Clock()
    history = History(_state(service), clock)
    for nanoseconds, calls in ((40_000, 99), (0, 0), (8_000_000, 2)):
        service.method.latency.observe_all(nanoseconds, calls)
        history.look()
        clock.advance(MINUTE)

    assert history.latency(0.99, 60)[-4:] == [0, 0.00005, 0, 0.01]
    assert history.latency(0.5, 2) == [0, 0.01]
    clock.advance(60 * MINUTE)
    history.look()
    assert history.latency(0.99, 3) == [0, 0, 0]


def test_a_rule_that_lets_looks_pass_and_drops_charges_is_told_of_once(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    history = History(_state(service), clock)
    end = pass_events(service.events.record)
    said = []
    assert service.limiter.book is not None
    first, second = [rule.tally for rule in service.limiter.book.rules][:2]
    first.looks, first.charges_dropped = 9, 700  # a probe may have looked
    for tallies in ((), (first,), (first,), (second,), ()):
        for tally in tallies:
            tally.looks, tally.charges_dropped = 1000, 700
        list(history.rule_blocks())
        said.append(len(caplog.records))
        clock.advance(MINUTE // 2)
    end()

    assert said == [0, 1, 1, 2, 2]
    assert caplog.messages[0] == (
        f"shop.user, {service.rules}/rules.yaml:4:5: 1,000 looks have passed, and a cost of 700 was refused and not "
        "charged: costs known at the end need settle, or count_refused: true"
    )
    [event, _] = json.loads("".join(service.events.text()))["events"]
    assert (event["kind"], len(event["details"])) == ("rule", 1)


def test_a_machine_that_slept_has_no_old_minute(service: Service) -> None:
    clock = Clock()
    history = History(_state(service), clock)
    clock.advance(3600 * SECOND)
    service.method.calls += 5

    assert history.last_minute().seconds == 3600
    history.look()
    clock.advance(SECOND)
    assert (history.last_minute().seconds, history.last_minute().calls) == (1, 0)


def test_the_status_has_the_history_of_all_that_metrics_count(service: Service) -> None:
    for _ in range(5):
        service.post({"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "ada"}]}]})
    service.post({"domain": "none", "descriptors": [{"entries": [{"key": "user", "value": "ada"}]}]})

    history = json.loads(service.get("/status").text)["history"]

    assert history["domains"]["shop"] == {"allowed": [0] * 59 + [3], "refused": [0] * 59 + [2]}
    assert history["domains"]["other"] == {"unlimited": [0] * 59 + [1]}
    assert 0 <= history["running_seconds"] < 60


def user(name: str) -> dict[str, object]:
    return {"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": name}]}]}


def search(times: int = 1) -> dict[str, object]:
    entries = [{"key": "plan", "value": "free"}, {"key": "path", "value": "/search"}]
    return {"domain": "shop", "descriptors": [{"entries": entries, "hitsAddend": str(times)}]}


def minutes(service: Service, query: str) -> dict[str, list[int]]:
    reply = service.get(f"/status/history?{query}")
    assert reply.status == 200, reply.text
    found = json.loads(reply.text)
    assert found["minutes"] == 60
    assert 0 <= found["running_seconds"] < 60
    columns: dict[str, list[int]] = found["columns"]
    return columns


def test_the_last_hour_of_a_rule_is_the_cost_of_its_hits_by_what_came_of_it(service: Service) -> None:
    for _ in range(5):
        service.post(user("ada"))
    service.post(search())
    service.post(search(3))
    eventually(lambda: "shadow" in minutes(service, "domain=shop&rule=plan_free.path_/search"), "it was looked at")

    assert minutes(service, "domain=shop&rule=user") == {"allowed": [0] * 59 + [3], "refused": [0] * 59 + [2]}
    assert minutes(service, "domain=shop&rule=plan_free.path_/search") == {
        "allowed": [0] * 59 + [1],
        "shadow": [0] * 59 + [3],
    }
    service.post(user("eve") | {"hitsAddend": 5})  # three of it would have been within the limit
    eventually(lambda: minutes(service, "domain=shop&rule=user")["refused"][-1] == 7, "all of it was refused")
    assert minutes(service, "domain=shop&rule=plan_gold") == {}
    assert minutes(service, "domain=shop") == {
        "allowed": [0] * 59 + [4],
        "refused": [0] * 59 + [3],
        "shadow": [0] * 59 + [1],
    }


@pytest.mark.parametrize(
    ("query", "status", "says"),
    [
        ("", 400, "/status/history?domain=D"),
        ("?domain=shopp", 404, "domain shopp has no rules, and had none"),
        ("?domain=shop&rule=users", 404, "domain shop has no rule users"),
        ("?domain=shop&rule=", 404, "domain shop has no rule ;"),
        ("?domain=sho%1bp", 404, r"domain sho\u001bp"),
    ],
)
def test_the_history_of_what_does_not_exist(service: Service, query: str, status: int, says: str) -> None:
    reply = service.get(f"/status/history{query}")

    assert (reply.status, says in reply.text) == (status, True), reply.text


async def allowed_by_rule(history: History, clock: Clock, domain: str, name: str) -> list[int]:
    clock.advance(SECOND)  # a look is a second old then, and there is another
    return list((await history.of_rule(domain, name)).get("allowed", []))[-3:]


def test_the_history_of_a_rule_outlives_reloads_and_its_values(service: Service) -> None:
    clock = Clock()
    history = History(_state(service), clock)
    rule = "  - {key: user, rate_limit: {unit: year, requests_per_unit: 100}%s}\n"

    async def story() -> None:
        assert await allowed_by_rule(history, clock, "shop", "user") == [0, 0, 2]
        clock.advance(MINUTE)
        service.limiter.book = parse_again(service, "domain: shop\ndescriptors:\n" + rule % "")
        tally_of("user").within_limit += 7
        assert await allowed_by_rule(history, clock, "shop", "user") == [0, 2, 7]
        service.limiter.book = parse_again(service, "domain: shop\ndescriptors:\n" + rule.replace("user", "plan") % "")
        with pytest.raises(RpcError, match="rule nobody"):
            await history.of_rule("shop", "nobody")
        assert await allowed_by_rule(history, clock, "shop", "user") == [0, 2, 7]
        service.limiter.book = parse_again(service, "domain: shop\ndescriptors:\n" + rule % ", detailed_metric: true")
        for value in ("ada", "bob"):
            by_value("user").of(("shop", "user", value)).within_limit += 5
        assert await allowed_by_rule(history, clock, "shop", "user") == [0, 2, 17]
        service.limiter.book = parse_again(service, "domain: shop\ndescriptors:\n" + rule % "")
        tally_of("user").within_limit += 3
        assert await allowed_by_rule(history, clock, "shop", "user") == [0, 2, 17]
        tally_of("user").within_limit += 4
        service.limiter.book = parse_again(service, "domain: shop\ndescriptors:\n" + rule % ", detailed_metric: true")
        by_value("user").of(("shop", "user", "ada")).within_limit += 6
        assert await allowed_by_rule(history, clock, "shop", "user") == [0, 2, 27]

    def tally_of(name: str) -> Tally:
        assert service.limiter.book is not None
        return next(rule.tally for rule in service.limiter.book.rules if rule.path[1] == name)

    def by_value(name: str) -> Tallies:
        assert service.limiter.book is not None
        return next(rule.tallies for rule in service.limiter.book.rules if rule.path[1] == name and rule.tallies)

    tally_of("user").within_limit += 2
    asyncio.run(story())


def parse_again(service: Service, text: str) -> RuleBook:
    service.loading.successes += 1
    return parse([YamlText("rules.yaml", text.encode())], previous=service.limiter.book)


def test_rules_beyond_the_bound_have_no_history_and_say_so(service: Service) -> None:
    rules = "".join(
        f"  - {{key: k{number}, rate_limit: {{unit: year, requests_per_unit: 9}}}}\n" for number in range(MAX_RULES + 1)
    )
    book = service.limiter.book = parse_again(service, f"domain: shop\ndescriptors:\n{rules}")
    for rule in book.rules:
        rule.tally.within_limit += 1
    clock = Clock()
    history = History(_state(service), clock)

    async def story() -> None:
        assert await allowed_by_rule(history, clock, "shop", f"k{MAX_RULES - 1}") == [0, 0, 1]
        with pytest.raises(RpcError, match=f"{MAX_RULES} other rules came first"):
            await history.of_rule("shop", f"k{MAX_RULES}")
        clock.advance(60 * MINUTE)
        book.rules[-1].tally.within_limit += 4
        assert await allowed_by_rule(history, clock, "shop", f"k{MAX_RULES}") == [0, 0, 4]
        assert await allowed_by_rule(history, clock, "shop", "k0") == []

    asyncio.run(story())


def test_a_look_at_rules_lets_calls_go_on_between_blocks(service: Service) -> None:
    rules = "".join(
        f"  - {{key: k{number}, detailed_metric: true, rate_limit: {{unit: year, requests_per_unit: 9}}}}\n"
        for number in range(500)
    )
    book = service.limiter.book = parse_again(service, f"domain: shop\ndescriptors:\n{rules}")
    for number in range(1000):
        assert book.rules[0].tallies is not None
        book.rules[0].tallies.of(("shop", f"k0_{number}")).within_limit += 1
    history = History(_state(service), Clock())

    assert sum(1 for _ in history.rule_blocks()) == 15  # of a hundred tallies, one of each rule and one of each value


def test_the_memory_of_rules_is_bounded_whatever_their_paths_are(service: Service) -> None:
    count = 2 * MAX_RULES
    rules = "".join(
        f"  - {{key: k, value: '{number:0900}', rate_limit: {{unit: year, requests_per_unit: 9}}}}\n"
        for number in range(count)
    )
    book = service.limiter.book = parse_again(service, f"domain: shop\ndescriptors:\n{rules}")
    for rule in book.rules:
        rule.tally.within_limit += 1_000_000
        rule.tally.over_limit += 1_000_000
    history = History(_state(service), Clock())
    tracemalloc.start()
    for _ in history.rule_blocks():
        pass
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert used < 2_100_000 + 400 * count
