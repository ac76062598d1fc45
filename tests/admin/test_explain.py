"""`POST /explain` on the debug port: what it takes, and what it refuses."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ratelimit_service.rules.secret import HashValue
from tests.admin.service import Reply, Service, ask, running

KEY = "0123456789abcdef0123456789abcdef"


def explain(service: Service, body: Any) -> Reply:
    return ask(service.debug[0], "POST", "/explain", body=json.dumps(body).encode())


def request(*keys: str) -> Any:
    """One descriptor for each key."""
    return {"domain": "shop", "descriptors": [{"entries": [{"key": key, "value": "ada"}]} for key in keys]}


def test_the_answer_is_json_with_each_counter_as_it_is(service: Service) -> None:
    service.post(request("user"))

    reply = explain(service, request("user"))

    assert reply.status == 200
    assert reply.headers["Content-Type"] == "application/json; charset=utf-8"
    found = json.loads(reply.text)
    assert found["store"] == {"name": "memory", "problem": ""}
    assert found["descriptors"][0]["rules"][0]["state"]["remaining"] == 2
    assert json.loads(explain(service, request("user")).text) == found


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ([], "the body is not a RateLimitRequest: it is not a JSON object"),
        ({"domian": "shop"}, "the body is not a RateLimitRequest: "),
        ({"domain": "shop"}, "rate limit descriptor list must not be empty"),
        (request(*["user"] * 21), "at most 20 descriptors and 200 entries are explained at once"),
        (
            {"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": ""}] * 201}]},
            "at most 20 descriptors and 200 entries are explained at once",
        ),
    ],
)
def test_what_cannot_be_explained_is_400_with_the_reason(service: Service, body: Any, message: str) -> None:
    reply = explain(service, body)

    assert reply.status == 400
    assert reply.text.startswith(message)


def test_it_is_on_the_operators_port_only_and_takes_no_other_verb(service: Service) -> None:
    assert ask(service.http[0], "POST", "/explain", body=b"{}").status == 404
    assert ask(service.debug[0], "GET", "/explain").status == 405


def test_many_at_once_are_explained_or_refused_and_none_is_lost(service: Service) -> None:
    with ThreadPoolExecutor(40) as pool:
        replies = [*pool.map(lambda _: explain(service, request("user")), range(200))]

    assert {reply.status for reply in replies} <= {200, 503}
    assert {reply.text for reply in replies if reply.status == 503} <= {"too many explanations are asked for at once\n"}
    assert explain(service, request("user")).status == 200


def test_a_digest_stands_for_its_value_here_and_nowhere_else(tmp_path: Path) -> None:
    rules = (
        "domain: shop\ndescriptors: [{key: user, hash_values: true, rate_limit: {unit: day, requests_per_unit: 3}}]\n"
    )
    with running(tmp_path, rules, hash_key=KEY) as service:
        digest = HashValue(KEY)("ada")
        asked = json.loads(json.dumps(request("user")).replace("ada", digest))
        service.post(request("user"))

        remaining = [
            json.loads(explain(service, each).text)["descriptors"][0]["rules"][0]["state"]["remaining"]
            for each in (request("user"), asked)
        ]
        answered = json.loads(service.post(asked).text)

    assert remaining == [2, 2]
    assert answered["statuses"][0]["limitRemaining"] == 2, "a counter of its own"
