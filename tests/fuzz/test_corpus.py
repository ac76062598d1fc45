"""What the fuzzer found, and what it takes to reach every line, is tried again each time; Hypothesis adds its own."""

from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz import corpus
from tests.fuzz.harness import try_case


def test_every_case_of_the_corpus_holds() -> None:
    cases = corpus.read()

    for case in cases:
        try:
            try_case(case)
        except Exception as error:
            raise AssertionError(f"{b64encode(case).decode()}: {error}") from error
    assert len(cases) > 500
    assert sum(map(len, cases)) < 300_000


@pytest.mark.parametrize("how", range(8))
@given(st.data())
def test_any_case_holds(how: int, data: st.DataObject) -> None:
    """With and without small limits, a beginning, and steps; each way with its own share of the examples."""
    manner = data.draw(st.sampled_from([0, 8, 16, 24, 0x60])) | data.draw(st.sampled_from([0, 0x80]))
    cut = data.draw(st.sampled_from([0, 1, 3, 30]))

    try_case(bytes([how | manner, cut]) + data.draw(st.binary(max_size=200)))
