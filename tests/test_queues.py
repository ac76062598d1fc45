"""Limits with a queue: who waits how long, who is refused, and what becomes of turns whose caller goes away.

Several limiters on one store are several instances; a clock that stands still until the next turn is all they have.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.api.generated.envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest, RateLimitResponse
from ratelimit_service.api.ratelimit import ShouldRateLimit
from ratelimit_service.api.response import ResponseEncoder
from ratelimit_service.errors import RpcError, Status, StoreError
from ratelimit_service.limiter.limiter import Limiter
from ratelimit_service.limiter.turns import MARGIN, TurnQueues
from ratelimit_service.limiter.verdict import Verdict
from ratelimit_service.model import Cancel, Descriptor, Request
from ratelimit_service.stores.hit import Hit
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.stores.redis.policy import Policy
from ratelimit_service.stores.store import Done
from ratelimit_service.system.clock import SECOND
from ratelimit_service.telemetry.gauges import NO_GAUGES, Gauges
from tests.books import book
from tests.clocks import Clock
from tests.shop import entries_of

RULES = """
    domain: shop
    descriptors:
      - key: queue
        rate_limit: {algorithm: leaky_bucket, unit: second, requests_per_unit: 10, queue: {max_delay: 250ms}}
      - key: slow
        rate_limit: {algorithm: leaky_bucket, unit: second, requests_per_unit: 2, queue: {max_delay: "2 seconds"}}
      - key: tried
        shadow_mode: true
        rate_limit: {algorithm: leaky_bucket, unit: second, requests_per_unit: 10, queue: {max_delay: 250ms}}
      - key: quota
        quota_mode: true
        rate_limit: {algorithm: leaky_bucket, unit: second, requests_per_unit: 10, queue: {max_delay: 250ms}}
      - key: list
        rate_limits:
          - {unit: minute, requests_per_unit: 2}
          - {algorithm: leaky_bucket, unit: second, requests_per_unit: 10, queue: {max_delay: 250ms}}
      - key: few
        rate_limit: {unit: minute, requests_per_unit: 2}
      - key: never
        rate_limit: {deny: true}
      - key: place
        descriptors:
          - key: id
            rate_limit: {concurrency: 1, hold: 60s, place: id}
    """
MS = 1000


class Answer(NamedTuple):
    """What came of a request, and when."""

    name: str
    at: int
    allowed: bool
    delay: int


class Instances:
    """Instances on one store, and all that they have answered."""

    def __init__(self, number: int = 1, rules: str = RULES, max_bytes: int = 1_000_000, **options: bool) -> None:
        self.clock = Clock()
        self.store = MemoryStore(1000, self.clock)
        self.turns = [TurnQueues(clock=self.clock, max_bytes=max_bytes) for _ in range(number)]
        self.limiters = [
            Limiter(self.store, turns=turns, shadow_mode=options.get("shadow", False)) for turns in self.turns
        ]
        for limiter in self.limiters:
            limiter.book = book(rules)
        self.answers: list[Answer] = []

    def ask(
        self, name: str, *descriptors: str, cost: int = 1, timeout: int | None = None, instance: int = 0
    ) -> Cancel | None:
        """A request of this name; it waits if there is a means to cancel it."""
        limiter = self.limiters[instance]
        request = Request("shop", [Descriptor(entries_of(each), cost) for each in descriptors or ("queue",)])

        def on_verdict(verdict: Verdict | RpcError) -> None:
            assert isinstance(verdict, Verdict)
            self.answers.append(Answer(name, self.clock.now, verdict.allowed, verdict.delay))

        def on_verdict_now(verdict: Verdict, _: bytes) -> bool:
            on_verdict(verdict)
            return True

        plan = limiter.plan(request)
        if limiter.decide_now(plan, on_verdict_now, b""):
            return None
        return limiter.decide_later(plan, on_verdict, timeout)

    def run_until(self, moment: int) -> None:
        """Let the time pass, and each turn come when it is due."""
        while due := min(
            (turns.due for turns in self.turns if turns.due is not None and turns.due <= moment), default=0
        ):
            self.clock.now = due
            for turns in self.turns:
                turns.run()
        self.clock.now = moment

    def run(self) -> list[Answer]:
        """Let all turns come, and return all answers."""
        self.run_until(self.clock.now + 60 * SECOND)
        assert [turns.requests + turns.bytes for turns in self.turns] == [0] * len(self.turns)
        books = [limiter.book for limiter in self.limiters if limiter.book is not None]
        assert not any(rule.measured.waiting for book in books for rule in book.measured if rule.measured is not None)
        return self.answers

    def gauges(self, key: str, instance: int = 0) -> Gauges:
        """Those of the rule for this key."""
        limiter = self.limiters[instance]
        assert limiter.book is not None
        (rule,) = [rule for rule in limiter.book.rules if rule.path[1:] == (key,)]
        return limiter.gauges.get(rule.tally, NO_GAUGES)


def test_what_has_no_turn_yet_is_answered_later_and_what_would_wait_too_long_at_once() -> None:
    shop = Instances()
    for name in "abcde":
        shop.ask(name)

    assert shop.run() == [
        ("a", 0, True, 0),
        ("d", 0, False, 0),
        ("e", 0, False, 0),
        ("b", 100 * MS, True, 100 * MS),
        ("c", 200 * MS, True, 200 * MS),
    ]


def test_gauges_say_how_many_wait_for_turns_of_each_rule_and_how_long_the_last_were_to_wait() -> None:
    shop = Instances()
    cancels = [shop.ask(str(number), "slow") for number in range(4)]
    shop.ask("other", "queue")
    shop.ask("after other", "queue")
    waiting, other = shop.gauges("slow"), shop.gauges("queue")
    shop.run_until(600 * MS)
    later = shop.gauges("slow")
    assert cancels[3] is not None
    assert cancels[3]()

    assert waiting == Gauges(waiting=3, longest_wait_seconds=1.5)
    assert other == Gauges(waiting=1, longest_wait_seconds=0.1)
    assert later == Gauges(waiting=2, longest_wait_seconds=1.5)
    assert shop.gauges("slow") == Gauges(waiting=1, longest_wait_seconds=1.5)
    shop.limiters[0].turns.refuse_all()
    assert shop.gauges("slow") == Gauges(longest_wait_seconds=1.5)


def test_instances_share_one_outflow() -> None:
    shop = Instances(3)
    for number, name in enumerate("abc"):
        shop.ask(name, instance=number)

    assert [(each.name, each.at) for each in shop.run()] == [("a", 0), ("b", 100 * MS), ("c", 200 * MS)]


def test_what_does_not_fit_the_callers_deadline_is_refused_at_once() -> None:
    shop = Instances()
    shop.ask("first")
    shop.ask("hurried", timeout=100 * MS + MARGIN - 1)
    shop.ask("patient", timeout=110 * MS)
    shop.ask("late", timeout=20 * MS)

    assert [(each.name, each.at, each.allowed) for each in shop.run()] == [
        ("first", 0, True),
        ("hurried", 0, False),
        ("late", 0, False),
        ("patient", 100 * MS, True),
    ]
    assert shop.turns[0].expired == 2


def test_a_caller_that_goes_away_leaves_its_turn_to_the_next_one() -> None:
    shop = Instances()
    shop.ask("a", "slow")
    cancel = shop.ask("b", "slow")
    for name in "cd":
        shop.ask(name, "slow")
    assert cancel is not None
    assert cancel()
    assert not cancel()

    shop.run_until(600 * MS)
    shop.ask("e", "slow")

    # The last turn, at 1.5 s, went back to the store: `e` has it.
    assert [(each.name, each.at) for each in shop.run()] == [
        ("a", 0),
        ("c", 500 * MS),
        ("d", 1000 * MS),
        ("e", 1500 * MS),
    ]
    assert shop.turns[0].abandoned == 1


def test_a_turn_goes_back_to_the_store_while_it_is_the_last() -> None:
    shop = Instances(2)
    shop.ask("a", "slow")
    cancel = shop.ask("b", "slow")
    assert cancel is not None
    assert cancel()
    shop.ask("c", "slow", instance=1)

    assert [(each.name, each.at) for each in shop.run()] == [("a", 0), ("c", 500 * MS)]


def test_a_turn_before_that_of_another_instance_is_for_the_next_request_of_its_own() -> None:
    shop = Instances(2)
    shop.ask("a", "slow")
    cancel = shop.ask("b", "slow")
    shop.ask("c", "slow", instance=1)
    assert cancel is not None
    assert cancel()
    shop.ask("d", "slow")

    # At 1.5 s nothing is left to answer: that turn was for `d`.
    assert [(each.name, each.at) for each in shop.run()] == [("a", 0), ("d", 500 * MS), ("c", 1000 * MS)]


def test_a_turn_that_is_too_short_for_the_next_one_is_lost() -> None:
    shop = Instances()
    shop.ask("a", "slow")
    cancel = shop.ask("b", "slow")
    shop.ask("c", "slow", cost=2)
    shop.ask("d", "slow")
    assert cancel is not None
    cancel()

    assert [(each.name, each.at) for each in shop.run()] == [("a", 0), ("c", 1000 * MS), ("d", 2000 * MS)]


def test_the_answer_waits_for_the_latest_of_several_turns() -> None:
    shop = Instances()
    shop.ask("a", "queue")
    shop.ask("b", "slow")
    shop.ask("c", "queue", "slow", "few")

    assert shop.run()[-1] == ("c", 500 * MS, True, 500 * MS)


@pytest.mark.parametrize("refuses", ["few", "never"])
def test_a_request_that_another_limit_refuses_takes_no_turn(refuses: str) -> None:
    shop = Instances()
    for _ in range(2):
        shop.ask("before", "few")
    shop.ask("a", "queue", refuses)
    shop.ask("b", "queue")

    assert [(each.name, each.at, each.allowed) for each in shop.run()[2:]] == [("a", 0, False), ("b", 0, True)]


def test_a_request_that_the_queue_refuses_is_charged_to_no_other_limit() -> None:
    shop = Instances()
    for name in "abc":
        shop.ask(name, "queue")
    shop.ask("refused", "queue", "few")
    shop.run()

    shop.ask("e", "few")
    shop.ask("f", "few")

    assert [each.allowed for each in shop.answers[-2:]] == [True, True]


def test_a_request_that_the_queue_refuses_takes_no_place_and_one_that_waits_has_it() -> None:
    shop = Instances(2)
    for name in "ab":
        shop.ask(name, "queue")
    shop.ask("waits", "queue", "place id=1")
    shop.ask("no place", "place id=3")
    for number in range(2):
        shop.ask("another", "queue", "place id=2", instance=number)
    shop.run_until(300 * MS)
    shop.ask("its own", "place id=1")

    assert [(each.name, each.at, each.allowed) for each in shop.answers if each.name not in "ab"] == [
        ("no place", 0, False),
        ("another", 0, False),
        ("another", 0, False),
        ("waits", 200 * MS, True),
        ("its own", 300 * MS, True),
    ]


def test_a_limit_of_a_list_queues_too() -> None:
    shop = Instances()
    for name in "abc":
        shop.ask(name, "list")

    assert [(each.name, each.at, each.allowed) for each in shop.run()] == [
        ("a", 0, True),
        ("c", 0, False),
        ("b", 100 * MS, True),
    ]


def test_a_trial_delays_nothing_and_neither_does_a_service_that_only_tries() -> None:
    shop, trial = Instances(), Instances(shadow=True)
    for name in "abcd":
        shop.ask(name, "tried")
        trial.ask(name)

    assert [(each.at, each.allowed) for each in (*shop.run(), *trial.run())] == [(0, True)] * 8


def test_a_quota_with_a_queue_waits_and_is_no_refusal_while_another_has_room() -> None:
    shop = Instances(rules=RULES.replace("key: few", "key: few\n        quota_mode: true"))
    for name in "abcd":
        shop.ask(name, "quota", "few")

    assert [(each.name, each.at, each.allowed) for each in shop.run()] == [
        ("a", 0, True),
        ("d", 0, False),
        ("b", 100 * MS, True),
        ("c", 200 * MS, True),
    ]


def test_looks_and_refunds_do_not_wait() -> None:
    shop = Instances()
    for name, cost in (("a", 1), ("b", 0), ("c", -1), ("d", 1)):
        shop.ask(name, cost=cost)

    assert [(each.name, each.at) for each in shop.run()] == [("a", 0), ("b", 0), ("c", 0), ("d", 0)]


def test_requests_that_wait_take_bounded_memory() -> None:
    """One that finds no room is allowed if it is its turn, and refused if not."""
    shop = Instances(rules=RULES.replace("250ms", "10s"), max_bytes=10_000)
    cancels = [shop.ask(str(number)) for number in range(50)]
    waiting = sum(cancel is not None for cancel in cancels)

    assert 3 <= waiting <= 6
    assert shop.turns[0].bytes <= 10_000
    assert [each.allowed for each in shop.answers] == [True] + [False] * (49 - waiting)
    assert shop.turns[0].full == 49 - waiting
    assert len(shop.run()) == 50
    shop.run_until(shop.clock.now + 10 * SECOND)
    assert shop.ask("next") is None


def test_one_caller_leaves_room_for_others_to_wait() -> None:
    turns = TurnQueues(max_bytes=1_000_000)

    def waiting(caller: bytes) -> int:
        count = 0
        while turns.begin(lambda _: None, 1000, caller) is not None:
            count += 1
        return count

    assert waiting(b"a") == 800
    assert waiting(b"b") == 160
    assert [waiting(bytes([number])) for number in range(3)] == [32, 6, 1]
    assert turns.full == 5


def test_what_a_caller_has_ended_makes_room_for_it_again() -> None:
    turns = TurnQueues(max_bytes=1_000_000)
    first = [turns.begin(lambda _: None, 100_000, b"a") for _ in range(9)]
    assert [each is not None for each in first] == [True] * 8 + [False]

    for each in first[:8]:
        assert each is not None
        turns.end(each)

    assert turns.begin(lambda _: None, 100_000, b"a") is not None
    assert (turns.bytes, len(turns._bytes_of)) == (100_000, 1)


class SlowStore(MemoryStore):
    """Answers when the test wants it to."""

    answer: Callable[[], None]

    def hit(  # type: ignore[override]  # it does not answer at once
        self, hits: Sequence[Hit], done: Done, timeout: int | None = None
    ) -> Cancel:
        self.answer = lambda: MemoryStore.hit(self, hits, done)
        return lambda: False


def test_a_caller_that_goes_away_while_the_store_decides_does_not_wait() -> None:
    """Its call counts as open until the store has answered, and no longer."""
    shop = Instances()
    shop.ask("a", "slow")
    store = SlowStore(1000, shop.clock)
    store._segments = shop.store._segments
    shop.limiters = [Limiter(store, turns=shop.turns[0])]
    shop.limiters[0].book = book(RULES)
    cancel = shop.ask("gone", "slow")
    assert cancel is not None
    assert not cancel()
    assert len(shop.answers) == 1
    store.answer()

    assert [(each.name, each.at, each.allowed) for each in shop.run()] == [("a", 0, True), ("gone", 0, False)]
    assert not cancel()


def test_a_request_whose_hits_the_store_has_not_decided_ends_with_an_internal_error() -> None:
    class Forgetful(MemoryStore):
        def hit(self, hits: Sequence[Hit], done: Done, timeout: int | None = None) -> None:
            done(None)

    turns = TurnQueues()
    limiter = Limiter(Forgetful(10, Clock()), turns=turns)
    limiter.book = book(RULES)
    answers: list[Verdict | RpcError] = []

    limiter.decide_later(limiter.plan(Request("shop", [Descriptor(entries_of("queue"))])), answers.append)

    [answer] = answers
    assert isinstance(answer, RpcError)
    assert answer.status is Status.INTERNAL
    assert turns.bytes == 0


def test_an_answer_of_the_store_that_comes_too_late_for_the_caller_is_a_refusal() -> None:
    shop = Instances()
    shop.ask("a", "slow")
    store = SlowStore(1000, shop.clock)
    store._segments = shop.store._segments
    shop.limiters = [Limiter(store, turns=shop.turns[0])]
    shop.limiters[0].book = book(RULES)
    shop.ask("late", "slow", timeout=600 * MS)
    shop.clock.now = 99 * MS  # so long the store takes; its turn is at 500 ms
    store.answer()
    shop.ask("too late", "slow", timeout=800 * MS)
    shop.clock.now += 200 * MS
    store.answer()

    assert [(each.name, each.at, each.allowed) for each in shop.run()] == [
        ("a", 0, True),
        ("too late", 299 * MS, False),
        ("late", 500 * MS, True),
    ]
    assert shop.turns[0].expired == 1


def test_callers_that_go_away_again_and_again_leave_nothing_behind() -> None:
    shop = Instances()
    for name in ("first", "waits"):
        shop.ask(name, "slow")
    for _ in range(5_000):
        for cancel in [shop.ask("gone", "slow") for _ in range(2)]:
            assert cancel is not None
            cancel()

    turns = shop.turns[0]
    assert turns.requests == 1
    assert len(turns._heap) < 3000
    assert sum(len(line.waiting) for line in turns._lines.values()) < 3000
    shop.ask("next", "slow")
    assert [(each.name, each.at) for each in shop.run()] == [("first", 0), ("waits", 500 * MS), ("next", 1000 * MS)]


def test_who_waits_when_the_process_stops_is_refused_and_no_other_waits() -> None:
    shop = Instances()
    for name in "ab":
        shop.ask(name)
    shop.turns[0].refuse_all()
    shop.ask("c")

    assert shop.run() == [("a", 0, True, 0), ("b", 0, False, 0), ("c", 0, False, 0)]


@pytest.mark.parametrize(
    ("headers", "delays"), [("[ratelimit]", [None, "100"]), ("[ietf]", [None, "100"]), ("[]", [None, None])]
)
def test_the_delay_is_a_header_where_there_are_headers(headers: str, delays: list[str | None]) -> None:
    shop = Instances(rules=RULES.replace("domain: shop", f"domain: shop\n    headers: {headers}"))
    encoder = ResponseEncoder()
    found = []

    def on_verdict(verdict: Verdict | RpcError) -> None:
        assert isinstance(verdict, Verdict)
        response = RateLimitResponse.FromString(encoder.encode(verdict, b""))
        found.append({header.key: header.value for header in response.response_headers_to_add}.get("RateLimit-Delay"))

    plan = shop.limiters[0].plan(Request("shop", [Descriptor((("queue", "x"),))]))
    for _ in range(2):
        shop.limiters[0].decide_later(plan, on_verdict)
    shop.run()

    assert found == delays


def test_a_policy_that_counts_locally_queues_and_the_open_one_lets_pass() -> None:
    for name, times in (("local", [0, 200 * MS]), ("open", [0, 0, 0]), ("closed", [])):
        shop = Instances()
        policy = Policy(name, 2, 100, shop.clock)

        class Lost:
            """A store that cannot decide."""

            charge = None

            def hit(self, hits: object, done: Callable[[StoreError | None], None], timeout: int | None = None) -> None:
                done(policy.answer(hits, "lost"))  # type: ignore[arg-type]  # noqa: B023 - called within the loop

        limiter = Limiter(Lost(), turns=shop.turns[0])  # type: ignore[arg-type]  # it only decides
        limiter.book = book(RULES)
        shop.limiters[0] = limiter
        for number in range(3):
            shop.ask(str(number))

        assert [each.at for each in shop.run() if each.allowed] == times


def test_the_time_in_a_queue_is_no_time_of_the_service() -> None:
    """Alerts are on the time that a call takes. By the clock of the test it waits for half a minute, in no time."""
    limit = "{algorithm: leaky_bucket, unit: minute, requests_per_unit: 2, queue: {max_delay: 1 minute}}"
    shop = Instances(rules=f"domain: shop\ndescriptors: [{{key: queue, rate_limit: {limit}}}]\n")
    method = ShouldRateLimit(shop.limiters[0], ResponseEncoder())
    request = RateLimitRequest(domain="shop")
    request.descriptors.add().entries.add(key="queue", value="x")
    replies: list[bytes | RpcError] = []
    for _ in range(2):
        method.call(request.SerializeToString(), replies.append)
    shop.run()

    assert len(replies) == method.latency.calls == 2
    assert shop.turns[0].waited.nanoseconds == 30 * SECOND * 1000
    assert method.latency.nanoseconds < 0


class EarlyTimer:
    """Wakes whenever the test wants it to."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.wake = wake
        self.moments: list[int] = []

    def set(self, moment: int) -> None:
        self.moments.append(moment)

    def close(self) -> None:
        self.moments.clear()


def test_a_timer_that_wakes_too_early_is_set_again() -> None:
    shop, timers = Instances(), []

    def open_timer(wake: Callable[[], None]) -> EarlyTimer:
        timers.append(EarlyTimer(wake))
        return timers[0]

    shop.turns = [TurnQueues(open_timer, clock=shop.clock)]
    shop.limiters[0] = Limiter(shop.store, turns=shop.turns[0])
    shop.limiters[0].book = book(RULES)
    for name in "abc":
        shop.ask(name)
    shop.clock.now = 99 * MS
    timers[0].wake()
    shop.clock.now = 100 * MS
    timers[0].wake()

    assert timers[0].moments == [100 * MS, 100 * MS, 200 * MS]
    assert [each.name for each in shop.answers] == ["a", "b"]
    shop.turns[0].close()
    assert timers[0].moments == []


asked = st.lists(
    st.tuples(
        st.integers(0, 400 * MS),  # later than the one before
        st.integers(1, 2),  # cost
        st.integers(0, 2),  # instance
        st.booleans(),  # whether it gives up
        st.integers(0, 2 * SECOND),  # after so long
        st.none() | st.integers(0, 3 * SECOND),  # how long its caller waits
    ),
    max_size=40,
)


@given(asked)
def test_answers_are_never_more_than_the_outflow_in_order_and_in_time(
    requests: list[tuple[int, int, int, bool, int, int | None]],
) -> None:
    shop = Instances(3)
    events: list[tuple[int, int, Callable[[], object]]] = []
    came: dict[str, tuple[int, int, int, int | None]] = {}
    moment = 0
    for number, (passed, cost, instance, gives_up, after, timeout) in enumerate(requests):
        moment += passed
        came[str(number)] = (moment, cost, instance, timeout)

        def come(
            number: int = number,
            cost: int = cost,
            instance: int = instance,
            timeout: int | None = timeout,
            leaves: int | None = moment + after if gives_up else None,
        ) -> None:
            cancel = shop.ask(str(number), "slow", cost=cost, instance=instance, timeout=timeout)
            if cancel is not None and leaves is not None:
                events.append((leaves, number, cancel))

        events.append((moment, number, come))
    while events:
        events.sort(key=lambda event: event[:2])
        when, _, act = events.pop(0)
        shop.run_until(max(when, shop.clock.now))
        act()
    answers = shop.run()

    last: dict[int, int] = {}
    free = 0
    for name, at, allowed, _ in answers:
        arrived, cost, instance, timeout = came[name]
        if not allowed:
            assert at == arrived
            continue
        assert at >= free  # Q1
        assert at - arrived <= min(2 * SECOND, SECOND * 60 if timeout is None else max(0, timeout - MARGIN))  # Q2
        assert int(name) > last.get(instance, -1)  # Q3
        last[instance] = int(name)
        free = at + cost * 500 * MS
    gone = sum(turns.abandoned for turns in shop.turns)
    assert len(answers) + gone == len(requests)
