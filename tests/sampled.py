"""A matrix of cases of which `make test` runs some, always the same ones, and `make test-extended` the others."""

from collections.abc import Iterable
from typing import Any

import pytest


def sampled(cases: Iterable[Any], every: int) -> list[Any]:
    """Cases for `parametrize`: the first of each so many stays, the others are extended tests."""
    return [each if number % every == 0 else extended(each) for number, each in enumerate(cases)]


def extended(case: Any) -> Any:
    """A case that is an extended test."""
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.extended)
