"""`ratelimit call` against a running service."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ratelimit_service.cli import main
from tests.ports import free_port
from tests.processes import ROOT, Service, start_service
from tests.transports.certificates import authority, issue

RULES = """
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 5, name: per-user}
  - key: free
    rate_limit: {unlimited: true}
  - {key: closed, rate_limit: {deny: true, name: closed}}
  - key: often
    rate_limit: {unit: year, unit_multiplier: 5, requests_per_unit: 3}
  - key: tokens
    rate_limit: {unit: year, requests_per_unit: 1125899906842624}
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, transport: str) -> Iterator[Service]:
    with start_service(tmp_path_factory.mktemp("service"), RULES, {"TRANSPORT": transport}) as started:
        yield started


def call(service: Service, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["call", f"127.0.0.1:{service.grpc_port}", "shop", *arguments])


def lines(result: Result) -> list[str]:
    """The answer, without the time of the year and the folder of the rules."""
    shown = re.sub(r"(reset|come back) in [0-9]+ s", r"\1 in … s", result.output)
    return re.sub(r"[^ ]*/rules\.yaml", "rules.yaml", shown).splitlines()


def test_an_allowed_request_is_told_and_the_exit_code_is_0(service: Service) -> None:
    result = call(service, "user=ada", "--hits", "2")

    assert lines(result) == [
        "OK",
        "  user=ada: OK, limit 5 per year (per-user), 3 left, reset in … s",
        "    rule shop.user, rules.yaml:5:5",
    ]
    assert result.exit_code == 0


def test_a_refused_request_has_exit_code_1_and_says_when_to_come_back(service: Service) -> None:
    result = call(service, "user=bob", "--hits", "6")

    assert lines(result) == [
        "OVER_LIMIT",
        "  user=bob: OVER_LIMIT, limit 5 per year (per-user), 0 left, come back in … s",
        "    rule shop.user, rules.yaml:5:5",
    ]
    assert result.exit_code == 1


def test_a_request_that_is_always_denied_is_told_so(service: Service) -> None:
    result = call(service, "closed=x")

    assert lines(result) == [
        "OVER_LIMIT",
        "  closed=x: OVER_LIMIT, always denied (closed)",
        "    rule shop.closed, rules.yaml:8:19",
    ]
    assert result.exit_code == 1


def test_a_plus_begins_another_descriptor(service: Service) -> None:
    result = call(service, "user=cleo", "+", "free=", "+", "user=cleo", "path=/")

    assert lines(result) == [
        "OK",
        "  user=cleo: OK, limit 5 per year (per-user), 4 left, reset in … s",
        "    rule shop.user, rules.yaml:5:5",
        "  free=: OK, unlimited",
        "    rule shop.free, rules.yaml:7:5",
        (
            '  user=cleo path=/: OK, no limit applies: entry 2 of 2, path="/", fits nothing below the descriptor at'
            " rules.yaml:4:5: the rule there ends 1 entry earlier"
        ),
    ]


def test_a_descriptor_without_a_rule_is_told_from_an_unknown_domain(service: Service) -> None:
    target = f"127.0.0.1:{service.grpc_port}"
    unknown = CliRunner().invoke(main, ["call", target, "shopp", "user=ada"])

    assert lines(unknown) == ["OK", '  user=ada: OK, no limit applies: domain "shopp" has no rules']
    assert lines(call(service, "nobody=x")) == [
        "OK",
        '  nobody=x: OK, no limit applies: entry 1 of 1, nobody="x", fits nothing below domain "shop"',
    ]


def test_an_answer_without_the_store_is_told_with_the_policy_and_the_reason(tmp_path: Path, transport: str) -> None:
    environ = {"REDIS_URL": f"127.0.0.1:{free_port()}", "ON_STORE_FAILURE": "open", "TRANSPORT": transport}
    with start_service(tmp_path / "service", RULES, environ) as lonely:
        lonely.wait_until(lambda: "store lost" in lonely.log, "Redis is not there")
        result = call(lonely, "user=ada")

    assert lines(result)[2:] == [
        "    rule shop.user, rules.yaml:5:5",
        "    answered without the store, by policy open: connection refused",
    ]


def test_what_was_charged_can_be_looked_at_and_given_back(service: Service) -> None:
    call(service, "user=dan", "--hits", "4")

    assert "1 left" in call(service, "user=dan", "--hits", "0").output
    assert "4 left" in call(service, "user=dan", "--hits", "3", "--refund").output


def test_a_limit_can_be_sent_along(service: Service) -> None:
    week = call(service, "user=eve", "--limit", "2/week")
    years = call(service, "user=eve", "--limit", "10/5 years")

    assert lines(week)[1] == "  user=eve: OK, limit 2 per week, 1 left, reset in … s"
    assert lines(years)[1] == "  user=eve: OK, limit 10 per 5 years, 9 left, reset in … s"


def test_a_window_of_several_units_is_told_whole(service: Service) -> None:
    assert lines(call(service, "often=x"))[1] == "  often=x: OK, limit 3 per 5 years, 2 left, reset in … s"


def test_of_more_than_a_field_can_say_there_is_that_or_more(service: Service) -> None:
    told = [lines(call(service, "tokens=ada", "--hits", hits))[1] for hits in ("1125895611875329", "1")]

    assert told == [
        "  tokens=ada: OK, limit 4294967295 or more per year, 4294967295 or more left, reset in … s",
        "  tokens=ada: OK, limit 4294967295 or more per year, 4294967294 left, reset in … s",
    ]


def test_the_answer_can_be_had_as_json(service: Service) -> None:
    result = call(service, "user=fay", "--json")

    assert '"limitRemaining": 4' in result.output


def run(*arguments: str) -> tuple[int, str]:
    """In a process of its own: the exit code, and all that comes on stderr, grpcio's own lines too."""
    command = [sys.executable, "-m", "ratelimit_service", "call", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def test_no_answer_is_one_line_and_exit_code_3(service: Service) -> None:
    port = free_port()
    assert run(f"127.0.0.1:{port}", "shop", "user=ada", "--timeout", "30") == (
        3,
        f"ratelimit: 127.0.0.1:{port}: nothing listens there\n",
    )
    assert run("unix:/nowhere/socket", "shop", "user=ada") == (
        3,
        "ratelimit: unix:/nowhere/socket: nothing listens there\n",
    )
    http, debug = f"127.0.0.1:{service.http_port}", f"localhost:{service.debug_port}"
    wrong = "it speaks HTTP, not gRPC; gRPC is on port 8081 unless GRPC_PORT says otherwise"
    assert run(http, "shop", "user=ada", "--timeout", "30") == (3, f"ratelimit: {http}: {wrong}\n")
    assert run(debug, "shop", "user=ada", "--timeout", "30") == (3, f"ratelimit: {debug}: {wrong}\n")


def test_what_the_service_says_is_told_in_its_words(service: Service) -> None:
    target = f"127.0.0.1:{service.grpc_port}"

    assert run(target, "", "user=ada", "--timeout", "30") == (
        3,
        f"ratelimit: {target}: INVALID_ARGUMENT: rate limit domain must not be empty\n",
    )


def test_tls_that_is_spoken_to_a_plain_port_is_told(service: Service) -> None:
    grpc, http = f"127.0.0.1:{service.grpc_port}", f"127.0.0.1:{service.http_port}"
    elsewhere = "gRPC is on port 8081 unless GRPC_PORT says otherwise"

    assert run(grpc, "shop", "user=ada", "--tls", "--timeout", "30") == (
        3,
        f"ratelimit: {grpc}: it speaks gRPC without TLS: leave --tls, --ca, --cert and --key out\n",
    )
    assert run(http, "shop", "user=ada", "--tls", "--timeout", "30") == (
        3,
        f"ratelimit: {http}: it speaks HTTP without TLS, not gRPC; {elsewhere}\n",
    )


def test_a_port_with_tls_is_told_with_what_it_takes(tmp_path: Path, transport: str) -> None:
    ca = authority(tmp_path)
    of_service = issue(ca, "server", "IP:127.0.0.1")
    of_caller = issue(ca, "client", "DNS:client")
    asked = ("shop", "user=ada", "--timeout", "30")
    environ = {**of_service.environ, "TRANSPORT": transport}
    with start_service(tmp_path / "one", RULES, environ) as service:
        target = f"127.0.0.1:{service.grpc_port}"
        plain = run(target, *asked)
        untrusted = run(target, *asked, "--tls")
        trusted = run(target, *asked, "--ca", str(ca.cert))
    with start_service(tmp_path / "both", RULES, {**environ, "GRPC_CLIENT_TLS_CACERT": str(ca.cert)}) as service:
        mutual = f"127.0.0.1:{service.grpc_port}"
        without = run(mutual, *asked, "--ca", str(ca.cert))
        shown = ("--cert", str(of_caller.cert), "--key", str(of_caller.key))
        accepted = run(mutual, *asked, "--ca", str(ca.cert), *shown)

    assert plain == (3, f"ratelimit: {target}: it speaks TLS: add --tls, or --ca with the file of its CA\n")
    assert untrusted[0] == 3
    assert untrusted[1].startswith(f"ratelimit: {target}: its certificate is not accepted: ")
    assert untrusted[1].endswith("; --ca names the file of its CA\n")
    assert without[0] == 3
    assert without[1].endswith(": it may want a certificate of the caller, --cert and --key\n")
    assert (trusted, accepted) == ((0, ""), (0, ""))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["=x"], "'=x' has no key; write key=value"),
        (["foo"], "'foo' has no =; write foo=VALUE, or foo= for an empty value"),
        (["user=ada", "+"], "a descriptor is empty"),
        (["+", "user=ada"], "a descriptor is empty"),
        (["user=ada", "+", "+", "user=bob"], "a descriptor is empty"),
        (["user=ada", "--limit", "10/0 minutes"], "'10/0 minutes': a window of 0 minutes is not a length of time"),
        (["user=ada", "--limit", "many"], "'many' is not a limit such as 10/minute"),
        (["user=ada", "--hits", "-1"], "-1 is not in the range"),
    ],
)
def test_bad_usage_is_told_with_exit_code_2(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(main, ["call", "localhost:1", "shop", *arguments])

    assert result.exit_code == 2
    assert message in result.output


def test_an_address_without_a_port_is_told_the_port() -> None:
    result = CliRunner().invoke(main, ["call", "localhost", "shop", "user=ada"])

    assert result.exit_code == 2
    assert "localhost has no port; the service's own is localhost:8081" in result.output


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("http://localhost:8080", "http://localhost:8080 is a URL; write HOST:PORT of the gRPC port"),
        ("localhost:grpc", "localhost:grpc does not end with the number of a port"),
        ("limits..internal:8081", "limits..internal is not a valid host name"),
    ],
)
def test_what_is_no_target_is_bad_usage(target: str, message: str) -> None:
    result = CliRunner().invoke(main, ["call", target, "shop", "user=ada"])

    assert result.exit_code == 2
    assert message in result.output
