"""deploy/ as a whole."""

from pathlib import Path

import pytest

from tests.deploy.run import run

pytestmark = pytest.mark.extended


def test_what_compose_deploys_limits_together_and_says_what_it_has_lost(tmp_path: Path) -> None:
    run(tmp_path, print)
