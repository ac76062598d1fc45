"""Rules in any document load without a warning, and cases pass. test_blocks.py has what those on rules say."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ratelimit_service.api.response import ResponseEncoder
from ratelimit_service.commands.rules.cases import read_cases
from ratelimit_service.commands.rules.run import run_case
from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.checks.lint import lint
from ratelimit_service.rules.reading.parse import parse
from ratelimit_service.rules.secret import HashValue
from ratelimit_service.rules.sources.files import read_files
from ratelimit_service.rules.sources.yaml_text import YamlText
from tests.books import whole

ROOT = Path(__file__).parents[2]
OF_OTHERS = (
    *("typed_config", "actions:", "connect_timeout", "health_checks", "apiVersion", "services:"),  # Envoy, platforms
    *("max_value:", "plugins:"),  # limitador, Kong
)
"""Other YAML than rules. What is for Envoy and for platforms is given to them by tests/deploy."""
BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks() -> Iterator[tuple[str, str]]:
    """The YAML blocks of all documents that are rules or cases, each with its place."""
    for file in [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "deploy" / "README.md"]:
        text = file.read_text()
        for match in BLOCK.finditer(text):
            line = text[: match.start()].count("\n") + 2
            if not any(word in match[1] for word in OF_OTHERS):
                yield f"{file.relative_to(ROOT)}:{line}", match[1]


def made(block: str) -> RuleBook:
    """The rules of a block; its data files have the value `listed`, with the name `pro`."""
    return parse(
        [YamlText("block.yaml", whole(block).encode())],
        hash_value=HashValue("key"),
        read_data=lambda _: b"listed,pro\n",
    )


RULES = [found for found in blocks() if "\ncases:" not in found[1]]
CASES = [found for found in blocks() if "\ncases:" in found[1]]
ENCODER = ResponseEncoder(draw=lambda: 0)


def test_there_are_blocks() -> None:
    assert len(RULES) >= 15
    assert len(CASES) == 1


@pytest.mark.parametrize(("place", "block"), RULES, ids=[place for place, _ in RULES])
def test_every_block_of_rules_loads_without_a_warning(place: str, block: str) -> None:
    assert lint(made(block)) == [], place


@pytest.mark.parametrize(("place", "block"), CASES, ids=[place for place, _ in CASES])
def test_every_block_of_cases_passes_on_the_example_rules(place: str, block: str) -> None:
    example = parse(read_files(ROOT / "config" / "example.yaml"))

    for case in read_cases(YamlText(place, block.encode())):
        assert run_case(case, example, ENCODER) == []
