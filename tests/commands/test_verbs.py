"""What the command line says of verbs."""

import runpy
from typing import Any

import pytest
from click.testing import CliRunner

from ratelimit_service.cli import VERBS, main
from tests.processes import ROOT


@pytest.mark.parametrize(
    ("typed", "hint"), [("exlpain", " Did you mean explain?"), ("cehck", " Did you mean check?"), ("zzz", "")]
)
def test_a_misspelt_verb_is_told_which_one_it_is_most_like(typed: str, hint: str) -> None:
    result = CliRunner().invoke(main, [typed, "shop"])

    assert result.exit_code == 2
    assert f"Error: No such command '{typed}'.{hint}\n" in result.output


def test_the_table_of_commands_is_the_generated_one_and_links_all() -> None:
    """If this fails: python docs/generate.py, whose READ has a link for each command."""
    generate: dict[str, Any] = runpy.run_path(str(ROOT / "docs" / "generate.py"))
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")

    assert generate["filled"](text, generate["commands_table"]()) == text
    assert generate["READ"].keys() == set(VERBS)
