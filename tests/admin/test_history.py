"""What happened lately, minute by minute, with bounded memory."""

import json
import tracemalloc

from ratelimit_service.server.history import MAX_DOMAINS, History, RequestHistory
from ratelimit_service.server.state import ServiceState
from ratelimit_service.system.clock import SECOND
from tests.admin.service import Service
from tests.clocks import Clock

ALLOWED, REFUSED = 0, 1


def _state(service: Service) -> ServiceState:
    return ServiceState(service.limiter, service.method, service.watcher, service.health, service.store.metrics)


def rows(history: RequestHistory, domain: str = "shop") -> list[list[int]]:
    return [list(row) for row in history.rows(domain)]


def test_a_minute_has_what_the_counts_grew_by() -> None:
    history = RequestHistory()
    history.add(0, [("shop", (3, 1, 0, 0, 0))])
    history.add(0, [("shop", (5, 1, 0, 0, 0))])
    history.add(2, [("shop", (5, 8, 0, 0, 2))])

    allowed, refused, shadow, by_policy, failed = rows(history)

    assert allowed[-3:] == [5, 0, 0]
    assert refused[-3:] == [1, 0, 7]
    assert failed[-3:] == [0, 0, 2]
    assert sum(shadow) == sum(by_policy) == 0
    assert len(allowed) == 60


def test_the_sixty_first_minute_is_forgotten() -> None:
    history = RequestHistory()
    history.add(0, [("shop", (1, 0, 0, 0, 0))])
    history.add(59, [("shop", (3, 0, 0, 0, 0))])
    before = rows(history)[ALLOWED]
    history.add(60, [("shop", (3, 0, 0, 0, 0))])
    after = rows(history)[ALLOWED]

    assert (before[0], before[-1], sum(before)) == (1, 2, 3)
    assert (after[-2:], sum(after)) == ([2, 0], 2)


def test_a_pause_of_more_than_an_hour_leaves_nothing() -> None:
    history = RequestHistory()
    history.add(7, [("shop", (9, 0, 0, 0, 0))])
    history.add(1000, [("shop", (10, 0, 0, 0, 0))])

    assert rows(history)[ALLOWED] == [0] * 59 + [1]


def test_domains_beyond_the_bound_are_added_up_as_other_until_one_makes_room() -> None:
    history = RequestHistory()
    names = [f"domain{number}" for number in range(MAX_DOMAINS + 2)]
    history.add(0, [(name, (1, 0, 0, 0, 0)) for name in names])
    history.add(30, [(name, (1, 0, 0, 0, 0)) for name in names])
    full = history.domains
    history.add(60, [(names[-1], (6, 4, 0, 0, 0))])

    assert full == ("other", *names[:MAX_DOMAINS])
    assert history.domains == ("other", names[-1])
    assert [rows(history, names[-1])[outcome][-1] for outcome in (ALLOWED, REFUSED)] == [5, 4]


def test_the_counts_of_a_domain_that_fell_take_nothing_away() -> None:
    history = RequestHistory()
    history.add(0, [("shop", (5, 0, 0, 0, 0))])
    history.add(0, [("shop", (2, 0, 0, 0, 0))])
    history.add(0, [("shop", (3, 0, 0, 0, 0))])

    assert rows(history)[ALLOWED][-1] == 6


def test_memory_is_bounded_whatever_the_domains_are_called() -> None:
    counts = [(f"{number:0900}", (number, 1, 0, 0, 0)) for number in range(1, 2001)]
    tracemalloc.start()
    history = RequestHistory()
    for minute in range(200):
        history.add(minute, [(name, (allowed + minute, 1, 0, 0, 0)) for name, (allowed, *_) in counts])
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert len(history.domains) == MAX_DOMAINS + 1
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
    clock.advance(SECOND)

    minute = history.last_minute()

    assert (minute.calls, minute.latency.calls, minute.seconds) == (7, 7, 56)
    assert [bucket.calls for bucket in minute.latency.buckets()[:6]] == [0, 0, 0, 0, 0, 7]


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
    assert history["domains"]["other"] == {"allowed": [0] * 59 + [1]}
    assert 0 <= history["running_seconds"] < 60
