"""What another limit would have refused lately: beside what it refuses when the same comes again."""

import asyncio
import json
from pathlib import Path
from typing import Any, Final

import pytest

from ratelimit_service.model import Descriptor, Request
from ratelimit_service.server.admin.what_if import Asked, WhatIf, would_refuse
from ratelimit_service.server.state import ServiceState
from ratelimit_service.server.top_descriptors import TopDescriptors
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.system.clock import MINUTE
from tests.admin.service import Service, running
from tests.books import book
from tests.clocks import Clock
from tests.verdicts import check

USERS: Final = {"ada": 1, "bob": 3, "eve": 12, "joe": 30}
"""With so many requests a minute."""


def asked_for_nine_minutes(folder: Path, requests: int, *options: str) -> tuple[WhatIf, dict[str, int]]:
    """What a service says whose users ask that much of a limit per minute; and how many it refused, by user."""
    clock = Clock()
    service = Service(folder, store=MemoryStore(1000, clock))
    limit = ", ".join((f"rate_limit: {{unit: minute, requests_per_unit: {requests}}}", *options))
    service.limiter.book = book(f"domain: shop\ndescriptors: [{{key: user, {limit}}}]\n")
    state = ServiceState(service.limiter, service.method, service.loading, service.health, service.store.metrics)
    hot, refused = TopDescriptors(state, clock), dict.fromkeys(USERS, 0)
    for _ in range(9):
        for user, times in USERS.items():
            for _ in range(times):
                verdict = check(service.limiter, Request("shop", [Descriptor((("user", user),))]))
                refused[user] += not verdict.allowed
        hot.look()
        clock.advance(MINUTE)
    return WhatIf(state, hot), {user: number for user, number in refused.items() if number}


def answer(of: WhatIf, requests: int | None = None) -> dict[str, Any]:
    return asyncio.run(of.answer("shop", "user", None if requests is None else str(requests)))


@pytest.mark.parametrize("other", [0, 1, 2, 5, 10, 20, 30, 100])
def test_what_comes_evenly_is_told_as_it_would_have_been(tmp_path: Path, other: int) -> None:
    for name in ("now", "then"):
        (tmp_path / name).mkdir()
    what_if, was = asked_for_nine_minutes(tmp_path / "now", 5)
    _, then = asked_for_nine_minutes(tmp_path / "then", other)

    found = answer(what_if, other)

    assert (found["seconds"], found["hits"], found["keys"]) == (540, 414, 4)
    assert found["was"] == {"refused": sum(was.values()), "keys": len(was)} == {"refused": 288, "keys": 2}
    assert found["would"] == {"refused": sum(then.values()), "keys": len(then)}
    assert found["estimate"] is (other != 5)
    assert found["yaml"] == f"requests_per_unit: {other}"


def test_of_a_rule_in_shadow_mode_both_numbers_are_estimates(tmp_path: Path) -> None:
    what_if, _ = asked_for_nine_minutes(tmp_path, 5, "shadow_mode: true")

    found = answer(what_if, 20)

    assert (found["was"], found["would"]) == ({"refused": 288, "keys": 2}, {"refused": 90, "keys": 1})
    assert found["estimate"] is True


@pytest.mark.parametrize(
    ("requests", "refused"),
    [(100, 90), (150, 40), (1000, 0), (95, 95), (0, 100)],
)
def test_a_window_that_is_longer_than_the_counts_has_room_for_as_many_more(requests: int, refused: float) -> None:
    assert would_refuse(Asked(100, 90), 100, requests, 0.1) == refused


def test_it_is_asked_by_http_and_says_what_it_cannot_tell(tmp_path: Path) -> None:
    rules = """\
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 3}}
  - {key: id, rate_limit: {concurrency: 5, hold: 60s, place: id}}
"""
    with running(tmp_path, rules) as service:
        for _ in range(10):
            service.post({"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "ada"}]}]})
        now, then, place, none, wrong, nothing = (
            service.get(f"/status/what-if{query}")
            for query in (
                "?domain=shop&rule=user",
                "?domain=shop&rule=user&requests=8",
                "?domain=shop&rule=id&requests=8",
                "?domain=shop&rule=nobody",
                "?domain=shop&rule=user&requests=-1",
                "",
            )
        )

    assert json.loads(now.text) | {"seconds": 0} == {
        "seconds": 0,
        "limit": "3 per year",
        "requests": 3,
        "keys": 1,
        "hits": 10,
        "was": {"refused": 7, "keys": 1},
        "would": {"refused": 7, "keys": 1},
        "estimate": False,
        "error": 0,
        "skipped": 0,
        "place": f"{tmp_path}/rules.yaml:3",
        "yaml": "requests_per_unit: 3",
    }
    assert json.loads(then.text)["would"] == {"refused": 2, "keys": 1}
    assert (place.status, none.status, wrong.status, nothing.status) == (400, 404, 400, 400)
    assert "only for a limit that counts by itself in a window" in place.text
