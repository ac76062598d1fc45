"""Which refused requests are kept, and what is said of them."""

import json
import tracemalloc
from pathlib import Path
from random import Random
from typing import Final

from ratelimit_service.limiter.refusals import MOST, PER_SECOND, Refusal, RefusalLog
from ratelimit_service.model import Limit, Unit
from ratelimit_service.rules.bans import FOR_EVER, make_ban
from ratelimit_service.rules.descriptor_name import read_descriptor_name
from ratelimit_service.rules.secret import DIGEST, HashValue
from ratelimit_service.system.clock import MINUTE, SECOND
from tests.admin.service import running
from tests.books import book
from tests.clocks import Clock
from tests.shop import Shop

RULES: Final = """\
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: soft, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 0}}
  - {key: never, rate_limit: {deny: true}}
  - {key: login, rate_limit: {unit: minute, requests_per_unit: 0, block_for: 15 minutes}}
  - {key: export, descriptors: [{key: id, rate_limit: {concurrency: 1, hold: 60s, place: id}}]}
  - {key: token, hash_values: true, rate_limit: {unit: year, requests_per_unit: 0}}
  - {key: quota, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 0}}
"""


class Refusing(Shop):
    """A shop of which the clock of refusals is a test's, and so is chance."""

    def __init__(self, **options: bool) -> None:
        super().__init__("domain: shop\ndescriptors: []\n", **options)
        self.limiter.book = book(RULES, hash_value=HashValue("a key"))
        self.moment = Clock(5 * SECOND)
        self.log = self.limiter.refusals = RefusalLog(self.moment, Random(4711))  # noqa: S311 - a test's chance


def test_each_refusal_says_who_and_why() -> None:
    shop = Refusing()
    shop.limiter.bans.put(
        make_ban("shop", [("user", "eve")], length=FOR_EVER, why="tries", who="me", now=0), quietly=True
    )
    asked = [["user=ada"], ["user=ada", "soft=x"], ["never=x"], ["login=x"], ["user=eve"]]
    asked += [["export=x id=1"], ["export=x id=2"], ["quota=x"], ["never=x", "user=bob", "user=bob"]]
    found: list[Refusal] = []
    for descriptors in asked:
        shop.ask(*descriptors)
        found += shop.log.drain()
    shop.ask("user=ada", override=Limit(0, Unit.HOUR, 60 * MINUTE), cost=3)
    found += shop.log.drain()

    assert [(".".join(read_descriptor_name(one.name).rule), one.why, one.words) for one in found] == [
        ("user", "limit", "over 1 per minute"),
        ("never", "deny", "always denied"),
        ("login", "block", "blocked for 15 min, over 0 per minute"),
        ("banned", "ban", "banned by me: tries"),
        ("export.id", "places", "no place free, of 1 at once"),
        ("quota", "limit", "over 0 per year"),
        ("user", "limit", "over 1 per minute"),
        ("", "limit", "over 0 per hour, sent with the request"),
    ]
    assert [read_descriptor_name(one.name).entries for one in found[:2]] == [(("user", "ada"),), (("never", "x"),)]
    assert [one.place.rpartition("/")[2] for one in found[::7]] == ["1.yaml:3", ""]
    assert (found[0].when, found[0].cost, found[-1].cost, found[0].stands_for) == (5 * SECOND, 1, 3, 1)


def test_a_secret_value_is_its_digest_and_shadow_mode_refuses_nothing() -> None:
    shop, shadow = Refusing(), Refusing(shadow_mode=True)
    shop.ask("token=secret")
    shadow.ask("token=secret")
    (refusal,) = shop.log.drain()
    ((key, value),) = read_descriptor_name(refusal.name).entries

    assert key == "token"
    assert DIGEST.fullmatch(value)
    assert shadow.log.drain() == []


def test_of_a_flood_few_are_kept_each_second_and_each_stands_for_its_share() -> None:
    shop = Refusing()
    for _ in range(100):
        for number in range(40):
            shop.ask("never=mallory" if number % 4 else "never=ada")
        shop.moment.advance(SECOND)
        shop.log.fold()
    kept = shop.log.drain()
    of_mallory = sum(one.stands_for for one in kept if "mallory" in one.name)

    assert len(kept) == MOST
    assert {one.stands_for for one in kept} == {40 / PER_SECOND}
    assert 0.7 < of_mallory / sum(one.stands_for for one in kept) < 0.8  # three of four are
    assert [one.when for one in kept] == sorted(one.when for one in kept)


def test_each_refusal_of_a_second_is_kept_as_likely_as_another() -> None:
    shop, times = Refusing(), [0] * 20
    for _ in range(500):
        for number in range(20):
            shop.ask(f"never={number}")
        for one in shop.log.drain():
            times[int(read_descriptor_name(one.name).entries[0][1])] += 1

    assert sum(times) == 500 * PER_SECOND
    assert 85 < min(times) <= max(times) < 165  # 125 each, and a deviation of 10


def test_what_is_kept_is_bounded_whatever_names_are() -> None:
    shop = Refusing()
    tracemalloc.start()
    for number in range(MOST):
        shop.ask(f"never=\U0001f600{number:09000}")
        shop.moment.advance(SECOND)
        shop.log.fold()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert len(shop.log.drain()) == MOST
    assert used < 800_000


def test_they_are_shown_with_the_newest_first(tmp_path: Path) -> None:
    with running(tmp_path, RULES) as service:
        for user in ("ada", "ada", "eve\x9b", "eve\x9b"):
            service.post({"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": user}]}]})
        refusals = json.loads(service.get("/status/refusals").text)["refusals"]

    assert [one["entries"] for one in refusals] == [[["user", "eve_"]], [["user", "ada"]]]
    assert refusals[1] | {"when": 0} == {
        "when": 0,
        "domain": "shop",
        "rule": ["user"],
        "entries": [["user", "ada"]],
        "why": "limit",
        "words": "over 1 per minute",
        "place": f"{tmp_path}/rules.yaml:3",
        "cost": 1,
        "stands_for": 1,
    }
