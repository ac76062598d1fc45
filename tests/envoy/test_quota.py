"""Quotas (RLQS) with real Envoys, whose filter is the one that the documents have; counted at their answers."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest
import yaml

from tests.clocks import stay_within
from tests.envoy.proxy import Envoy, Json, bootstrap, route, start_envoy
from tests.processes import ROOT, Service, ask, eventually, start_service


def rules(limit: int, unit: str) -> str:
    return f"domain: shop\ndescriptors: [{{key: user, rate_limit: {{{unit}, requests_per_unit: {limit}}}}}]\n"


def filter_of_documents() -> Any:
    text = (ROOT / "docs" / "rlqs.md").read_text(encoding="utf-8")
    return yaml.safe_load(text.partition("```yaml\n")[2].partition("```")[0])


def with_quotas(service: Service) -> Json:
    made = bootstrap([service.grpc_port], [route("/")])
    (ingress, _) = made["static_resources"]["listeners"]
    manager = ingress["filter_chains"][0]["filters"][0]["typed_config"]
    manager["http_filters"][0] = filter_of_documents()
    return made


@contextmanager
def envoys(service: Service, folder: Path, number: int) -> Iterator[list[Envoy]]:
    with ExitStack() as stack:
        folders = [folder / f"envoy{each}" for each in range(number)]
        yield [stack.enter_context(start_envoy(each, with_quotas(service))) for each in folders]


def test_an_envoy_spends_the_limit_of_the_rule_and_no_more(tmp_path: Path, transport: str) -> None:
    with (
        start_service(tmp_path / "service", rules(30, "unit: year"), {"TRANSPORT": transport}) as service,
        envoys(service, tmp_path, 1) as (envoy,),
    ):
        first = envoy.get("/", x_user="ada")
        statuses: Counter[int] = Counter()
        asked = {"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "ada"}]}]}

        def used_up() -> bool:
            statuses[envoy.get("/", x_user="ada").status] += 1
            return statuses[200] >= 30

        eventually(used_up, "the limit is used up")
        statuses.update(envoy.statuses(20, "/", x_user="ada"))

        assert (first.status, first.headers["retry-after"]) == (429, "1")
        assert statuses[200] == 30
        assert ask(service.http_port, "/json", method="POST", body=json.dumps(asked)).status == 429
        assert [envoy.get("/", x_user="bob").status for _ in range(1)] == [429]
        eventually(lambda: envoy.get("/", x_user="bob").status == 200, "another bucket has units")


@pytest.mark.extended
def test_three_envoys_use_a_window_s_limit_and_a_killed_one_makes_no_more(tmp_path: Path) -> None:
    with (
        start_service(tmp_path / "service", rules(300, "unit: second, unit_multiplier: 10")) as service,
        envoys(service, tmp_path, 3) as (one, two, three),
        ThreadPoolExecutor(3) as pool,
    ):
        stay_within(10, 9.5)
        begin = time.time() // 10 * 10
        allowed: Counter[int] = Counter()

        def load(envoy: Envoy, pause: float) -> None:
            while time.time() < begin + 50 and (envoy is not two or time.time() < begin + 34):
                if envoy.get("/", x_user="ada").status == 200:
                    allowed[int(time.time() - begin) // 10] += 1
                time.sleep(pause)
            if envoy is two:
                two.send(SIGKILL)

        list(pool.map(load, (one, two, three), (0.01, 0.03, 0.03)))

        assert max(allowed.values()) <= 300
        assert min(allowed[2], allowed[4]) >= 285
