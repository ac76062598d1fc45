"""A long text is made once for all that ask, of what was true when they asked."""

import asyncio
import gzip
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ratelimit_service.server.admin.connection import LoopSlots
from ratelimit_service.server.admin.shared_response import BURST, SharedResponse
from tests.admin.conftest import RULES
from tests.admin.service import Service, running
from tests.admin.test_loop_slots import NotingHealth

ADA = {"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "ada"}]}]}


class Numbered:
    """Texts that say how many were begun before."""

    def __init__(self) -> None:
        self.begun = 0

    async def begin(self) -> Iterable[str]:
        self.begun += 1
        return [f"{self.begun}\n"] * 3


def test_all_that_ask_before_a_text_is_begun_share_it() -> None:
    numbered = Numbered()

    async def story() -> set[bytes]:
        rendering = SharedResponse({}, numbered.begin, LoopSlots())
        return {text.packed for text in await asyncio.gather(*(rendering.text() for _ in range(100)))}

    assert [gzip.decompress(packed) for packed in asyncio.run(story())] == [b"1\n1\n1\n"]
    assert numbered.begun == 1


def test_a_text_that_was_begun_before_is_not_given_to_who_asks_now() -> None:
    numbered = Numbered()

    async def story() -> list[int]:
        rendering = SharedResponse({}, numbered.begin, LoopSlots())
        return [int(gzip.decompress((await rendering.text()).packed)[:1]) for _ in range(BURST)]

    assert asyncio.run(story()) == [1, 2, 3, 4, 5]


def test_a_client_that_leaves_takes_the_text_from_no_other() -> None:
    numbered = Numbered()

    async def story() -> int:
        rendering = SharedResponse({}, numbered.begin, LoopSlots())
        leaving, staying = (asyncio.create_task(rendering.text()) for _ in range(2))
        await asyncio.sleep(0)
        leaving.cancel()
        return (await staying).size

    assert asyncio.run(story()) == 6


@pytest.mark.parametrize("path", ["/metrics", "/status"])
def test_scrapers_together_cost_one_rendering_a_second(tmp_path: Path, path: str) -> None:
    health = NotingHealth()
    with running(tmp_path, RULES, health=health) as service, ThreadPoolExecutor(20) as scrapers:
        before, start = health.asked, time.monotonic()
        replies = list(scrapers.map(lambda _: service.get(path).status, range(100)))
        renderings, seconds = health.asked - before, time.monotonic() - start

    assert replies == [200] * 100
    assert renderings <= 2 * (BURST + 1 + seconds)  # each of them asks once, or twice


def test_a_page_shows_all_that_happened_before_it_was_asked(service: Service) -> None:
    shown = []
    for _ in range(BURST + 1):
        service.post(ADA)
        shown += [line for line in service.get("/stats").text.splitlines() if "total_requests" in line]

    assert [line.rpartition(" ")[2] for line in shown] == ["1", "2", "3", "4", "5", "6"]
