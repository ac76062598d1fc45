"""What is wrong shows on the page at once: what, since when, why, and what is answered meanwhile."""

import json
import os
import re
import signal
from html import unescape
from pathlib import Path
from typing import Any

from tests.browser import browse
from tests.ports import free_port
from tests.processes import Service, ask, start_service
from tests.redis import start_redis

RULES = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 100}}]\n"
POLICIES = {"login": "closed", "mail": "open"} | {f"k{number}": "local" for number in range(5)}
WITH_POLICIES = RULES.removesuffix("]\n") + "".join(
    f", {{key: {key}, rate_limit: {{unit: year, requests_per_unit: 9, on_store_failure: {policy}}}}}"
    for key, policy in POLICIES.items()
)


def body(key: str) -> str:
    return json.dumps({"domain": "shop", "descriptors": [{"entries": [{"key": key, "value": "x"}]}]})


def status(service: Service) -> Any:
    return json.loads(ask(service.debug_port, "/status").body)


def shown(service: Service) -> tuple[str, str]:
    """The class of the word in the page's head, and all text of the page."""
    markup = browse(f"http://127.0.0.1:{service.debug_port}/")
    text = markup[markup.index("<main>") : markup.index("</main>")]
    state = re.search(r'id="state" class="([^"]*)"', markup)
    assert state is not None
    return state[1], " ".join(unescape(re.sub(r"<[^>]*>", " ", text)).split())


def test_nothing_is_wrong_with_a_service_that_is_well(tmp_path: Path) -> None:
    with start_service(tmp_path / "service", RULES) as service:
        state, text = shown(service)

        assert status(service)["troubles"] == []
    assert state == "state good"
    assert " serving version " in text


def test_a_lost_redis_is_a_banner_that_says_which_rules_refuse_and_the_head_is_not_green(tmp_path: Path) -> None:
    port = free_port()
    environ = {"REDIS_URL": f"127.0.0.1:{port}", "ON_STORE_FAILURE": "open"}
    with start_service(tmp_path / "service", f"{WITH_POLICIES}]\n", environ) as service:
        service.wait_until(lambda: bool(status(service)["troubles"]), "Redis is lost")
        for key in ("user", "login", "login"):
            ask(service.http_port, "/json", method="POST", body=body(key))
        state, text = shown(service)

        with start_redis(tmp_path / "redis", port=port):
            service.wait_until(lambda: not status(service)["troubles"], "Redis is back")
            after, _ = shown(service)

    assert state == "state bad"
    assert "serving without its store" in text
    assert f"Redis at 127.0.0.1:{port} is lost , for" in text
    assert "Why: connection refused." in text
    assert (
        "Meanwhile requests are allowed, as if no counter had been charged yet (ON_STORE_FAILURE=open, 2 rules); but "
        "closed, which refuses, for 1 rule: shop.login; local, which counts in the memory of each process, "
        "for 5 rules: shop.k0, shop.k1, shop.k2 and 2 more."
    ) in text
    assert re.search(r"Answered by policy a second \S+ without the store, \S+ of it refused; 3 since the start", text)
    assert "redis is lost" in text
    assert re.search(r"Requests by domain .* shop 0 0 1 0 0 2 0 ", text)
    assert after == "state good"


def kill_second_worker(service: Service) -> int:
    """Until it is replaced; the pid that it had."""
    (pid,) = (worker["pid"] for worker in status(service)["workers"] if worker["number"] == 2)
    os.kill(pid, signal.SIGKILL)

    def replaced() -> bool:
        ready = {worker["pid"] for worker in status(service)["workers"] if worker["ready"]}
        return len(ready) == 2 and pid not in ready

    service.wait_until(replaced, "it is replaced")
    return int(pid)


def test_workers_that_end_again_and_again_are_a_banner(tmp_path: Path) -> None:
    with start_redis(tmp_path / "redis") as redis:
        environ = {"REDIS_URL": f"127.0.0.1:{redis.port}", "WORKERS": "2"}
        with start_service(tmp_path / "service", RULES, environ) as service:
            kill_second_worker(service)
            after_one = status(service)["troubles"]
            pid = kill_second_worker(service)
            state, text = shown(service)

    assert after_one == []
    assert state == "state warn"
    assert "2 workers ended unexpectedly in the last 15 minutes" in text
    assert f"Why: the last one, worker 2, with pid {pid} was killed by SIGKILL." in text
    assert "Meanwhile each is replaced" in text


def test_rules_that_cannot_be_loaded_are_a_banner_until_they_can(tmp_path: Path) -> None:
    with start_service(tmp_path / "service", RULES) as service:
        service.write_rules(RULES.replace("year", "fortnight"))
        service.wait_until(lambda: bool(status(service)["troubles"]), "the mistake is found")
        first = status(service)["troubles"][0]
        service.write_rules(RULES.replace("year", "decade"))
        service.wait_until(lambda: "decade" in str(status(service)["troubles"]), "the other mistake is found")
        second = status(service)["troubles"][0]
        state, text = shown(service)
        service.write_rules(RULES)
        service.wait_until(lambda: not status(service)["troubles"], "the rules are good")

    assert first["since"] == second["since"]
    assert state == "state warn"
    assert "serving, with trouble" in text
    assert "Meanwhile the old ones stay in force." in text
    assert 'unit "decade" is not one of' in text


def test_a_service_that_drains_is_a_banner(tmp_path: Path) -> None:
    with start_service(tmp_path / "service", RULES, {"DRAIN_SECONDS": "600"}) as service:
        service.send(signal.SIGTERM)
        service.wait_until(lambda: bool(status(service)["draining"]), "it drains")
        state, text = shown(service)

    assert state == "state bad"
    assert " draining version " in text
    assert "The service is draining , for" in text
    assert "Meanwhile health says NOT_SERVING" in text


def test_descriptors_that_match_no_rule_are_shown_by_their_keys(tmp_path: Path) -> None:
    with start_service(tmp_path / "service", RULES) as service:
        for key in ("login", "login", "path"):
            ask(service.http_port, "/json", method="POST", body=body(key))
        _, text = shown(service)
        unmatched = status(service)["unmatched"]

    assert [(one["path"], one["total"]) for one in unmatched] == [(["shop", "login"], 2), (["shop", "path"], 1)]
    assert "Descriptors that match no rule by their keys; they are not limited" in text
    assert "shop › login 2" in text
