"""Budgets of tokens and bytes through a real Envoy: reserved before a model answers, settled when its stream is done.

The model's own count says what was used. Each test has a user of its own, and 100 a year.
"""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import yaml

from tests.envoy.model import TOKENS, USAGE, HeldModel, shown, start_model
from tests.envoy.proxy import Envoy, Json, address, bootstrap, by, cluster, endpoint, route, start_envoy
from tests.processes import START_SECONDS, Service, eventually, start_service
from tests.processes import ask as ask_http

RULES: Final = """
domain: shop
settle: settled
descriptors:
  - key: user
    descriptors:
      - key: request_id
        rate_limit:
          {unit: year, requests_per_unit: 100, reserve: {id: request_id, hold: 1 hour, estimate: 40}}
  - key: bucket
    descriptors:
      - key: request_id
        rate_limit:
          {unit: year, requests_per_unit: 100, algorithm: token_bucket,
           reserve: {id: request_id, hold: 1 hour, estimate: 40}}
  - key: tenant
    rate_limit: {unit: year, requests_per_unit: 100, algorithm: token_bucket}
"""


def reserved(key: str, **request: Any) -> Json:
    """Envoy's half: what a request reserves, and what is settled when its stream is done."""
    entries = (key, "x-user"), ("request_id", "x-request-id")
    done = by(*entries, ("settled", "=1"), hits_addend={"format": TOKENS}, apply_on_stream_done=True)
    return {"rate_limits": [by(*entries, **request), done]}


def settled(cost: str) -> Json:
    """Envoy's half without ids: a look, and what is settled."""
    done = by(("tenant", "x-user"), ("settled", "=1"), hits_addend={"format": cost}, apply_on_stream_done=True)
    return {"rate_limits": [by(("tenant", "x-user"), hits_addend={"number": 0}), done]}


FROM_HEADER: Final = {"hits_addend": {"format": "%REQ(x-max-tokens)%"}}
ROUTES: Final = [
    route("/chat", per_route=reserved("user", **FROM_HEADER)),
    route("/bucket", per_route=reserved("bucket", **FROM_HEADER)),
    route("/estimate", per_route=reserved("user")),
    route("/either", per_route=reserved("user", **yaml.safe_load(shown("hits_addend:")))),
    route("/shown", per_route={"domain": "chat", **yaml.safe_load(shown("rate_limits:"))}),
    route("/look", per_route=settled(TOKENS)),
    route("/bytes", per_route=settled("%BYTES_SENT%")),
    route("/half", per_route=settled("%CEL((response.total_size + 1) / 2)%")),
    route(
        "/money", per_route=settled("%CEL(int(metadata.filter_metadata['io.envoy.ai_gateway'].llm_total_token) * 15)%")
    ),
]


class Shop(NamedTuple):
    """Services, an Envoy before them, and a model behind."""

    services: list[Service]
    envoy: Envoy
    model: HeldModel

    def send(self, path: str, user: str, **headers: str) -> int:
        """The status of a request."""
        return self.envoy.get(path, x_user=user, **headers).status

    @contextmanager
    def leave(self, user: str, until: str, **headers: str) -> Iterator[None]:
        """A client that begins a request, and goes away when it has read so far."""
        connection = HTTPConnection("127.0.0.1", self.envoy.port, timeout=START_SECONDS)
        with closing(connection):
            connection.request("GET", "/chat", headers={"x-user": user, "x-max-tokens": "30"} | headers)
            response = connection.getresponse()
            while until not in response.readline().decode():
                pass
            yield
        eventually(lambda: self.envoy.stat("http.ingress.downstream_rq_active") == 0, "Envoy has noticed")

    def left(self, key: str, user: str) -> int:
        """What a look finds."""
        entries = [{"key": key, "value": user}]
        if key != "tenant":
            entries.append({"key": "request_id", "value": "a look"})
        body = {"domain": "shop", "descriptors": [{"entries": entries, "hitsAddend": 0}]}
        reply = ask_http(self.services[0].http_port, "/json", method="POST", body=json.dumps(body))
        return int(json.loads(reply.body)["statuses"][0].get("limitRemaining", 0))

    def until_left(self, units: int, key: str, user: str) -> None:
        """Wait until a look finds so many: Envoy settles when the caller has its answer already."""
        eventually(lambda: self.left(key, user) == units, f"{units} units are left")


@pytest.fixture(scope="module", params=["memory", "redis"])
def shop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """With Redis there are two services, which Envoy asks in turn: mostly one settles what the other has reserved."""
    folder: Path = tmp_path_factory.mktemp("budgets")
    environ: dict[str, str] = {}
    if request.param == "redis":
        environ = {"REDIS_URL": f"127.0.0.1:{request.getfixturevalue('redis').port}", "STORE_DEADLINE": "30s"}
    (folder / "rules").mkdir()
    for number, text in enumerate([RULES, *shown("domain:").split("---\n")]):
        (folder / "rules" / f"{number}.yaml").write_text(text, encoding="utf-8")
    with start_model() as model, ExitStack() as stack:
        services = [
            stack.enter_context(start_service(folder / str(number), folder / "rules", environ))
            for number in range(2 if environ else 1)
        ]
        made = bootstrap(
            [service.grpc_port for service in services],
            [each | {"route": {"cluster": "model"}} for each in ROUTES],
            filter_options={"failure_mode_deny": True},
            filters_before=[USAGE],
        )
        made["static_resources"]["clusters"].append(cluster("model", [endpoint(address(model.port))]))
        yield Shop(services, stack.enter_context(start_envoy(folder / "envoy", made)), model)


def test_what_a_request_reserves_and_does_not_use_goes_back_when_its_stream_is_done(shop: Shop) -> None:
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(shop.send, "/chat", "ada", x_max_tokens="30", x_usage="7", x_hold="before")
        shop.model.wait_for("ada", 1)
        meanwhile = shop.left("user", "ada")
        shop.model.release("ada")

    assert (meanwhile, answer.result()) == (70, 200)
    shop.until_left(93, "user", "ada")


def test_a_retry_with_the_same_id_reserves_nothing_more(shop: Shop) -> None:
    same = {"x_request_id": "retried", "x_max_tokens": "30", "x_hold": "before"}
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(shop.send, "/bucket", "ben", x_usage="7", **same) for _ in range(2)]
        shop.model.wait_for("ben", 2)
        meanwhile = shop.left("bucket", "ben")
        shop.model.release("ben")

    assert ([each.result() for each in answers], meanwhile) == ([200, 200], 70)
    shop.until_left(93, "bucket", "ben")


@pytest.mark.parametrize(("path", "key"), [("/chat", "user"), ("/bucket", "bucket")])
def test_callers_at_once_never_use_more_than_the_limit_and_all_but_a_reservation_of_it(
    shop: Shop, path: str, key: str
) -> None:
    """Of eight callers three fit at once, then two, of those that are left each uses a third of what it reserves."""
    user = f"many {key}"
    with ThreadPoolExecutor(8) as pool:
        one = [pool.submit(shop.send, path, user, x_max_tokens="30", x_usage="10", x_hold="before") for _ in range(8)]
        shop.model.wait_for(user, 3)
        eventually(lambda: sum(each.done() for each in one) == 5, "five are refused")
        shop.model.release(user)

    assert sorted(each.result() for each in one) == [200, 200, 200, 429, 429, 429, 429, 429]
    used = 30
    while True:
        shop.until_left(100 - used, key, user)
        if shop.send(path, user, x_max_tokens="30", x_usage="10") == 429:
            break
        used += 10
    assert (used, shop.model.used[user]) == (80, 80)


def test_without_a_cost_of_its_own_a_request_reserves_the_estimate(shop: Shop) -> None:
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(shop.send, "/estimate", "bob", x_usage="7", x_hold="before")
        shop.model.wait_for("bob", 1)
        meanwhile = shop.left("user", "bob")
        shop.model.release("bob")

    assert (meanwhile, answer.result()) == (60, 200)
    shop.until_left(93, "user", "bob")


def test_what_is_used_above_the_reservation_is_owed(shop: Shop) -> None:
    assert shop.send("/bucket", "eve", x_max_tokens="30", x_usage="130") == 200
    shop.until_left(0, "bucket", "eve")
    assert shop.send("/bucket", "eve", x_max_tokens="1") == 429


@pytest.mark.parametrize("header", [None, "many", "-5", "1000000001"])
def test_a_cost_that_envoy_cannot_read_reserves_nothing_and_is_settled_all_the_same(
    shop: Shop, header: str | None
) -> None:
    """It drops the item, and asks nothing where no other is left."""
    user = f"unread {header}"
    with ThreadPoolExecutor(1) as pool:
        sent = {"x_usage": "130", "x_hold": "before"} | ({} if header is None else {"x_max_tokens": header})
        answer = pool.submit(shop.send, "/chat", user, **sent)
        shop.model.wait_for(user, 1)
        meanwhile = shop.left("user", user)
        shop.model.release(user)

    assert (meanwhile, answer.result()) == (100, 200)
    shop.until_left(0, "user", user)
    assert shop.send("/chat", user, x_max_tokens="1") == 429


@pytest.mark.parametrize(
    ("header", "left"), [("30", 70), (None, 50), ("many", 50), ("-5", 50), ("0", 50), ("1000000001", 50)]
)
def test_with_a_default_in_envoy_each_request_reserves(shop: Shop, header: str | None, left: int) -> None:
    """The page's 4000, of which a reservation takes half of this limit."""
    user = f"either {header}"
    assert shop.send("/either", user, **({} if header is None else {"x_max_tokens": header})) == 200
    assert shop.left("user", user) == left


def test_an_answer_without_its_usage_stays_charged_as_reserved(shop: Shop) -> None:
    """Nor does Envoy send the settle of a client that goes away before the usage is there."""
    assert shop.send("/chat", "kim", x_max_tokens="20") == 200
    with shop.leave("lee", "Well", **{"x-usage": "7", "x-hold": "before"}):
        assert shop.left("user", "lee") == 70
    # Later ones to the same service come after what Envoy would have sent before.
    assert shop.send("/chat", "kim", x_max_tokens="30", x_usage="1") == 200
    shop.until_left(79, "user", "kim")
    assert shop.left("user", "lee") == 70


def test_a_client_that_goes_away_when_the_usage_is_known_has_it_settled(shop: Shop) -> None:
    with shop.leave("mia", "usage", **{"x-usage": "7", "x-hold": "after"}):
        assert shop.left("user", "mia") == 70
    shop.until_left(93, "user", "mia")


def test_without_ids_all_who_look_at_once_are_let_in_and_what_they_used_is_owed(shop: Shop) -> None:
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(shop.send, "/look", "nat", x_usage="60", x_hold="before") for _ in range(4)]
        shop.model.wait_for("nat", 4)
        shop.model.release("nat")

    assert [each.result() for each in answers] == [200, 200, 200, 200]
    eventually(lambda: shop.send("/look", "nat") == 429, "what was used is more than the limit")
    assert shop.model.used["nat"] == 240


def test_the_bytes_of_an_answer_are_settled_when_it_has_been_sent(shop: Shop) -> None:
    assert shop.send("/bytes", "oli") == 200
    shop.until_left(45, "tenant", "oli")
    assert shop.send("/half", "oli") == 200  # of all bytes, with the headers
    shop.until_left(0, "tenant", "oli")
    assert shop.send("/bytes", "oli") == 429


def test_tokens_become_money_in_envoy(shop: Shop) -> None:
    assert shop.send("/money", "pia", x_usage="2") == 200
    shop.until_left(70, "tenant", "pia")


def test_what_the_page_shows_for_a_chat_reserves_and_settles(shop: Shop) -> None:
    def counted(number: str) -> int:
        found = rf'^ratelimit_service_rate_limit_{number}{{domain="chat".*per_calendar_month"}} (\d+)'
        return sum(
            int(each) for service in shop.services for each in re.findall(found, service.metrics(), re.MULTILINE)
        )

    assert shop.send("/shown", "quin", x_usage="700") == 200
    assert counted("total_hits") == 4000
    eventually(lambda: counted("settled_total") == 700, "the usage is settled")
