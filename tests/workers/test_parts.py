"""The parts that need no process: handoffs, sums, CPUs, and what is handed over."""

import asyncio
import json
import os
import socket
from functools import partial
from pathlib import Path

import pytest

from ratelimit_service.model import Descriptor, Limit, Request, Unit
from ratelimit_service.rules.sources.yaml_text import YamlText
from ratelimit_service.server.engine import Engine, rules_parser
from ratelimit_service.server.series import NUMBERS, add_tally, drain_tally, tallies_of
from ratelimit_service.server.workers.channel import PIECE, Handoff, line_of, received, settings_as_json
from ratelimit_service.server.workers.report import MergedCounts, MergedStoreStatus, Reporter
from ratelimit_service.server.workers.slot import SlotState, WorkerSlot
from ratelimit_service.server.workers.watchdog import why_kill
from ratelimit_service.settings import Settings, load_settings
from ratelimit_service.stores.store import LostServer
from ratelimit_service.system.cpus import usable_cpus
from ratelimit_service.telemetry.gauges import Gauges
from ratelimit_service.telemetry.tally import Tally
from tests.books import book
from tests.verdicts import check

TWO_RULES = """
    domain: shop
    descriptors:
      - {key: a, rate_limit: {unit: day, requests_per_unit: 1}}
      - {key: b, rate_limit: {unit: day, requests_per_unit: 1}}
"""
SUMMARY = {"serving": True, "healthy": True, "counters": 0, "lost": [], "warnings": [], "bans": [0, []], "metrics": []}
"""What a slot reads of a report."""


@pytest.mark.parametrize(
    ("silence", "still", "why"),
    [
        (29.0, 29.0, ""),
        (31.0, 0.1, ""),
        (31.0, 31.0, "sent no message and used no CPU for 30 s"),
        (299.0, 29.0, ""),
        (301.0, 0.1, "sent no message for 300 s, though it is busy"),
    ],
)
def test_a_silent_worker_is_killed_when_it_stands_still_or_computes_for_ever(
    silence: float, still: float, why: str
) -> None:
    assert why_kill(silence, still) == why


@pytest.mark.parametrize(
    ("state", "slow", "silent", "message"),
    [
        (SlotState.ABSENT, SlotState.ABSENT, SlotState.ABSENT, SlotState.ABSENT),
        (SlotState.STARTING, SlotState.STARTING, SlotState.STARTING, SlotState.STARTING),
        (SlotState.READY, SlotState.SLOW, SlotState.SILENT, SlotState.READY),
        (SlotState.SLOW, SlotState.SLOW, SlotState.SILENT, SlotState.READY),
        (SlotState.SILENT, SlotState.SILENT, SlotState.SILENT, SlotState.READY),
    ],
)
def test_events_change_the_state_of_a_slot_as_its_table_says(
    state: SlotState, slow: SlotState, silent: SlotState, message: SlotState
) -> None:
    slots = [WorkerSlot(number) for number in (1, 2, 3)]
    for slot in slots:
        slot.state = state
    slots[0].mark_slow()
    slots[1].mark_silent()
    slots[2]._receive(["connections", 0, 0])

    assert [slot.state for slot in slots] == [slow, silent, message]
    assert slots[2].accepting == (message is SlotState.READY)


def test_what_waits_in_a_handoff_is_taken_or_taken_back_never_both() -> None:
    handoff = Handoff()
    pairs = [socket.socketpair() for _ in range(3)]
    for near, _ in pairs:
        assert handoff.put(near)
    first = next(received(handoff.worker_end))
    back = handoff.take_back()

    assert first is not None
    for number, end in enumerate([first, *back]):
        end.sendall(b"%d" % number)
    assert [far.recv(1) for _, far in pairs] == [b"0", b"1", b"2"]
    assert list(received(handoff.worker_end)) == handoff.take_back() == []
    for end in (first, *back, *(far for _, far in pairs)):
        end.close()
    handoff.close()


def test_a_handoff_says_when_there_is_no_room() -> None:
    handoff = Handoff()
    near, far = socket.socketpair()
    copies = [near.dup()]
    while handoff.put(copies[-1]):
        copies.append(near.dup())
    waiting = handoff.take_back()

    assert len(waiting) == len(copies) - 1 > 64
    assert handoff.put(copies[-1])
    for connection in (near, far, *waiting, *handoff.take_back()):
        connection.close()
    handoff.close()


@pytest.mark.parametrize(
    ("own", "files", "cpus"),
    [
        ("0::/\n", {}, 10**6),
        ("0::/\n", {"cpu.max": "max 100000"}, 10**6),
        ("0::/\n", {"cpu.max": "150000 100000"}, 1),
        ("0::/\n", {"cpu.max": "50000 100000"}, 1),
        ("12:cpu:/x\n0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "100000 100000"}, 1),
        ("0::/not/here\n", {"cpu.max": "100000 100000"}, 1),
        ("0::/\n", {"cpu.max": "nonsense"}, 10**6),
        ("1:cpu:/\n", {"cpu.max": "100000 100000"}, 10**6),
    ],
)
def test_cpus_are_those_of_the_affinity_or_what_the_cgroup_may_use(
    tmp_path: Path, own: str, files: dict[str, str], cpus: int
) -> None:
    (tmp_path / "own").write_text(own)
    for name, text in files.items():
        file = tmp_path / "cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    assert usable_cpus(tmp_path / "own", tmp_path / "cgroup") == min(cpus, len(os.sched_getaffinity(0)))


def test_settings_are_handed_over_whole() -> None:
    given, _ = load_settings(
        {
            "WORKERS": "2",
            "TRANSPORT": "http2",
            "REDIS_URL": "redis.example:6379",
            "REDIS_AUTH": "user:secret",
            "RULES_PATH": "/rules",
            "GRPC_HOST": "127.0.0.1,::1",
            "EXTRA_TAGS": "zone:a,rack:b",
            "USE_PROMETHEUS": "true",
            "PROMETHEUS_ADDR": "127.0.0.1:9999",
            "STORE_DEADLINE": "20ms",
            "ON_STORE_FAILURE": "local",
        }
    )
    plain = load_settings({})[0]

    assert Settings.model_validate(settings_as_json(given)) == given
    assert Settings.model_validate(settings_as_json(plain)) == plain
    assert settings_as_json(given)["redis_auth"] == "user:secret"


def test_gauges_are_those_of_all_workers_as_each_reported_them_last() -> None:
    slots = [WorkerSlot(1), WorkerSlot(2)]
    sums = MergedCounts(load_settings({})[0], slots)
    sums.publish(rules := book(TWO_RULES))
    first, second = (rule.tally for rule in rules.rules)

    def report(slot: WorkerSlot, *pieces: object) -> None:
        for piece in pieces:
            slot._receive(["gauges", piece])
        slot._receive(["report", 1, SUMMARY])

    before = sums.gauges
    report(slots[0], [[["shop", "a"], [1, 20, 0, 0, 0]]], [[["shop", "b"], [0, 0, 2, 0.5, 0]]])
    slots[1]._receive(["gauges", [[["shop", "a"], [9, 9, 9, 9, 9]]]])  # its report has not come yet
    one = sums.gauges
    slots[1].reset()
    report(slots[1], [[["shop", "a"], [2, 30, 0, 0, 0]], [["shop", "gone"], [1, 1, 0, 0, 0]]])
    both = sums.gauges
    report(slots[0])

    assert before == {}
    assert one == {first: Gauges(1, 20), second: Gauges(waiting=2, longest_wait_seconds=0.5)}
    assert both == {**one, first: Gauges(3, 50)}
    assert sums.gauges == {first: Gauges(2, 30)}


def test_a_report_is_sent_in_pieces_however_long_the_names_of_clients_are() -> None:
    settings, _ = load_settings({})
    engine, sums = Engine(settings), MergedCounts(settings, [WorkerSlot(1)])
    limiter = engine.limiter
    detailed = (
        "domain: shop\ndescriptors: [{key: a, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 1}}]"
    )
    limiter.book = book(detailed)
    sums.publish(book(detailed))
    limit = Limit(1, Unit.DAY, Unit.DAY.window)
    for number in range(1500):
        for character in ("\U0001f600", "\x01"):
            name = f"{number}{character * 900}"
            check(limiter, Request("shop", [Descriptor((("a", name),)), Descriptor(((name, name),))]))
            check(limiter, Request("shop", [Descriptor((("b", name),), override=limit)]))
            check(limiter, Request(name, []))
    lines: list[bytes] = []
    asyncio.run(Reporter(engine).report(lambda *message: lines.append(line_of(message)), 1))
    for line in lines:
        match json.loads(line):
            case ["tallies", piece]:
                sums.add_tallies(piece)
            case ["report", 1, summary]:
                sums.add(summary)
            case [kind, piece]:
                sums.add_piece(kind, piece)

    assert max(map(len, lines)) < PIECE + 100
    assert sum(tally.total_hits for rule in sums._rules.values() for _, tally in tallies_of(rule)) == 3000
    assert [sum(tally.total_hits for _, tally in each.items()) for each in (sums.overrides, sums.unknown_domains)] == [
        3000,
        3000,
    ]
    assert sums.unmatched.seen().total == 3000
    assert sums.top.drain().hits == 6000
    assert sums.domains.of("shop").unmatched == 3000


def _add_line(lines: list[bytes], *message: object) -> None:
    lines.append(line_of(message))


RESERVES = """\
domain: shop
settle: settled
descriptors: [{key: id, rate_limit: {unit: day, requests_per_unit: 9000, reserve: {id: id, hold: 5m, estimate: 40}}}]
"""


def test_a_reservation_that_one_worker_makes_and_another_settles_is_settled_in_their_sums() -> None:
    """They share a store, here one in memory; a report has what is new since the last one."""
    settings, _ = load_settings({})
    one, other = Engine(settings), Engine(settings)
    other.limiter.store = one.limiter.store
    sums = MergedCounts(settings, [])
    for each in (one.limiter, other.limiter):
        each.book = book(RESERVES)
    sums.publish(merged := book(RESERVES))

    def ask(engine: Engine, *entries: tuple[str, str], cost: int) -> None:
        plan = engine.limiter.plan(Request("shop", [Descriptor(entries, cost, hits_addend=cost)]))
        one.limiter.store.hit(plan.charged, lambda _: None)
        engine.limiter._judge(plan)

    def report() -> None:
        for engine in (one, other):
            lines: list[bytes] = []
            asyncio.run(Reporter(engine).report(partial(_add_line, lines), 1))
            for kind, piece, *_ in map(json.loads, lines):
                if kind == "reservations":
                    sums.add_piece(kind, piece)

    ask(one, ("id", "a"), cost=60)
    ask(one, ("id", "b"), cost=60)
    ask(other, ("id", "a"), ("settled", "1"), cost=100)
    report()
    report()
    ask(other, ("id", "b"), ("settled", "1"), cost=0)
    (rule,) = merged.reserving
    before = rule.reservations
    report()

    assert (before.reservations_made, before.reservations_open, before.reservations_open_units) == (2, 1, 60)
    assert (rule.reservations.reservations_settled, rule.reservations.reservations_open_units) == (2, 0)
    assert (rule.reservations.settled_most, rule.reservations.overran_lately) == (100, 1)


def test_every_number_of_a_tally_is_taken_and_added() -> None:
    one, other = Tally(), Tally()
    names = [name for name in Tally.__slots__ if name != "looks"]  # by which a process counts other numbers
    for value, name in enumerate(names, 1):
        setattr(one, name, value)
        setattr(other, name, 100)
    add_tally(other, drain_tally(one) or ())

    assert [getattr(other, name) - 100 for name in names] == [*range(1, len(names) + 1)]
    assert drain_tally(one) is None


def test_the_store_is_as_the_worker_sees_it_that_sees_least_of_it() -> None:
    slots = [WorkerSlot(number) for number in (1, 2, 3)]
    store = MergedStoreStatus("redis", slots)
    seen = [(store.healthy, store.counters)]
    for slot, counters in zip(slots, (7, 9, 1000), strict=True):
        slot.healthy, slot.counters = True, counters
    slots[0].state = slots[1].state = SlotState.READY
    seen.append((store.healthy, store.counters))
    slots[1].healthy = False
    seen.append((store.healthy, store.counters))

    assert seen == [(False, 0), (True, 9), (False, 9)]


def test_a_server_that_several_workers_have_lost_is_one_since_the_first_of_them() -> None:
    slots = [WorkerSlot(number) for number in (1, 2, 3)]
    store = MergedStoreStatus("redis", slots)
    first = LostServer("redis:6379", "reset", "connection lost", 100.0, "open")
    other = LostServer("redis:6380", "refused", "connection refused", 300.0, "open")
    slots[0].lost = [LostServer("redis:6379", "refused", "connection refused", 200.0, "open"), other]
    slots[1].lost = [first]
    slots[2].lost = [LostServer("redis:6381", "refused", "connection refused", 50.0, "open")]

    assert store.lost == ()
    slots[0].state = slots[1].state = SlotState.READY
    assert list(store.lost) == [first, other]


def test_what_several_workers_warn_of_is_said_once() -> None:
    slots = [WorkerSlot(number) for number in (1, 2, 3)]
    for slot in slots:
        slot.warnings = ["two regions are called eu"]
    slots[0].state = slots[1].state = SlotState.READY

    assert MergedStoreStatus("redis", slots).warnings == ["two regions are called eu"]


def test_counts_from_before_a_reload_go_where_one_process_would_have_them() -> None:
    """Meanwhile the rule tells values apart, or no longer does: the worker has yet to hear of it."""
    rules = b"domain: shop\ndescriptors: [{key: user, DETAILED rate_limit: {unit: day, requests_per_unit: 9}}]\n"
    settings, _ = load_settings({})
    tallies = {}
    for detailed in (b"", b"detailed_metric: true,"):
        sources = [YamlText("shop.yaml", rules.replace(b"DETAILED", detailed))]
        book = rules_parser(settings)(sources)
        sums = MergedCounts(settings, [])
        sums.publish(book)
        for value_path in ((), ("shop", "user_ada")):
            sums.add_tallies([(("shop", "user"), value_path, [1] * len(NUMBERS))])
        (rule,) = book.rules
        shown = rule.tallies.items() if rule.tallies is not None else [(rule.path, rule.tally)]
        tallies[detailed] = {path: tally.total_hits for path, tally in shown}

    assert tallies == {b"": {("shop", "user"): 2}, b"detailed_metric: true,": {("shop", "user_ada"): 1}}
