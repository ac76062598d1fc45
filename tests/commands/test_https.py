"""The commands that ask a running service do so by TLS too."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ratelimit_service.cli import main
from tests.processes import Service, start_service
from tests.transports.certificates import Issued, authority, issue

RULES = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 10}}]\n"
TOKEN = "0123456789abcdef" * 2

VERBS = {
    "status": ["status", "{}"],
    "top": ["top", "{}", "--once"],
    "bans": ["bans", "--at", "{}"],
    "ban": ["ban", "shop", "user=eve", "--for", "1h", "--why", "test", "--at", "{}"],
    "unban": ["unban", "shop", "user=eve", "--at", "{}"],
    "explain": ["explain", "shop", "user=ada", "--at", "{}"],
    "counters": ["counters", "shop", "user=ada", "--reset", "--yes", "--at", "{}"],
}


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Issued:
    return authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, ca: Issued) -> Iterator[Service]:
    """One whose debug port has TLS and needs a token for everything."""
    own = issue(ca, "server", "DNS:localhost")
    environ = {
        "ADMIN_TLS_CERT": str(own.cert),
        "ADMIN_TLS_KEY": str(own.key),
        "ADMIN_TOKEN": TOKEN,
        "ADMIN_READ_NEEDS_TOKEN": "true",
    }
    with start_service(tmp_path_factory.mktemp("service"), RULES, environ) as started:
        yield started


def run(verb: str, url: str, *more: str, token: str = TOKEN) -> Result:
    words = [word.format(url) for word in VERBS[verb]]
    return CliRunner().invoke(main, [*words, *more], env={"ADMIN_TOKEN": token})


def test_every_verb_speaks_https_to_a_service_whose_ca_it_is_given(service: Service, ca: Issued) -> None:
    for verb in VERBS:
        result = run(verb, f"https://localhost:{service.debug_port}", "--ca", str(ca.cert))

        assert result.exit_code == 0, (verb, result.output)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_says_what_is_missing(service: Service, verb: str) -> None:
    unknown_ca = run(verb, f"https://localhost:{service.debug_port}")
    no_scheme = run(verb, f"localhost:{service.debug_port}")
    other_port = run(verb, f"https://localhost:{service.http_port}")

    assert "its certificate is not accepted: " in unknown_ca.output
    assert "; --ca names the file" in unknown_ca.output
    assert "it speaks TLS: write https:// before it" in no_scheme.output
    assert "it speaks HTTP without TLS: write http:// before it" in other_port.output
    assert {result.exit_code for result in (unknown_ca, no_scheme, other_port)} <= {1, 3}


def test_the_command_on_the_machine_of_the_service_finds_its_port_by_the_settings(service: Service, ca: Issued) -> None:
    environ = {"ADMIN_TLS_CERT": "cert", "ADMIN_TLS_KEY": "key", "ADMIN_TOKEN": TOKEN}
    result = CliRunner().invoke(
        main, ["status", "--ca", str(ca.cert)], env=environ | {"DEBUG_PORT": str(service.debug_port)}
    )

    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(f"https://localhost:{service.debug_port}: version")


def test_too_many_wrong_tokens_are_one_line_that_says_when_to_come_again(service: Service, ca: Issued) -> None:
    def wrong() -> str:
        url = f"https://localhost:{service.debug_port}"
        return run("bans", url, "--ca", str(ca.cert), token=TOKEN[::-1]).stderr

    said = wrong()
    while "that is not the token of this service" in said:
        said = wrong()

    assert re.search(
        r"^ratelimit: \S+: too many wrong tokens came from this address: it may try again in \d s\n$", said
    )


def test_a_client_certificate_is_shown_to_a_service_that_asks_for_one(tmp_path: Path, ca: Issued) -> None:
    own, mine = issue(ca, "asking", "DNS:localhost"), issue(ca, "mine")
    foreign = issue(authority(tmp_path), "foreign")
    environ = {"ADMIN_TLS_CERT": str(own.cert), "ADMIN_TLS_KEY": str(own.key), "ADMIN_CLIENT_TLS_CACERT": str(ca.cert)}
    with start_service(tmp_path / "service", RULES, environ) as service:
        url = f"https://localhost:{service.debug_port}"
        trust = ("--ca", str(ca.cert))
        shown = run("status", url, *trust, "--cert", str(mine.cert), "--key", str(mine.key))
        none = run("status", url, *trust)
        other = run("status", url, *trust, "--cert", str(foreign.cert), "--key", str(foreign.key))
        missing = run("status", url, *trust, "--cert", str(tmp_path / "nothing"))

    assert shown.exit_code == 0, shown.output
    assert "if it asks for a client certificate, --cert names one" in none.output
    assert "--cert must be signed by its ADMIN_CLIENT_TLS_CACERT" in other.output
    assert "nothing and its --key cannot be used: No such file" in missing.output
    assert "--key needs --cert" in run("status", url, "--key", str(mine.key)).output
