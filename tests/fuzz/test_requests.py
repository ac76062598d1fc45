"""Requests that the fuzzer begins with and has found hold; Hypothesis adds its own."""

from base64 import b64encode
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis as Client

from tests.fuzz import corpus
from tests.fuzz.requests import SEPARATOR, Harness
from tests.fuzz.seeds import seeds
from tests.redis import start_redis


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    with start_redis(tmp_path_factory.mktemp("redis")) as redis, Client(unix_socket_path=str(redis.socket)) as client:
        yield Harness(client)


def test_every_case_of_the_corpus_holds(harness: Harness) -> None:
    for case in (*seeds(), *corpus.read(corpus.REQUESTS)):
        try:
            harness.try_case(case)
        except Exception as error:
            raise AssertionError(f"{b64encode(case).decode()}: {error}") from error


@given(st.sampled_from(list(seeds())), st.integers(0, 255), st.data())
def test_a_case_with_bytes_changed_holds(harness: Harness, case: bytes, how: int, data: st.DataObject) -> None:
    at = data.draw(st.integers(1, len(case)))
    inserted = data.draw(st.binary(max_size=5) | st.just(SEPARATOR))
    dropped = data.draw(st.integers(0, 5))

    harness.try_case(bytes([how]) + case[1:at] + inserted + case[at + dropped :])
