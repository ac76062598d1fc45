"""What the command line says of verbs."""

import pytest
from click.testing import CliRunner

from ratelimit_service.cli import main


@pytest.mark.parametrize(
    ("typed", "hint"), [("exlpain", " Did you mean explain?"), ("cehck", " Did you mean check?"), ("zzz", "")]
)
def test_a_misspelt_verb_is_told_which_one_it_is_most_like(typed: str, hint: str) -> None:
    result = CliRunner().invoke(main, [typed, "shop"])

    assert result.exit_code == 2
    assert f"Error: No such command '{typed}'.{hint}\n" in result.output
