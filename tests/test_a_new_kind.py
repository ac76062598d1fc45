"""A kind of limit is a module, its Lua twin, its class in `KINDS`, its option and how that is read: nothing else."""

import json
from collections.abc import Generator
from pathlib import Path
from random import Random
from typing import TypeVar

import pytest
from click.testing import CliRunner
from redis import Redis as Client

from ratelimit_service.algorithms import NAMES, open_algorithm
from ratelimit_service.algorithms.kinds import KINDS
from ratelimit_service.cli import main
from ratelimit_service.model import Limit, Unit
from ratelimit_service.rules.reading import limit as reading
from ratelimit_service.rules.rule import Rule
from ratelimit_service.rules.syntax.options import BY_MAP, MapType, Option
from ratelimit_service.rules.syntax.values import DURATION
from ratelimit_service.server.series import merge_gauges, sum_tallies
from ratelimit_service.system.clock import SECOND
from tests.algorithms.test_twins import Batch, hit, in_memory, in_redis
from tests.shop import Shop, summary
from tests.spaced import Spaced

RULES = """\
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 3, gap: 10s}
"""


T = TypeVar("T")


def last_of(steps: Generator[str, None, dict[str, T]]) -> dict[str, T]:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: dict[str, T] = end.value
            return found


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    option = Option("gap", (MapType.RATE_LIMIT,), DURATION, "The least time between two requests.")
    monkeypatch.setitem(KINDS, "spaced", Spaced)
    monkeypatch.setitem(BY_MAP[MapType.RATE_LIMIT], "gap", option)
    monkeypatch.setitem(reading.KINDS, "gap", reading.KindForm(lambda _, options, __: Spaced(options["gap"])))


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    file = tmp_path / "rules.yaml"
    file.write_text(RULES)
    return file


@pytest.mark.parametrize("name", NAMES)
def test_it_is_charged_in_redis_as_in_memory(client: Client, name: str) -> None:
    chance, now = Random(name), 1_790_000_000 * SECOND  # noqa: S311 - the name tells the history
    limit = Limit(5, Unit.SECOND, 3 * SECOND, count_refused=False, kind=Spaced(SECOND // 2))
    spaced = Rule("shop", (), limit, open_algorithm(name))
    history: list[tuple[int, Batch]] = []
    for _ in range(60):
        now += chance.choice([0, SECOND // 5, SECOND, 2 * SECOND])
        hits = [
            hit(spaced, chance.choice("ab"), chance.choice([1, 1, 2, 0, -1]), chance.choice([0, 1])) for _ in range(3)
        ]
        history.append((now, [sorted(hits, key=lambda each: each.together)]))

    decisions = in_redis(client, history)

    assert decisions == in_memory(history)
    assert {each.allowed for each in decisions} == {True, False}


def test_it_decides_is_tallied_and_has_a_gauge_and_says_why_it_refuses() -> None:
    shop = Shop(RULES)

    assert summary(shop.ask("user=ada")) == [(False, 2)]
    assert summary(shop.ask("user=ada")) == [(True, 2)]
    shop.clock.now += 10 * SECOND
    assert summary(shop.ask("user=ada")) == [(False, 1)]
    ((_, shown),) = last_of(sum_tallies(shop.limiter, ".".join)).values()
    assert "spared" in shown
    ((gauges, names),) = last_of(merge_gauges(shop.limiter, ".".join)).values()
    assert (set(names), gauges.places_taken) == ({"places_taken"}, 2)
    (refusal,) = shop.limiter.refusals.drain()
    assert (refusal.why, refusal.words) == ("gap", "too soon, or over 3 per minute")


def test_explain_says_it_in_words_and_as_json(rules: Path) -> None:
    environ = {"RULES_PATH": str(rules), "MERGE_DOMAIN_CONFIG": None}

    text = CliRunner().invoke(main, ["explain", "shop", "user=ada"], env=environ).stdout
    found = CliRunner().invoke(main, ["explain", "shop", "user=ada", "--json"], env=environ).stdout

    assert "3 requests per minute (at least 10 s apart)" in text
    ((rule,),) = [each["rules"] for each in json.loads(found)["descriptors"]]
    assert rule["gap"] == 10


def test_check_has_its_warnings(rules: Path) -> None:
    rules.write_text(RULES.replace("10s", "2m"))

    result = CliRunner().invoke(main, ["check", str(rules)], env={"MERGE_DOMAIN_CONFIG": None})

    assert "the gap is longer than the window [gap]" in result.output


def test_simulate_counts_by_it(rules: Path, tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    at = ("00:00", "00:05", "00:10", "00:25")
    log.write_text("".join(f'1.1.1.1 - ada [05/Jan/2026:12:{each} +0000] "GET / HTTP/1.1" 200 5\n' for each in at))

    given = ["simulate", str(rules), "--descriptor", "user={user}", "--log", str(log), "--json"]
    found = json.loads(CliRunner().invoke(main, given, env={"MERGE_DOMAIN_CONFIG": None}).stdout)

    assert [(side["allowed"], side["refused"]) for side in found["sides"]] == [(3, 1)]
