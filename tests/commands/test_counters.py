"""`ratelimit counters` shows what is in the counters, and resets them."""

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import uvloop
from click.testing import CliRunner, Result

from ratelimit_service.cli import main
from ratelimit_service.model import Limit, Unit
from ratelimit_service.rules.reading.parse import parse
from ratelimit_service.rules.sources.files import read_files
from ratelimit_service.system.clock import duration_in_words
from tests.ports import free_port
from tests.processes import ROOT, ask, eventually, start_service
from tests.redis import Redis
from tests.stores.charging import Charge, charge_all, descriptor

RULES = """\
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 10, name: per-user}
    descriptors:
      - key: path
        rate_limits:
          - {unit: year, requests_per_unit: 10, algorithm: sub_windows}
          - {unit: month, requests_per_unit: 20, algorithm: token_bucket, burst: 30}
  - key: free
    rate_limit: {unlimited: true}
  - {key: closed, rate_limit: {deny: true}}
  - key: fast
    rate_limit: {unit: second, requests_per_unit: 100}
  - key: out
    rate_limit: {unit: year, requests_per_unit: 2, algorithm: sub_windows}
  - key: id
    rate_limit: {concurrency: 5, hold: 1 day, place: id}
  - key: strict
    rate_limit: {unit: second, requests_per_unit: 2, count_refused: false, block_for: 2 days, block_up_to: 9 days}
"""


class Shop:
    """Rules, and counters under a prefix of their own."""

    def __init__(self, redis: Redis, folder: Path) -> None:
        self.redis = redis
        self.folder = folder
        self.prefix = f"{folder.name}:"
        self.rules = folder / "shop.yaml"
        self.rules.write_text(RULES)

    @property
    def environ(self) -> dict[str, str]:
        return {
            "REDIS_URL": str(self.redis.socket),
            "CACHE_KEY_PREFIX": self.prefix,
            "RULES_PATH": str(self.rules),
        }

    def charge(self, *charges: Charge, **settings: str) -> None:
        book = parse(read_files(self.rules))
        charging = charge_all(book, self.redis.socket, list(charges), CACHE_KEY_PREFIX=self.prefix, **settings)
        uvloop.run(charging)

    def counters(self, *arguments: str, **environ: str | None) -> Result:
        return CliRunner().invoke(main, ["counters", *arguments], env={**self.environ, **environ})

    def as_json(self, *arguments: str) -> Any:
        result = self.counters(*arguments, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    def keys(self) -> list[str]:
        """Those of counters."""
        found = self.redis.cli("KEYS", f"{self.prefix}rl2|*|*").split("\n")
        return sorted(key.removeprefix(f"{self.prefix}rl2|") for key in found if key)


@pytest.fixture
def shop(redis: Redis, tmp_path: Path) -> Shop:
    """Three users, of whom one has used up his limit."""
    shop = Shop(redis, tmp_path)
    shop.charge(
        Charge("shop", descriptor("user=ada"), 3),
        Charge("shop", descriptor("user=bob"), 12),
        Charge("shop", descriptor("user=ada path=/c"), 6),
    )
    return shop


def test_without_rules_the_commands_take_those_of_the_service_on_this_machine(shop: Shop) -> None:
    """After `make run`, whose rules no variable names."""
    with start_service(shop.folder / "service", RULES, {"REDIS_URL": str(shop.redis.socket)}) as service:
        here: dict[str, str | None] = {"RULES_PATH": None, "DEBUG_PORT": str(service.debug_port)}
        shown = shop.counters("shop", "--rule", "per-user", **here)
        commands = (["explain", "shop", "user=bob"], ["ban", "shop", "user=eve", "--for", "1h", "--why", "a test"])
        others = [CliRunner().invoke(main, words, env={**shop.environ, **here}) for words in commands]
    without = shop.counters("shop", **here)

    assert (shown.exit_code, "shop.user" in shown.stdout) == (0, True), shown.stderr
    assert [result.exit_code for result in others] == [0, 0]
    assert (without.exit_code, "there are no rules: /srv/runtime_data/current/config" in without.stderr) == (1, True)


def test_the_fullest_stand_first(shop: Shop) -> None:
    result = shop.counters("shop")

    # Without the times.
    lines = [
        re.sub(r"(?<=\d)  +\d+ (d|h|min|s).*  (?=fixed|sub|token)", "  ", line) for line in result.stdout.splitlines()
    ]
    assert re.split(r"\s{2,}", lines[0].strip()) == [
        *("used", "left", "resets in", "expires in", "algorithm", "rule", "descriptor"),
    ]
    assert [re.split(r"\s{2,}", line.strip()) for line in lines[1:]] == [
        ["12 of 10", "0", "fixed window", "shop.user", "user=bob"],
        ["6 of 10", "4", "sub windows", "shop.user.path.per_year", "user=ada path=/c"],
        ["3 of 10", "7", "fixed window", "shop.user", "user=ada"],
        ["6 of 30", "24", "token bucket", "shop.user.path.per_month", "user=ada path=/c"],
        ["4 counters"],
    ]
    assert result.exit_code == 0


def test_places_that_are_taken_are_shown_and_reset(shop: Shop) -> None:
    shop.charge(Charge("shop", descriptor("id=a"), 3), Charge("shop", descriptor("id=b")))
    (listed,) = shop.as_json("shop", "--rule", "id")["counters"]
    (asked,) = shop.as_json("shop", "id=whatever")["counters"]

    assert {key: listed[key] for key in ("used", "remaining", "capacity", "limit", "algorithm", "descriptor")} == {
        "used": 4,
        "remaining": 1,
        "capacity": 5,
        "limit": "5 requests at once",
        "algorithm": "places",
        "descriptor": "id=*",
    }
    assert 86_300 < listed["reset_after"] <= 86_400
    assert 2 * 86_300 < listed["expires_after"] <= 2 * 86_400
    assert {**asked, **dict.fromkeys(("reset_after", "expires_after"))} == {
        **listed,
        **dict.fromkeys(("reset_after", "expires_after")),
        "descriptor": "id=whatever",
    }
    assert shop.counters("shop", "--rule", "id", "--reset", "--yes").exit_code == 0
    assert shop.as_json("shop", "id=a")["total"] == 0


@pytest.mark.parametrize(
    ("microseconds", "words"),
    [
        (0, "0 s"),
        (1, "1 s"),
        (59_000_001, "60 s"),
        (125_000_000, "2 min 5 s"),
        (3_600_000_000, "1 h"),
        (97_200_000_000, "1 d 3 h"),
        (31_536_000_000_000, "365 d"),
    ],
)
def test_times_are_said_as_people_do_and_what_has_begun_counts(microseconds: int, words: str) -> None:
    assert duration_in_words(microseconds) == words


def test_more_are_counted_than_shown(shop: Shop) -> None:
    assert shop.counters("shop", "--limit", "1").stdout.endswith("\n4 counters, the fullest is shown\n")
    assert shop.counters("shop", "--limit", "2").stdout.endswith("\n4 counters, the 2 fullest are shown\n")
    assert [row["used"] for row in shop.as_json("shop", "--limit", "2")["counters"]] == [12, 6]
    assert shop.as_json("shop", "--limit", "0")["total"] == 4


def test_one_comes_as_json_with_all_that_is_known(shop: Shop) -> None:
    found = shop.as_json("shop", "user=bob")

    [row] = found.pop("counters")
    assert found == {
        "domain": "shop",
        "total": 1,
        "untouched": 0,
        "without_rule": 0,
        "digests": 0,
        "left_out": 0,
        "slots_moved": False,
    }
    times = [row.pop(name) for name in ("reset_after", "retry_after", "expires_after")]
    assert 0 < times[0] == times[1] <= 31_536_000
    assert times[0] - 60 < times[2]
    assert row == {
        "blocked_for": None,
        "key": f"{shop.prefix}rl2|shop|user=bob|fixed_window/31536000000000",
        "descriptor": "user=bob",
        "rule": "shop.user",
        "place": f"{shop.rules}:4:5",
        "algorithm": "fixed_window",
        "limit": "10 requests per year",
        "capacity": 10,
        "used": 12,
        "remaining": 0,
    }


@pytest.mark.parametrize(
    ("name", "used"),
    [
        ("shop.user", [12, 3]),
        ("user", [12, 3]),
        ("per-user", [12, 3]),
        ("{rules}:4:5", [12, 3]),
        ("{rules}:4", [12, 3]),
        ("shop.yaml:4", [12, 3]),
        ("shop.user.path", [6, 6]),
        ("user.path.per_month", [6]),
    ],
)
def test_a_rule_is_named_as_elsewhere(shop: Shop, name: str, used: list[int]) -> None:
    found = shop.as_json("shop", "--rule", name.format(rules=shop.rules))

    assert [row["used"] for row in found["counters"]] == used


def test_of_a_descriptor_with_several_limits_one_may_be_named(shop: Shop) -> None:
    found = shop.as_json("shop", "user=ada", "path=/c", "--rule", "user.path.per_year")

    assert [row["rule"] for row in found["counters"]] == ["shop.user.path.per_year"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["shop", "--rule", "usr"], "domain shop has no rule 'usr'; did you mean shop.user?"),
        (["shop", "--rule", "free"], "rule free is unlimited: it has no counters"),
        (["shop", "--rule", "closed"], "rule closed is always denied: it has no counters"),
        (["shop", "user=ada", "--rule", "out"], "out does not limit user=ada; `ratelimit explain` shows why"),
        (["shop", "user=a", "+", "user=b"], "counters takes one descriptor"),
        ([""], "the domain is empty"),
        (["", "--reset", "--yes"], "the domain is empty"),
        (["shop", "--reset"], "the input is not a terminal: add --yes"),
    ],
)
def test_bad_usage_has_exit_code_2(shop: Shop, arguments: list[str], words: str) -> None:
    result = shop.counters(*arguments)

    assert result.exit_code == 2
    assert words in " ".join(result.stderr.split())
    assert len(shop.keys()) == 4


def test_a_domain_without_rules_and_counters_is_most_likely_misspelt(shop: Shop) -> None:
    for more in ([], ["--reset", "--yes"]):
        result = shop.counters("shpo", *more)

        assert result.exit_code == 1
        assert result.stderr == "ratelimit: there is no domain shpo, and no counter of it; did you mean shop?\n"


def test_what_is_not_there_is_said(shop: Shop) -> None:
    assert shop.counters("shop", "user=eve").stdout == (
        "There is no counter of user=eve in domain shop: nothing is charged to it (10 requests per year).\n"
    )
    assert shop.counters("shop", "nobody=x").stdout == (
        "No rule limits nobody=x in domain shop; `ratelimit explain` shows why.\n"
    )
    assert shop.counters("shop", "--rule", "out").stdout == "There are no counters of shop.out.\n"


def test_a_rule_s_name_in_place_of_a_descriptor_is_told(shop: Shop) -> None:
    for more in ([], ["--reset", "--yes"]):
        alone = shop.counters("shop", "user", *more)
        assert alone.exit_code == 2
        assert "'user' has no =; write user=VALUE, or user= for an empty value; --rule user takes" in alone.stderr
        for name in ("user", "out"):
            last = shop.counters("shop", f"{name}=", *more).stdout.splitlines()[-1]
            assert last == f"{name}= has no value: --rule {name} takes all counters of that rule"
    assert shop.counters("shop", "nobody=").stdout.endswith("\nnobody= has no value\n")
    assert "no value" not in shop.counters("shop", "user=eve").stdout
    assert len(shop.keys()) == 4


def test_a_window_that_is_over_is_told_apart(shop: Shop) -> None:
    # Its key outlives the second by chance: of thirty years, too few seconds are drawn once in 100 million runs.
    shop.charge(Charge("shop", descriptor("fast=x"), 50), EXPIRATION_JITTER_MAX_SECONDS="1000000000")
    eventually(lambda: shop.as_json("shop", "fast=x")["untouched"] == 1, "its second is over")

    line = "1 more to which nothing is charged now: Redis removes them by itself\n"
    assert shop.counters("shop").stdout.endswith(f"\n4 counters\n{line}")
    assert shop.counters("shop", "fast=x").stdout.endswith(f" (100 requests per second).\n{line}")
    assert shop.as_json("shop", "fast=x")["total"] == 0
    assert shop.counters("shop", "--rule", "fast", "--reset", "--yes").stdout.startswith("1 counter of shop.fast reset")


def test_counters_that_no_present_rule_charges_are_told_apart(shop: Shop) -> None:
    shop.charge(Charge("shop", descriptor("user=bob"), 1, Limit(3, Unit.DAY, Unit.DAY.window)))
    shop.rules.write_text(RULES.replace("key: path", "key: other"))

    lines = shop.counters("shop").stdout.splitlines()

    by_others = "by limits sent with requests, or by rules that were changed or are gone"
    assert lines[-2:] == ["5 counters", f"3 of them charged by none of the present rules: {by_others}"]
    assert sum("(none)" in line for line in lines) == 2
    assert sum("(sent with requests?)  user=bob" in line for line in lines) == 1
    assert [row["rule"] for row in shop.as_json("shop", "user=bob")["counters"]] == ["shop.user", None]
    assert [row["rule"] for row in shop.as_json("shop", "user=bob", "--rule", "user")["counters"]] == ["shop.user"]


def test_a_limit_sent_with_a_request_is_charged_to_the_counter_of_the_rule_that_counts_alike(shop: Shop) -> None:
    shop.charge(Charge("shop", descriptor("user=ada"), 2, Limit(3, Unit.YEAR, Unit.YEAR.window)))

    [row] = shop.as_json("shop", "user=ada")["counters"]

    assert (row["rule"], row["used"], row["remaining"]) == ("shop.user", 5, 5)


def test_a_name_that_is_a_digest_is_told_and_left_out_where_it_may_be_of_another_rule(shop: Shop) -> None:
    shop.charge(Charge("shop", descriptor("user=" + "x" * 600)))

    whole = shop.counters("shop").stdout
    of_rule = shop.counters("shop", "--rule", "user").stdout
    of_other = shop.counters("shop", "--rule", "user.path").stdout
    exact = shop.as_json("shop", "user=" + "x" * 600)

    assert "5 counters\n1 of them under a digest" in whole
    assert "2 counters\n1 counter besides may be of that rule" in of_rule
    assert "digest" not in of_other
    assert [row["rule"] for row in exact["counters"]] == ["shop.user"]


def test_what_a_terminal_would_obey_is_written_out(shop: Shop) -> None:
    shop.charge(Charge("shop", (("user", "\x1b[2Jü\n"),)))

    assert "user=\\x1b[2Jü\\n\n" in shop.counters("shop").stdout


def test_a_reset_removes_what_was_asked_for_and_nothing_else(shop: Shop) -> None:
    one = shop.counters("shop", "user=bob", "--reset", "--yes")
    assert one.stdout == (
        "1 counter of user=bob in domain shop reset\nServices that remember a refusal ask again within 5 s.\n"
    )
    assert len(shop.keys()) == 3

    rule = shop.counters("shop", "--rule", "user.path", "--reset", "--yes", "--json")
    assert json.loads(rule.stdout) == {"domain": "shop", "reset": 2, "left_out": 0, "slots_moved": False}
    assert shop.keys() == ["shop|user=ada|fixed_window/31536000000000"]

    shop.rules.write_text(RULES.replace("key: user", "key: person"))
    whole = shop.counters("shop", "--reset", "--yes")
    assert whole.stdout.startswith("1 counter of domain shop reset\n")
    assert shop.keys() == []
    assert shop.counters("shop", "--reset", "--yes").stdout == "0 counters of domain shop reset\n"


def in_terminal(shop: Shop, answer: str, *arguments: str) -> tuple[int, str, str]:
    """Exit code, what was asked, and what was printed, of the command in a terminal where somebody types that."""
    ours, theirs = pty.openpty()
    try:
        command = [sys.executable, "-m", "ratelimit_service", "counters", *arguments]
        environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **shop.environ}
        with subprocess.Popen(
            command,
            env=environ,
            cwd=shop.folder,
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            os.write(ours, f"{answer}\n".encode())
            printed, said = process.communicate(timeout=60)
        return process.returncode, said, printed
    finally:
        os.close(ours)
        os.close(theirs)


def test_in_a_terminal_it_asks_and_yes_resets(shop: Shop) -> None:
    code, asked, printed = in_terminal(shop, "y", "shop", "--rule", "user", "--reset")

    assert (code, asked.strip()) == (0, "Reset 2 counters of shop.user? [y/N]:")
    assert printed.startswith("2 counters of shop.user reset\n")
    assert len(shop.keys()) == 2


def test_in_a_terminal_anything_but_yes_resets_nothing(shop: Shop) -> None:
    code, asked, printed = in_terminal(shop, "", "shop", "user=ada", "--reset")

    assert (code, printed) == (1, "")
    assert asked == "Reset 1 counter of user=ada in domain shop? [y/N]: Nothing was reset.\n"
    assert len(shop.keys()) == 4


def test_counters_in_memory_are_out_of_reach(shop: Shop) -> None:
    result = shop.counters("shop", REDIS_URL=None)

    assert result.exit_code == 2
    assert "BACKEND_TYPE is memory: counters are in the memory of each service" in result.stderr


def test_settings_may_be_in_a_file_and_rules_be_given(shop: Shop) -> None:
    file = shop.folder / "settings.env"
    file.write_text(f"REDIS_URL={shop.redis.socket}\nCACHE_KEY_PREFIX={shop.prefix}\n")
    unset: Mapping[str, None] = dict.fromkeys(shop.environ)

    result = shop.counters("shop", "--env-file", str(file), "--rules", str(shop.rules), "--limit", "0", **unset)

    assert result.stdout == "4 counters, none of them shown\n"


def test_a_redis_that_is_not_there_is_named(shop: Shop) -> None:
    port = free_port()

    result = shop.counters("shop", REDIS_URL=f"127.0.0.1:{port}")

    assert result.exit_code == 1
    assert result.stderr == f"ratelimit: Redis at 127.0.0.1:{port}: connection refused\n"


def test_what_a_user_must_be_allowed_is_told(shop: Shop) -> None:
    def as_user(*rights: str) -> Result:
        shop.redis.cli("ACL", "SETUSER", "looker", "reset", "on", ">hunter2", f"~{shop.prefix}*", *rights)
        more = ("--reset", "--yes") if "+unlink" in rights or "-unlink" in rights else ()
        return shop.counters("shop", *more, REDIS_AUTH="looker:hunter2")

    blind = as_user("+get")
    service = as_user("+@scripting", "+@read", "+@write", "+time")
    look = ("+scan", "+pttl", "+time", "+eval", "+evalsha", "+get", "+mget", "+getrange")
    looking = as_user(*look, "+zrange", "+zcard", "+zcount", "+zrangebyscore")
    no_reset = as_user(*look, "-unlink")
    left = len(shop.keys())
    untold = as_user(*look, "-set", "+unlink")
    shop.charge(Charge("shop", descriptor("user=ada")))
    reset = as_user(*look, "+set", "+unlink")

    needed = (
        "~<CACHE_KEY_PREFIX>* +scan +pttl +time +eval +evalsha +get +mget +getrange, for limits of requests at once"
    )
    assert service.exit_code == 0
    assert (blind.exit_code, looking.exit_code, no_reset.exit_code, reset.exit_code) == (1, 0, 1, 0)
    assert needed in blind.stderr
    assert needed in no_reset.stderr
    assert untold.exit_code == 1
    assert untold.stderr.endswith("; before that, 4 counters of domain shop reset\n")
    assert "hunter2" not in blind.output + no_reset.output
    assert left == 4
    assert shop.keys() == []


@pytest.mark.slow
def test_a_block_is_shown_and_reset_although_its_counter_has_expired(shop: Shop) -> None:
    """The hit costs too much, so that nothing is charged."""
    shop.charge(Charge("shop", descriptor("strict=ada"), 3), Charge("shop", descriptor("strict=bob"), 1))
    [row] = shop.as_json("shop", "--rule", "shop.strict", "--limit", "1")["counters"]

    assert (row["descriptor"], row["used"], row["remaining"]) == ("strict=ada", 0, 0)
    assert 172_000 < row["blocked_for"] == row["retry_after"] == row["reset_after"] <= 172_800
    [line] = [line for line in shop.counters("shop").stdout.splitlines() if "strict=ada" in line]
    assert re.split(r"\s{2,}", line.strip())[:3] == ["0 of 2", "blocked", "2 d"]
    state = CliRunner().invoke(main, ["explain", "shop", "strict=ada"], env=shop.environ).stdout
    assert "  now      blocked for 2 d\n" in state

    assert "1 counter of " in shop.counters("shop", "strict=ada", "--reset", "--yes").stdout
    assert "strict=ada" not in " ".join(shop.keys())


def test_after_a_reset_the_service_lets_in_whom_it_had_refused(shop: Shop) -> None:
    body = '{"domain": "shop", "descriptors": [{"entries": [{"key": "out", "value": "ada"}]}]}'
    environ = {**shop.environ, "STORE_DEADLINE": "10s"}
    with start_service(shop.folder / "service", shop.rules, environ) as service:

        def call() -> int:
            return ask(service.http_port, "/json", method="POST", body=body).status

        assert [call() for _ in range(4)] == [200, 200, 429, 429]
        [row] = shop.as_json("shop", "out=ada")["counters"]
        assert (row["used"], row["remaining"]) == (2, 0)

        shop.counters("shop", "out=ada", "--reset", "--yes")

        eventually(lambda: call() == 200, "it is let in again")
        assert [call() for _ in range(2)] == [200, 429]


REST = """\
domain: "*"
lookup: {from: users.csv, key: user, as: plan}
otherwise: {share_threshold: true, rate_limit: {unit: year, requests_per_unit: 5}}
descriptors: [{key: plan, value: pro, rate_limit: {unit: year, requests_per_unit: 100}}]
"""


def test_counters_of_a_lookup_a_default_and_any_domain_have_their_rules(redis: Redis, tmp_path: Path) -> None:
    shop = Shop(redis, tmp_path)
    shop.rules.write_text(REST)
    (tmp_path / "users.csv").write_text("ada,pro\n")
    shop.charge(
        Charge("api", descriptor("user=ada"), 3),
        Charge("api", descriptor("user=bob"), 1),
        Charge("api", descriptor("path=/c"), 1),
        Charge("web", descriptor("user=ada"), 7),
    )

    found = {(row["rule"], row["descriptor"], row["used"]) for row in shop.as_json("api")["counters"]}
    of_rule = [row["used"] for row in shop.as_json("api", "--rule", "plan_pro")["counters"]]
    of_entries = [row["used"] for row in shop.as_json("web", "user=ada")["counters"]]
    of_default = [row["used"] for row in shop.as_json("api", "anything=x")["counters"]]

    assert found == {("*.plan_pro", "user=ada", 3), ("*.default", "(what no descriptor fits)", 2)}
    assert (of_rule, of_entries, of_default) == ([3], [7], [2])
    assert shop.counters("web", "--reset", "--yes").stdout.startswith("1 counter of domain web reset\n")
    assert len(shop.keys()) == 2
