"""What the past makes of events, in bounds."""

import json
from typing import Any

from ratelimit_service.server.events import MAX_BYTES, MAX_MARKS, EventLog, Mark
from ratelimit_service.stores.redis.faults import Fault, Outage
from ratelimit_service.telemetry.logs import pass_events


def shown(past: EventLog) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads("".join(past.text()))["events"]
    return events


def lost(server: str = "redis:6379", since: str = "2026-11-22T13:00:00.500Z") -> dict[str, Any]:
    return {"event": "store_lost", "server": server, "cause": "refused", "policy": "open", "since": since}


def regained(server: str = "redis:6379") -> dict[str, Any]:
    return {"event": "store_regained", "server": server}


def banned(made: str = "2026-11-22T13:00:00Z", value: str = "ada") -> dict[str, Any]:
    return {"event": "banned", "domain": "shop", "entries": [f"user={value}"], "who": "me", "made": made}


def ended(made: str = "2026-11-22T13:00:00Z") -> dict[str, Any]:
    return {"event": "ban_ended", "domain": "shop", "entries": ["user=ada"], "made": made, "reason": "lifted by you"}


START = 1_795_352_400


def test_an_outage_lasts_from_the_first_worker_that_loses_the_server_until_none_has_it_lost() -> None:
    past = EventLog()
    past.record(START + 1, "lost", lost(), 1)
    past.record(START + 2, "lost too", lost(since="2026-11-22T13:00:01Z"), 2)
    past.record(START + 3, "another is lost", lost("other:6379"), 1)
    past.record(START + 4, "back", regained(), 2)
    before = [event["until"] for event in shown(past) if event["what"] == "lost"]
    for worker in (1, 2):
        past.record(START + 5, "still lost: no memory", {"event": "store_still_lost", "server": "redis:6379"}, worker)
    past.record(START + 6, "back", regained(), 1)

    (over,) = [event for event in shown(past) if event["what"] == "lost"]
    assert before == [None]
    assert (over["kind"], over["from"], over["until"]) == ("outage", START + 0.5, START + 6)
    assert over["details"] == ["still lost: no memory", "back"]
    assert [event["until"] for event in shown(past) if event["what"] == "another is lost"] == [None]


def test_how_long_a_worker_missed_the_server_is_not_said_of_the_outage() -> None:
    past = EventLog()
    past.record(START + 1, "lost", lost(), 1)
    past.record(START + 361, "store regained: Redis at redis:6379, after 149.4 s", regained(), 1)

    (over,) = shown(past)
    assert over["details"] == ["store regained: Redis at redis:6379"]


def test_charts_mark_the_events_of_a_time_and_bans_make_way() -> None:
    past = EventLog()
    past.record(START, "lost", lost())
    past.record(START + 10, "loaded", {"event": "rules_loaded"})
    past.record(START + 15, "back", regained())
    past.record(START + 20, "reset", {"event": "counters_reset", "who": "me"})
    for number in range(MAX_MARKS):
        past.record(START + 30, "banned", banned("2026-11-22T13:00:30Z", str(number)))

    outage, loaded, ban = (
        Mark(*fields)
        for fields in (
            ("outage", START + 0.5, START + 15),
            ("reload", START + 10, START + 10),
            ("ban", START + 30, None),
        )
    )
    assert past.marks(START - 60) == [loaded, outage, *[ban] * (MAX_MARKS - 2)]
    assert past.marks(START + 12)[:2] == [outage, ban]
    assert past.marks(START + 31) == []


def test_an_outage_does_not_outlast_the_only_worker_that_told_of_it() -> None:
    past = EventLog()
    past.record(START + 1, "lost", lost(), 2)
    past.record(START + 4, "worker 2 was killed", {"event": "worker_ended", "number": 2}, 0)

    assert [(event["kind"], event["until"]) for event in shown(past)] == [("worker", START + 4), ("outage", START + 4)]


def test_a_ban_that_several_workers_tell_of_is_one() -> None:
    past = EventLog()
    for worker in (1, 2):
        past.record(START + 1, "banned: ada", banned(), worker)
    past.record(START + 3, "no longer", ended(), 1)
    past.record(START + 4, "banned: ada again", banned("2026-11-22T13:00:04Z"), 1)
    past.record(START + 5, "no longer", ended(), 2)  # comes late, and is of the first ban
    past.record(START + 6, "banned: ada", banned(), 3)  # a worker that has just started

    assert [(event["what"], event["from"], event["until"], event["details"]) for event in shown(past)] == [
        ("banned: ada again", START + 4, None, []),
        ("banned: ada", START, START + 3, ["lifted by you"]),
    ]


def test_a_ban_that_is_made_again_in_the_same_words_is_another_one() -> None:
    past = EventLog()
    past.record(START, "banned: ada for ever", banned())
    past.record(START + 3, "no longer", ended())
    past.record(START + 9, "banned: ada for ever", banned("2026-11-22T13:00:09Z"))

    assert [(event["from"], event["until"]) for event in shown(past)] == [(START + 9, None), (START, START + 3)]


def test_a_ban_of_the_same_entries_takes_the_place_of_the_one_before() -> None:
    past = EventLog()
    past.record(START, "banned: for an hour", banned(), 0)
    past.record(START + 9, "banned: for ever", banned("2026-11-22T13:00:09Z"), 0)

    assert [(event["what"], event["until"], event["details"]) for event in shown(past)] == [
        ("banned: for ever", None, []),
        ("banned: for an hour", START + 9, ["replaced by me"]),
    ]


def test_the_past_is_bounded_and_forgets_what_lasts_last() -> None:
    past = EventLog()
    past.record(START, "lost", lost())
    for number in range(1, 100):
        problems = [f"rules.yaml:{number}:1: " + "\x1b😀" * 1000] * 100
        past.record(START + number, "rules not loaded", {"event": "rules_refused", "problems": problems})

        events = shown(past)
        assert len("".join(past.text())) <= MAX_BYTES
        assert (events[0]["from"], events[-1]["kind"]) == (START + number, "outage")
        assert all(len(detail) < 400 and "\x1b" not in detail for event in events for detail in event["details"])


def test_thousands_of_bans_are_within_the_bound_and_push_out_nothing_newer() -> None:
    past = EventLog()
    for number in range(3000):
        past.record(START, f"banned: {number}", banned(value=str(number)))
    past.record(START + 1, "rules are loaded again", {"event": "reload_asked", "who": "SIGHUP"})

    assert len("".join(past.text())) <= MAX_BYTES
    assert len(shown(past)) > 300
    assert [event["what"] for event in shown(past)[:2]] == ["rules are loaded again", "banned: 2999"]


def test_an_event_that_is_none_of_these_is_an_act_of_who_did_it() -> None:
    past = EventLog()
    past.record(START, "reset by me: 2 counters\nand a second line", {"event": "counters_reset", "who": "me"})

    (act,) = shown(past)
    assert (act["kind"], act["from"], act["until"], act["who"]) == ("act", START, START, "me")
    assert (act["what"], act["details"]) == ("reset by me: 2 counters", [])


def test_the_outage_of_a_server_that_leaves_its_cluster_is_over() -> None:
    past = EventLog()
    end = pass_events(past.record)
    try:
        outage = Outage("redis:7001", "open")
        outage.begin(Fault("refused"))
        lasts = [event["until"] for event in shown(past)]
        outage.retire()
    finally:
        end()

    (over,) = shown(past)
    assert lasts == [None]
    assert over["until"] >= over["from"]
    assert over["details"] == ["Redis at redis:7001 is not used any more"]
