"""What the fuzzer found, and what it takes to reach every line, is tried again each time; Hypothesis adds its own."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.harness import try_case

CORPUS = Path(__file__).with_name("corpus")


def test_every_case_of_the_corpus_holds() -> None:
    cases = sorted(CORPUS.iterdir())

    for case in cases:
        try:
            try_case(case.read_bytes())
        except Exception as error:
            raise AssertionError(f"{case.name}: {error}") from error
    assert sum(case.stat().st_size for case in cases) < 300_000


@pytest.mark.parametrize("how", range(8))
@given(st.data())
def test_any_case_holds(how: int, data: st.DataObject) -> None:
    """With and without small limits, a beginning, and steps; each way with its own share of the examples."""
    manner = data.draw(st.sampled_from([0, 8, 16, 24, 0x60]))
    cut = data.draw(st.sampled_from([0, 1, 3, 30]))

    try_case(bytes([how | manner, cut]) + data.draw(st.binary(max_size=200)))
