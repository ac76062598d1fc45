"""The hottest descriptors, as `/status` and `/status/hot` have them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.admin.service import Service, running

RULES = """\
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 3}}
  - {key: plan, value: gold.1, descriptors: [{key: path, rate_limit: {unit: year, requests_per_unit: 9999}}]}
"""


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[Service]:
    """One that was asked by two users, and about more paths than are shown."""
    with running(tmp_path, RULES) as service:
        ask(service, ("user", "ada"), times=5)
        ask(service, ("user", "bob\x9b"), times=4)
        for number in range(25):
            ask(service, ("plan", "gold.1"), ("path", str(number)), times=1 + (number == 24), cost=100 - number)
        yield service


def ask(service: Service, *entries: tuple[str, str], times: int = 1, cost: int = 1) -> None:
    listed = [{"key": key, "value": value} for key, value in entries]
    for _ in range(times):
        service.post({"domain": "shop", "descriptors": [{"entries": listed}], "hitsAddend": cost})


def hot(service: Service, path: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(service.get(path).text)
    return found


def of(user: str, hits: int, refused: int) -> dict[str, Any]:
    return {"domain": "shop", "rule": ["user"], "entries": [["user", user]], "hits": hits, "refused": refused}


def test_the_hottest_are_shown_by_hits_and_by_refusals(asked: Service) -> None:
    found = hot(asked, "/status/hot")
    first = {
        "domain": "shop",
        "rule": ["plan_gold.1", "path"],
        "entries": [["plan", "gold.1"], ["path", "24"]],
        "hits": 2,
        "refused": 0,
    }

    assert (found["hits"], found["refused"], found["skipped"]) == (9 + 26, 3, 0)
    assert (found["error"], found["refused_error"]) == (0, 0)
    assert 0 <= found["seconds"] < 600
    assert found["most_refused"] == [of("ada", 5, 2), of("bob_", 4, 1)]
    assert first in found["most_hits"]
    assert [shown["hits"] for shown in found["most_hits"]] == [5, 4, 2] + 17 * [1]


@pytest.mark.parametrize("path", ["/status", "/status/now", "/status/recent"])
def test_the_page_gets_them_with_everything_else(asked: Service, path: str) -> None:
    assert hot(asked, path)["hot"]["most_refused"] == [of("ada", 5, 2), of("bob_", 4, 1)]


def test_those_of_one_rule_alone(asked: Service) -> None:
    users, paths = (hot(asked, f"/status/hot?domain=shop&rule={rule}") for rule in ("user", "plan_gold.1.path"))

    assert users["most_hits"] == users["most_refused"] == [of("ada", 5, 2), of("bob_", 4, 1)]
    assert len(paths["most_hits"]) == 20
    assert paths["most_refused"] == []
    assert users["hits"] == paths["hits"]
    assert hot(asked, "/status/hot?domain=other&rule=user")["most_hits"] == []
    assert hot(asked, "/status/hot?domain=shop&rule=nothing")["most_hits"] == []


@pytest.mark.parametrize("query", ["domain=shop", "rule=user"])
def test_half_a_rule_is_an_error(asked: Service, query: str) -> None:
    reply = asked.get(f"/status/hot?{query}")

    assert (reply.status, reply.text) == (
        400,
        "name a rule: /status/hot?domain=D&rule=PATH, or /status/hot for all\n",
    )
