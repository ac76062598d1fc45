"""Regions that share limits, far from each other: what each allows, what waits, and what a cut costs."""

import time
from pathlib import Path

from tests.processes import eventually
from tests.stories.regions import open_regions

ONE_REDIS = """
domain: shop
descriptors:
  - {key: login, rate_limit: {unit: year, requests_per_unit: 10, on_store_failure: closed}}
  - {key: elsewhere, rate_limit: {unit: year, requests_per_unit: 10, on_store_failure: open}}
"""


def test_a_redis_far_away_is_asked_once_a_call_and_again_after_a_cut(tmp_path: Path) -> None:
    with open_regions(tmp_path, ONE_REDIS, {"REDIS_URL": "{home}", "STORE_DEADLINE": "1s"}) as regions:
        home, far = regions["eu"].redis, regions["ap"]
        assert far.ask("login") == {"OK": 1}  # with the first, Redis learns the script
        calls, begun = home.script_calls(), time.monotonic()
        assert far.ask("login") == {"OK": 1}
        assert time.monotonic() - begun > 0.14
        assert home.script_calls() == calls + 1
        assert regions["us"].ask("login", 20) == {"OK": 8, "OVER_LIMIT": 12}

        assert regions["us"].ask("elsewhere", 10) == {"OK": 10}
        far.place.cut()
        assert far.ask("elsewhere") == {"OK": 1}
        far.place.heal()
        eventually(lambda: far.ask("elsewhere") == {"OVER_LIMIT": 1}, "what the others counted is known again")
