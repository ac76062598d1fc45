"""A service to ask over HTTP."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.admin.service import Service, running

RULES = """\
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 3}
  - key: plan
    value: free
    descriptors:
      - key: path
        value: /search
        shadow_mode: true
        rate_limit: {unit: second, requests_per_unit: 1}
  - key: plan
    value: gold
    rate_limit: {unlimited: true}
"""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """One with a few rules, on free ports of 127.0.0.1."""
    with running(tmp_path, RULES) as started:
        yield started
