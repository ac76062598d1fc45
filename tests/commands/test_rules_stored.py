"""`ratelimit rules get|put|delete|diff|history|rollback`: the rules that a running service keeps."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from ratelimit_service.cli import main
from tests.admin.service import Service, running

TOKEN = "0123456789abcdef0123456789abcdef"
SHOP = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 5}}]\n"
BLOG = "# Readers\ndomain: blog\ndescriptors:\n  - key: user\n    rate_limit: {unit: hour, requests_per_unit: 5}\n"
HIGHER = BLOG.replace("requests_per_unit: 5", "requests_per_unit: 50")
VERSION = re.compile(r"(\d+)-[0-9a-f]{16}")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """One that keeps rules in a folder."""
    (tmp_path / "rules").mkdir()
    settings = {"rules_store": str(tmp_path / "kept"), "admin_token": TOKEN}
    with running(tmp_path / "rules", SHOP, **settings) as started:
        yield started


def invoke(service: Service, *words: str, given: str | None = None, token: str = TOKEN) -> tuple[int, str]:
    """The exit code, and what is said, with `N-DIGEST` in place of versions."""
    command = ["rules", *words, "--at", str(service.debug[0])]
    result = CliRunner().invoke(main, command, input=given, env={"ADMIN_TOKEN": token})
    return result.exit_code, VERSION.sub(r"\1-DIGEST", result.output)


def test_rules_are_put_read_compared_rolled_back_and_deleted(service: Service, tmp_path: Path) -> None:
    file = tmp_path / "blog.yaml"
    file.write_text(BLOG)
    put = invoke(service, "put", str(file), "--why", "ticket 1")
    again = invoke(service, "put", "-", given=BLOG)
    file.write_text(HIGHER)
    second = invoke(service, "put", str(file))
    read = invoke(service, "get", "blog")
    old = invoke(service, "get", "blog", "--version", "1")
    back = invoke(service, "rollback", "blog", "1")
    deleted = invoke(service, "delete", "blog")
    history = invoke(service, "history", "blog")
    entries = json.loads(invoke(service, "history", "blog", "--json")[1])["versions"]

    assert put == (0, "rules of blog: version 1-DIGEST in place of none\n")
    assert again == (0, "the rules of blog are the same already, version 1-DIGEST\n")
    assert second == (0, "rules of blog: version 2-DIGEST in place of 1-DIGEST\n")
    assert (read, old) == ((0, HIGHER), (0, BLOG))
    assert back == (0, "rules of blog: version 3-DIGEST, which is as 1-DIGEST\n")
    assert deleted == (0, "rules of blog are deleted: version 4-DIGEST in place of 3-DIGEST\n")
    assert [line.split()[0] for line in history[1].splitlines()] == [
        "version",
        *(f"{number}-DIGEST" for number in (4, 3, 2, 1)),
    ]
    assert "ticket 1" in history[1].splitlines()[-1]
    assert [each["who"].count("@") for each in entries] == [1] * 4
    assert invoke(service, "rollback", "blog", "2") == (0, "rules of blog: version 5-DIGEST, which is as 2-DIGEST\n")


def test_diff_says_what_a_put_would_change(service: Service) -> None:
    added = invoke(service, "diff", "-", given=BLOG)
    in_json = invoke(service, "diff", "-", "--json", given=BLOG)

    assert added == (
        1,
        """\
+ blog.user: no limit → 5 requests per hour
    api:blog:5:5; such as user=other
1 descriptor with another limit: 1 added (0 rules → 1 rule)
""",
    )
    assert (in_json[0], json.loads(in_json[1])["added"]) == (1, 1)


def test_what_is_wrong_is_told_with_its_place(service: Service, tmp_path: Path) -> None:
    file = tmp_path / "blog.json"
    file.write_text('{"domain": "blog", "descriptors": [{"key": "user", "rate_limit": {"unit": "age"}}]}')
    unknown = "is not one of second, minute, hour, day, week, month, year"
    stale = invoke(service, "put", "-", "--replaces", "7-0123456789abcdef", given=BLOG)
    url = f"http://{service.debug[0]}"

    assert invoke(service, "put", str(file))[0] == 2
    assert f'api:blog/descriptors/0/rate_limit/unit: unit "age" {unknown}' in invoke(service, "put", str(file))[1]
    assert invoke(service, "put", "-", given="descriptors: []")[1].startswith("standard input: has no domain")
    assert invoke(service, "diff", "-", given="{")[0] == 2
    assert stale == (1, f"ratelimit: {url}: there are no rules of this domain here\n")
    assert invoke(service, "get", "blog") == (1, f'ratelimit: {url}: there are no rules of domain "blog" here\n')
    assert invoke(service, "get", "--version", "1")[0] == 2
    assert "set ADMIN_TOKEN as for the service" in invoke(service, "put", "-", given=BLOG, token="x" * 32)[1]
    assert invoke(service, "put", str(tmp_path / "none"))[1].endswith(
        "none: cannot be read: no such file or directory\n"
    )
    assert invoke(service, "put", "-", given=SHOP)[1].startswith(
        f'ratelimit: {url}: the rules of domain "shop" are in '
    )


def test_the_domains_that_a_service_keeps_are_listed(service: Service) -> None:
    invoke(service, "put", "-", "--why", "a start", given=BLOG)
    late = [invoke(service, "get") for _ in range(200) if "blog" not in invoke(service, "get")[1]]
    code, text = invoke(service, "get")

    assert len(late) < 200
    assert code == 0
    assert text.splitlines()[0].split() == ["domain", "version", "when", "who", "why"]
    assert text.splitlines()[1].startswith("blog    1-DIGEST  ")
    assert re.fullmatch(r"1 domain in the rules API \(.*kept\)", text.splitlines()[2])
