"""The parts of the Redis store that need no Redis: causes, breaker, policies, pending requests, checks."""

import logging
import ssl
from collections.abc import Callable, Sequence

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.algorithms import open_algorithm
from ratelimit_service.errors import StoreError
from ratelimit_service.model import Limit, Unit
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.hit import Hit
from ratelimit_service.stores.redis.breaker import MAX_FAILURES, Backoff, Breaker, ServerState
from ratelimit_service.stores.redis.checks import warnings
from ratelimit_service.stores.redis.faults import Fault, Outage, fault_of_exception, fault_of_reply
from ratelimit_service.stores.redis.policy import Policy, share_of
from ratelimit_service.stores.redis.requests import PendingRequest, PendingRequests
from ratelimit_service.stores.store import Done
from ratelimit_service.system.clock import MINUTE, SECOND
from ratelimit_service.telemetry.latency import Latency
from tests.clocks import Clock
from tests.stores.redis_stores import hit_of, rule

# Causes


@pytest.mark.parametrize(
    ("reply", "cause"),
    [
        ("READONLY You can't write against a read only replica.", "readonly"),
        ("LOADING Redis is loading the dataset in memory", "loading"),
        ("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", "loading"),
        ("OOM command not allowed when used memory > 'maxmemory'.", "oom"),
        ("CLUSTERDOWN Hash slot not served", "clusterdown"),
        ("TRYAGAIN Multiple keys request during rehashing of slot", "moved"),
        ("NOPERM this user has no permissions to run the 'evalsha' command", "noperm"),
        ("WRONGPASS invalid username-password pair or user is disabled.", "wrongpass"),
        ("ERR invalid password", "wrongpass"),
        ("NOAUTH Authentication required.", "noauth"),
        ("MISCONF Redis is configured to save RDB snapshots", "misconf"),
        ("BUSY Redis is busy running a script.", "busy"),
        ("NOREPLICAS Not enough good replicas to write.", "noreplicas"),
        ("ERR Error running script (call to f_1): @user_script:1: -READONLY You can't write", "readonly"),
        ("ERR something else", "error"),
        ("ERR max number of clients reached", "maxclients"),
        ("ERR max number of clients + cluster connections reached", "maxclients"),
        ("DENIED Redis is running in protected mode because protected mode is enabled and no password", "protected"),
    ],
)
def test_an_error_of_redis_has_a_cause(reply: str, cause: str) -> None:
    assert fault_of_reply(hiredis.ReplyError(reply)).cause == cause


def test_what_redis_says_is_one_printable_line_of_200_characters() -> None:
    fault = fault_of_reply(hiredis.ReplyError("ERR \x1b[2J\x9b31m\r\n forged" + " word" * 10_000))

    assert fault.detail.startswith(r"ERR \x1b[2J\x9b31m forged word")
    assert len(fault.detail) == 200


def test_a_fault_that_is_raised_again_and_again_does_not_keep_what_it_passed_before() -> None:
    def raise_one() -> int:
        with pytest.raises(Fault, match="a slot has no node") as raised:
            raise fault_of_reply(hiredis.ReplyError("CLUSTERDOWN Hash slot not served"))
        return len(raised.traceback)

    assert [raise_one() for _ in range(3)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (ConnectionRefusedError(), "refused"),
        (ConnectionResetError(), "reset"),
        (BrokenPipeError(), "reset"),
        (TimeoutError(), "timeout"),
        (ssl.SSLError("certificate verify failed"), "tls"),
        (FileNotFoundError(2, "No such file or directory"), "unreachable"),
        (ValueError("x"), "error"),
        (Fault("oom"), "oom"),
    ],
)
def test_an_exception_has_a_cause(error: Exception, cause: str) -> None:
    assert fault_of_exception(error).cause == cause


# Breaker


EVENTS: dict[str, Callable[[Breaker], object]] = {
    "a reply": lambda breaker: breaker.replied(10.0, 0.001, decided=True, in_time=True),
    "overdue": lambda breaker: breaker.overdue(9.9, 0.015, 10.0),
    "found": lambda breaker: breaker.connected(10.0),
    "missed": lambda breaker: breaker.attempt_failed(),
    "hung up": lambda breaker: breaker.disconnected(10.0),
    "will not do": lambda breaker: breaker.lose(),
}


def brought_to(state: ServerState, *, proven: bool = True) -> Breaker:
    """At moment 10."""
    breaker = Breaker(0.0, lambda: 0.0)
    if state is not ServerState.CONNECTING:
        breaker.connected(8.0)
        breaker.replied(9.5 if proven else 8.09, 0.001, decided=True, in_time=True)
    if state is ServerState.SILENT:
        breaker.overdue(9.0, 0.015, 9.2)
    elif state is ServerState.LOST:
        breaker.lose()
    assert breaker.state is state
    return breaker


@pytest.mark.parametrize(
    ("state", "event", "then"),
    [
        (ServerState.CONNECTING, "found", ServerState.ANSWERING),
        (ServerState.CONNECTING, "missed", ServerState.LOST),
        (ServerState.ANSWERING, "a reply", ServerState.ANSWERING),
        (ServerState.ANSWERING, "overdue", ServerState.SILENT),
        (ServerState.ANSWERING, "hung up", ServerState.CONNECTING),
        (ServerState.ANSWERING, "will not do", ServerState.LOST),
        (ServerState.SILENT, "a reply", ServerState.ANSWERING),
        (ServerState.SILENT, "found", ServerState.ANSWERING),
        (ServerState.SILENT, "missed", ServerState.LOST),
        (ServerState.SILENT, "hung up", ServerState.CONNECTING),
        (ServerState.SILENT, "will not do", ServerState.LOST),
        (ServerState.LOST, "found", ServerState.ANSWERING),
        (ServerState.LOST, "missed", ServerState.LOST),
    ],
)
def test_each_event_leads_where_the_table_says(state: ServerState, event: str, then: ServerState) -> None:
    breaker = brought_to(state)
    EVENTS[event](breaker)

    assert breaker.state is then
    assert breaker.calm == (then is ServerState.ANSWERING)


@pytest.mark.parametrize("state", [ServerState.ANSWERING, ServerState.SILENT])
def test_a_connection_that_is_lost_soon_after_it_was_found_makes_a_pause(state: ServerState) -> None:
    proven, fresh = brought_to(state), brought_to(state, proven=False)

    assert (proven.disconnected(10.0), proven.state) == (0.0, ServerState.CONNECTING)
    assert (fresh.disconnected(10.0), fresh.state) == (0.025, ServerState.LOST)


@pytest.mark.parametrize(
    ("state", "granted", "admitted"),
    [
        (ServerState.CONNECTING, 9.9, False),
        (ServerState.CONNECTING, 10.1, True),
        (ServerState.ANSWERING, 0.001, True),
        (ServerState.SILENT, 0.9, False),
        (ServerState.SILENT, 1.1, True),
        (ServerState.LOST, 100.0, False),
    ],
)
def test_a_hit_waits_if_its_caller_grants_more_than_has_passed(
    state: ServerState, granted: float, admitted: bool
) -> None:
    assert brought_to(state).admits(granted, 10.0) is admitted


def test_what_takes_less_than_five_milliseconds_is_never_overdue() -> None:
    breaker = brought_to(ServerState.ANSWERING)
    breaker.overdue(9.996, 0.001, 10.0)

    assert breaker.state is ServerState.ANSWERING


def test_another_connection_is_sought_after_a_second_of_silence_and_by_chance_half_a_second_more() -> None:
    early, late = Breaker(0.0, lambda: 0.0), Breaker(0.0, lambda: 1.0)
    for breaker in (early, late):
        breaker.connected(1.0)
        breaker.overdue(2.0, 0.015, 2.02)

    assert [early.is_mute(now) for now in (2.99, 3.0)] == [False, True]
    assert [late.is_mute(now) for now in (3.49, 3.5)] == [False, True]


def test_a_server_that_has_refused_five_times_one_after_the_other_is_given_up() -> None:
    breaker = brought_to(ServerState.ANSWERING)
    assert [breaker.refused() for _ in range(4)] == [False] * 4
    breaker.replied(10.0, 0.001, decided=True, in_time=True)

    assert [breaker.refused() for _ in range(MAX_FAILURES)] == [False, False, False, False, True]


def test_a_heartbeat_forgives_no_refusal() -> None:
    breaker = brought_to(ServerState.ANSWERING)
    for _ in range(4):
        breaker.refused()
    breaker.replied(10.0, 0.001, decided=False, in_time=False)

    assert breaker.refused()


def test_hits_that_grant_less_than_the_last_five_answers_took_are_not_sent() -> None:
    breaker = brought_to(ServerState.ANSWERING)
    for took in (0.05, 0.03, 0.04, 0.02):
        breaker.replied(10.0, took, decided=True, in_time=False)
    assert breaker.admits(0.015, 10.0)
    breaker.replied(10.0, 0.06, decided=True, in_time=False)

    assert not breaker.admits(0.015, 10.0)
    assert breaker.admits(0.021, 10.0)
    breaker.replied(10.1, 0.001, decided=False, in_time=False)
    assert breaker.admits(0.015, 10.1)


def test_a_server_whose_answers_are_all_too_late_for_a_second_is_late_until_one_is_in_time() -> None:
    breaker = brought_to(ServerState.ANSWERING)
    for moment in range(10):
        breaker.overdue(10.0 + moment / 5, 0.1, 10.1 + moment / 5)
        breaker.replied(10.13 + moment / 5, 0.13, decided=True, in_time=False)
    assert breaker.is_late(12.0)
    assert not breaker.serves
    breaker.replied(12.0, 0.09, decided=False, in_time=False)  # a heartbeat that takes less than a caller granted

    assert not breaker.is_late(13.0)
    assert breaker.serves


def test_a_few_callers_in_a_hurry_make_no_server_late() -> None:
    breaker = brought_to(ServerState.ANSWERING)
    for moment in range(100):
        breaker.overdue(10.0 + moment, 0.01, 10.03 + moment)
        breaker.replied(10.05 + moment, 0.05, decided=True, in_time=False)
        breaker.replied(10.10 + moment, 0.05, decided=True, in_time=True)

        assert not breaker.is_late(11.0 + moment)


def test_pauses_grow_to_two_seconds_and_half_of_each_is_chance() -> None:
    longest, shortest = Backoff(lambda: 1.0), Backoff(lambda: 0.0)

    assert [longest.next() for _ in range(8)] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    assert [shortest.next() for _ in range(8)] == [0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_pauses_begin_short_in_each_outage() -> None:
    breaker = brought_to(ServerState.ANSWERING)
    breaker.lose()
    assert [breaker.backoff.next() for _ in range(3)] == [0.025, 0.05, 0.1]
    breaker.connected(20.0)
    breaker.replied(21.0, 0.001, decided=True, in_time=True)
    assert breaker.lose() == 0.0

    assert breaker.backoff.next() == 0.025


def test_pauses_go_on_growing_where_a_server_lets_in_and_hangs_up() -> None:
    breaker = Breaker(0.0, lambda: 1.0)
    pauses = []
    for moment in range(8):
        breaker.connected(10.0 + moment)
        breaker.replied(10.09 + moment, 0.001, decided=True, in_time=True)
        pauses.append(breaker.disconnected(10.5 + moment))

    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]


def test_connections_that_have_answered_and_break_each_half_second_are_replaced_at_once() -> None:
    breaker = Breaker(0.0, lambda: 1.0)
    for moment in range(8):
        breaker.connected(10.0 + moment / 2)
        breaker.replied(10.11 + moment / 2, 0.001, decided=True, in_time=True)

        assert breaker.disconnected(10.5 + moment / 2) == 0.0
        assert breaker.state is ServerState.CONNECTING


def test_a_server_that_lets_in_and_hangs_up_has_recovered_when_it_answers_for_a_tenth_of_a_second() -> None:
    breaker = brought_to(ServerState.ANSWERING, proven=False)
    breaker.disconnected(10.0)
    breaker.connected(11.0)
    breaker.replied(11.09, 0.001, decided=True, in_time=True)
    assert breaker.serves
    assert not breaker.recovered
    breaker.replied(11.11, 0.001, decided=True, in_time=True)

    assert breaker.recovered


# Lines for the operator


def test_an_outage_is_two_lines_and_one_more_for_what_does_not_pass_by_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outage = Outage("redis:6379", "open")
    for cause in ("reset", "refused", "refused", "loading", "oom", "oom"):
        outage.begin(Fault(cause))
    outage.end()

    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        "store lost: Redis at redis:6379: connection lost; meanwhile answering by policy, open",
        "store still lost: Redis at redis:6379: out of memory: raise maxmemory, or make room",
        "store regained: Redis at redis:6379, after 0.0 s",
    ]


# Policies


def test_the_rules_policy_goes_before_the_services() -> None:
    policy = Policy("error", 1, 1000, Clock())
    hits = [hit_of(rule(10, on_store_failure="open")), hit_of(rule(10, on_store_failure="closed"))]

    assert policy.answer(hits, "why") is None
    assert [hit.decision.allowed for hit in hits] == [True, False]
    assert [hit.decision.remaining for hit in hits] == [9, 0]


def test_one_error_is_the_requests() -> None:
    policy = Policy("error", 1, 1000, Clock())
    error = policy.answer([hit_of(rule(on_store_failure="open")), hit_of(rule())], "it rains")

    assert isinstance(error, StoreError)
    assert str(error) == "no answer from the store: it rains"


def test_open_allows_what_an_untouched_counter_does() -> None:
    blocked = Rule("shop", (), Limit(0, Unit.MINUTE, MINUTE, burst=5), open_algorithm("token_bucket"))
    hits = [
        hit_of(rule(10), cost=10),
        hit_of(rule(10), cost=11),
        hit_of(rule(0)),
        hit_of(blocked),
        hit_of(rule(0), cost=0),
    ]
    for _ in range(2):
        Policy("open", 1, 1000, Clock()).answer(hits, "why")

        assert [hit.decision.allowed for hit in hits] == [True, False, False, False, True]
        assert [hit.decision.remaining for hit in hits] == [0, 0, 0, 0, 0]


def test_closed_lets_looks_and_refunds_pass() -> None:
    hits = [hit_of(rule(), cost=0), hit_of(rule(), cost=-1)]
    Policy("closed", 1, 1000, Clock()).answer(hits, "why")

    assert all(hit.decision.allowed for hit in hits)


@pytest.mark.parametrize(("requests", "instances", "share"), [(10, 3, 4), (1, 5, 1), (0, 5, 0), (10, 1, 10)])
def test_a_share_is_rounded_up(requests: int, instances: int, share: int) -> None:
    limit = rule(requests).limit
    assert limit is not None

    assert share_of(limit, instances).requests == share


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 20), st.integers(1, 9))
def test_all_shares_together_are_the_limit_and_less_than_one_more_for_each(
    requests: int, burst: int, exceed: int, instances: int
) -> None:
    limit = Limit(requests, Unit.MINUTE, MINUTE, burst=burst, exceed=exceed)
    share = share_of(limit, instances)

    for most, part in (
        (requests, share.requests),
        ((burst or requests), (share.burst or share.requests)),
        ((burst or requests) + exceed, (share.burst or share.requests) + share.exceed),
    ):
        assert most <= part * instances < most + instances


def test_local_answers_what_is_left_of_the_share_and_not_of_what_may_exceed_it() -> None:
    policy = Policy("local", 2, 1000, Clock())
    soft = Rule("shop", (), Limit(10, Unit.MINUTE, MINUTE, exceed=4), open_algorithm("fixed_window"))
    hits = [hit_of(soft) for _ in range(8)]
    for hit in hits:
        policy.answer([hit], "why")

    assert [hit.decision.allowed for hit in hits] == [True] * 7 + [False]
    assert [hit.remaining for hit in hits] == [4, 3, 2, 1, 0, 0, 0, 0]


def test_local_counts_with_the_share_of_the_limit() -> None:
    policy = Policy("local", 3, 1000, Clock())
    hits = [hit_of(rule(10)) for _ in range(6)]
    for hit in hits:
        policy.answer([hit], "why")

    assert [hit.decision.allowed for hit in hits] == [True, True, True, True, False, False]


# Pending requests


def waiting(
    pending: PendingRequests, hits: Sequence[Hit], done: Done = lambda _: None, seconds: float = 1.0
) -> PendingRequest:
    """A request that came at moment 0."""
    request = PendingRequest(hits, done, pending.queue_for(int(seconds * SECOND)), seconds)
    request.queue.requests.append(request)
    return request


def test_requests_past_their_deadline_are_answered_and_the_others_wait_on() -> None:
    pending = PendingRequests(Policy("open", 1, 10, Clock()))
    answers: list[object] = []
    for deadline in (1.0, 2.0, 3.0):
        waiting(pending, [hit_of(rule())], answers.append, deadline)

    assert pending.expire(2.0) == 3.0
    assert answers == [None, None]
    assert pending.expire(9.0) is None
    assert len(pending) == 0


def test_answered_requests_are_removed_unless_one_before_them_waits() -> None:
    pending = PendingRequests(Policy("open", 1, 10, Clock()))
    first, second, _ = (waiting(pending, [hit_of(rule())]) for _ in range(3))
    second.complete()
    assert len(pending) == 3

    first.complete()

    assert len(pending) == 1


def test_a_request_whose_parts_fail_is_one_error() -> None:
    pending = PendingRequests(Policy("open", 1, 10, Clock()))
    answers: list[object] = []
    request = waiting(pending, [hit_of(rule(), key) for key in ("ada", "eve")], answers.append)
    request.parts_left = 2
    pending.fail(request, request.hits[:1], Fault("reset"))
    pending.fail(request, request.hits[1:], Fault("timeout"))

    assert answers == [None]
    assert pending.errors == {"reset": 1}


def test_no_request_is_answered_twice() -> None:
    pending = PendingRequests(Policy("open", 1, 10, Clock()))
    answers: list[object] = []
    request = waiting(pending, [hit_of(rule())], answers.append)
    pending.expire(1.0)
    request.complete()
    pending.fail(request, request.hits, Fault("reset"))

    assert answers == [None]
    assert pending.errors == {"timeout": 1}


def test_what_is_decided_when_the_time_is_over_stays_so() -> None:
    pending = PendingRequests(Policy("closed", 1, 10, Clock()))
    decided, open_one = hit_of(rule()), hit_of(rule())
    decided.decision = rule().algorithm.hit(None, rule().limit, 1, 0)[1]  # type: ignore[arg-type]  # it has a limit
    request = waiting(pending, [decided, open_one])
    request.parts_left = 2
    request.complete()
    pending.expire(1.0)

    assert [decided.decision.allowed, open_one.decision.allowed] == [True, False]


# How long Redis has


@pytest.mark.parametrize(
    ("timeout", "most", "microseconds"),
    [
        (20_000, 0, 14_848),  # Envoy's default: three quarters of it, and a little off
        (100_000, 0, 73_728),
        (250_000, 0, 196_608),
        (1_000_000, 0, 933_888),
        (60_000_000, 0, 59_768_832),
        (1000, 0, 736),
        (1, 0, 1),
        (0, 0, 0),
        (None, 0, 1_000_000),
        (None, 50_000, 50_000),
        (20_000, 50_000, 14_848),
        (1_000_000, 50_000, 50_000),
    ],
)
def test_redis_has_what_the_caller_grants_less_the_way_back(timeout: int | None, most: int, microseconds: int) -> None:
    pending = PendingRequests(Policy("open", 1, 10, Clock()), most)

    assert pending.queue_for(timeout).granted == microseconds / SECOND


def test_callers_with_many_timeouts_share_few_queues() -> None:
    pending = PendingRequests(Policy("open", 1, 10, Clock()))
    for timeout in range(0, 3_600_000_000, 100_003):
        pending.queue_for(timeout)

    assert len(pending.by_timeout) <= 4096
    assert len(pending._queues) < 1000


def test_the_time_granted_is_a_metric() -> None:
    pending = PendingRequests(Policy("open", 1, 10, Clock()), 50_000)
    for timeout in (20_000, 20_000, None):
        pending.queue_for(timeout).total += 1
    bounds, granted, _ = pending.metrics()

    assert bounds.samples == [((("bound", "default"),), 0.05), ((("bound", "most"),), 0.05)]
    ((_, histogram),) = granted.samples
    assert isinstance(histogram, Latency)
    assert [bucket.seconds for bucket in histogram.buckets() if bucket.calls == 2] == [0.025]
    assert histogram.calls == 3


# Checks


def test_a_redis_that_is_as_it_should_be_is_not_mentioned() -> None:
    assert list(warnings({"redis_version": "7.0.15", "maxmemory_policy": "noeviction"})) == []


def test_what_is_wrong_is_said_with_what_to_do() -> None:
    assert list(warnings({"redis_version": "6.0.9", "maxmemory_policy": "allkeys-lru"})) == [
        "it is version 6.0.9, and not tested: use 6.2 or newer",
        (
            "maxmemory-policy is allkeys-lru: when memory is short, counters and bans are forgotten, and limits begin "
            "anew; set it to noeviction"
        ),
    ]


def test_the_policy_that_forgets_busy_counters_is_not_recommended() -> None:
    assert list(warnings({"maxmemory_policy": "volatile-ttl"})) == [
        (
            "maxmemory-policy is volatile-ttl: when memory is short, counters and bans are forgotten, those that end "
            "soonest first, however busy they are, and limits begin anew; set it to noeviction"
        )
    ]
