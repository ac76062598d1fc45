"""`ratelimit counters --reset --at` has a running service reset the counters of a descriptor."""

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from ratelimit_service.cli import main
from tests.commands.test_explain_at import RULES, charge, explain, now
from tests.ports import free_port
from tests.processes import Service, start_service

TOKEN = "0123456789abcdef" * 2


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Counters in memory, and a token."""
    folder = tmp_path_factory.mktemp("service")
    with start_service(folder, RULES, {"TRANSPORT": "http2", "ADMIN_TOKEN": TOKEN}) as started:
        yield started


def counters(*words: str, token: str = TOKEN) -> Result:
    return CliRunner().invoke(main, ["counters", *words], env={"ADMIN_TOKEN": token})


def test_counters_in_the_memory_of_a_service_are_reset(service: Service) -> None:
    at = f"127.0.0.1:{service.debug_port}"
    charge(service, "ada", 7)
    charge(service, "ada", 3, key="login")
    before = [now(explain(service.debug_port, "shop", f"{key}=ada")) for key in ("user", "login")]

    result = counters("shop", "user=ada", "--reset", "--yes", "--at", at)
    blocked = json.loads(counters("shop", "login=ada", "--reset", "--yes", "--at", f"http://{at}", "--json").stdout)
    after = [now(explain(service.debug_port, "shop", f"{key}=ada")) for key in ("user", "login")]

    assert before == [["  now      3 of 10 left, untouched in …"], ["  now      blocked for 730 d"]]
    assert (result.exit_code, result.stdout) == (0, "1 counter of user=ada in domain shop reset\n")
    assert (blocked["reset"], blocked["rules"], blocked["store"]) == (1, ["shop.login"], "memory")
    assert after == [["  now      10 of 10 left"], ["  now      2 of 2 left"]]
    assert "1 counter of user=ada in domain shop" in service.log


def test_what_goes_wrong_is_one_line(service: Service) -> None:
    at = f"127.0.0.1:{service.debug_port}"
    nothing = free_port()
    for where, word, token, code, why in (
        (at, "user=ada", "", 1, "this needs the header Authorization: Bearer"),
        (at, "user=ada", TOKEN[::-1], 1, "that is not the token of this service"),
        (at, "free=x", TOKEN, 1, "no rule limits free=x in domain shop, and it has no counter"),
        (f"127.0.0.1:{service.http_port}", "user=ada", TOKEN, 3, "that is the HTTP port"),
        (f"127.0.0.1:{nothing}", "user=ada", TOKEN, 3, "nothing listens there"),
    ):
        result = counters("shop", word, "--reset", "--yes", "--at", where, token=token)

        assert result.exit_code == code
        assert result.stderr.startswith(f"ratelimit: {where}: {why}")
        assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "words", [["user=ada"], ["--reset", "--yes"], ["user=ada", "--reset", "--yes", "--rule", "user"]]
)
def test_a_service_resets_one_descriptor_and_lists_none(words: list[str]) -> None:
    result = counters("shop", *words, "--at", "localhost")

    assert result.exit_code == 2
    assert "--at resets the counters of one descriptor" in result.stderr
