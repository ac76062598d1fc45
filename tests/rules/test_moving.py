"""The rules that docs/moving.md makes of other limiters' load without a warning, and count as it says."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from ratelimit_service.cli import main

DOCUMENT = (Path(__file__).parents[2] / "docs" / "moving.md").read_text(encoding="utf-8")

CASES = {
    "From limitador": """
domain: shop
cases:
    - request: req_method=POST user_id=ada
      at: 2026-01-05T00:00:50Z
      steps:
        - {times: 5, answer: allowed}
        - {after: 10s, answer: refused, until_reset: 50s}
        - {after: 50s, answer: allowed, remaining: 4}
    - {request: req_method=GET user_id=ada, limit: none}
    """,
    "From Kong": """
domain: search
cases:
    - request: consumer=ada
      limit: 10 per minute, 500 per hour
      steps:
        - {times: 10, answer: allowed}
        - {times: 20, answer: refused}
        - {after: 90s, times: 5, answer: allowed}
        - {answer: refused}
    """,
    "From nginx limit_req": """
domain: search
cases:
    - request: remote_address=203.0.113.7
      steps:
        - {times: 21, answer: allowed}
        - {answer: refused}
        - {after: 100ms, answer: allowed}
        - {answer: refused}
        - {after: 2100ms, times: 21, answer: allowed}
        - {answer: refused}
    """,
}


def rules(heading: str) -> str:
    """Of the section with this heading."""
    section = DOCUMENT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    [block] = re.findall(r"^```yaml\n(domain:.*?)^```", section, re.MULTILINE | re.DOTALL)
    return str(block)


@pytest.mark.parametrize("heading", CASES)
def test_a_configuration_of_another_limiter_counts_as_it_did(tmp_path: Path, heading: str) -> None:
    folder = tmp_path / "rules"
    folder.mkdir()
    (folder / "rules.yaml").write_text(rules(heading))
    (tmp_path / "cases.yaml").write_text(CASES[heading])

    checked = CliRunner().invoke(main, ["check", str(folder)])
    result = CliRunner().invoke(main, ["rules", "test", str(tmp_path / "cases.yaml"), "--rules", str(folder)])

    assert re.fullmatch(r"\d+ rules? in 1 domain (is|are) good\n", checked.output)
    assert result.exit_code == 0, result.output


def test_every_section_has_its_cases() -> None:
    assert re.findall(r"^## (.*)$", DOCUMENT, re.MULTILINE) == list(CASES)
