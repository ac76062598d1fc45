"""`ratelimit call` against a running service."""

from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from ratelimit_service.cli import main
from tests.processes import Service, start_service

RULES = """
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 5, name: per-user}
  - key: free
    rate_limit: {unlimited: true}
  - key: often
    rate_limit: {unit: year, unit_multiplier: 5, requests_per_unit: 3}
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, transport: str) -> Iterator[Service]:
    with start_service(tmp_path_factory.mktemp("service"), RULES, {"TRANSPORT": transport}) as started:
        yield started


def call(service: Service, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["call", f"127.0.0.1:{service.grpc_port}", "shop", *arguments])


def lines(result: Result) -> list[str]:
    """The answer, without the time of the year."""
    return [line.partition(", reset in ")[0] for line in result.output.splitlines()]


def test_an_allowed_request_is_told_and_the_exit_code_is_0(service: Service) -> None:
    result = call(service, "user=ada", "--hits", "2")

    assert lines(result) == ["OK", "  user=ada: OK, limit 5 per year (per-user), 3 left"]
    assert result.exit_code == 0


def test_a_refused_request_has_exit_code_1(service: Service) -> None:
    result = call(service, "user=bob", "--hits", "6")

    assert lines(result) == ["OVER_LIMIT", "  user=bob: OVER_LIMIT, limit 5 per year (per-user), 0 left"]
    assert result.exit_code == 1


def test_a_plus_begins_another_descriptor(service: Service) -> None:
    result = call(service, "user=cleo", "+", "free", "+", "user=cleo", "path=/")

    assert lines(result) == [
        "OK",
        "  user=cleo: OK, limit 5 per year (per-user), 4 left",
        "  free=: OK, unlimited",
        "  user=cleo path=/: OK, no limit applies",
    ]


def test_what_was_charged_can_be_looked_at_and_given_back(service: Service) -> None:
    call(service, "user=dan", "--hits", "4")

    assert "1 left" in call(service, "user=dan", "--hits", "0").output
    assert "4 left" in call(service, "user=dan", "--hits", "3", "--refund").output


def test_a_limit_can_be_sent_along(service: Service) -> None:
    assert lines(call(service, "user=eve", "--limit", "2/week"))[1] == "  user=eve: OK, limit 2 per week, 1 left"


def test_a_window_of_several_units_is_told_whole(service: Service) -> None:
    assert lines(call(service, "often=x"))[1] == "  often=x: OK, limit 3 per 5 years, 2 left"


def test_the_answer_can_be_had_as_json(service: Service) -> None:
    result = call(service, "user=fay", "--json")

    assert '"limitRemaining": 4' in result.output


def test_no_answer_is_one_line_and_exit_code_3() -> None:
    result = CliRunner().invoke(main, ["call", "127.0.0.1:1", "shop", "user=ada", "--timeout", "5"])

    assert result.exit_code == 3
    assert result.output.startswith("ratelimit: 127.0.0.1:1: UNAVAILABLE: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["=x"], "'=x' has no key; write key=value"),
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
