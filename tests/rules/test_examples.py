"""The rules that come with the service are good, and show every option."""

from pathlib import Path

from ratelimit_service.rules.checks.lint import KINDS, lint
from ratelimit_service.rules.reading.parse import parse
from ratelimit_service.rules.sources.files import read_files
from ratelimit_service.rules.syntax.options import OPTIONS

ROOT = Path(__file__).parents[2]
REFERENCE = "".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("rules.md", "rules-topics.md"))


def test_the_examples_load_without_a_warning() -> None:
    rules = parse(read_files(ROOT / "config"))

    assert set(rules.domains) >= {"shop", "every-option"}
    assert lint(rules) == []


def test_every_option_stands_in_the_example_of_every_option() -> None:
    text = (ROOT / "config" / "every-option.yaml").read_text()

    assert [option.key for option in OPTIONS if f"{option.key}: " not in text.replace(":\n", ": ")] == []


def test_every_kind_of_warnings_stands_in_the_reference() -> None:
    assert [kind for kind in KINDS if f"| `{kind}` |" not in REFERENCE] == []


def test_every_option_stands_in_the_reference() -> None:
    assert [option.key for option in OPTIONS if f"| `{option.key}` |" not in REFERENCE] == []
