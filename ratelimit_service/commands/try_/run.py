"""Callers of a model whose answers cost what is known at their end, and the service that limits them by rules."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic
from typing import Final, NamedTuple

from ratelimit_service.commands.try_.envoy import Ask, play_envoy, start_envoy
from ratelimit_service.commands.try_.model import Model
from ratelimit_service.errors import StartError
from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.checks.envoy import envoy_notes
from ratelimit_service.rules.reading.parse import parse
from ratelimit_service.rules.sources.yaml_text import YamlText
from ratelimit_service.server.engine import Engine
from ratelimit_service.settings import load_settings
from ratelimit_service.system.address import Tcp

BARS: Final = 12
"""Shown of a run."""
_SAMPLES: Final = 10
"""Taken for each bar."""
USER: Final = "ada"
_LAST_SECONDS: Final = 60.0
"""For the answers to the last requests."""


class Callers(NamedTuple):
    """Who asks, for how long, and what the answers are; a caller waits for each, and a moment after a refusal."""

    at_once: int
    seconds: float
    tokens: tuple[int, int] = (1000, 4000)
    """What an answer uses, from and to."""
    takes: tuple[float, float] = (0.3, 1.0)
    """Seconds of an answer, from and to."""

    async def call(self, ask: Ask) -> Counter[int]:
        """The statuses that all are answered."""
        statuses: Counter[int] = Counter()
        end = monotonic() + self.seconds
        chances = map(random.Random, range(self.at_once))
        await asyncio.gather(*(self._caller(ask, chance, end, statuses) for chance in chances))
        return statuses

    async def _caller(self, ask: Ask, chance: random.Random, end: float, statuses: Counter[int]) -> None:
        await asyncio.sleep(chance.random() * min(0.5, self.seconds))
        while monotonic() < end:
            usage, seconds = chance.randint(*self.tokens), chance.uniform(*self.takes)
            status = await ask({"x-user": USER, "x-usage": str(usage), "x-seconds": f"{seconds:.3f}"})
            statuses[status] += 1
            if status != 200:
                await asyncio.sleep(chance.random())


class Used(NamedTuple):
    """What answers have used until a second."""

    second: float
    tokens: int


class Outcome(NamedTuple):
    """What came of a run."""

    used: list[Used]
    statuses: Counter[int]


async def run(rules: str, callers: Callers, envoy: str, show: Callable[[Used], None]) -> Outcome:
    """Let the callers ask under these rules, and show what has been used, bar by bar.

    `envoy` is its program; empty: its calls are played.
    """
    model, items, used = Model(), rate_limits(rules), [Used(0, 0)]

    def note(sample: int) -> None:
        used.append(Used(callers.seconds * sample / (BARS * _SAMPLES), model.used[USER]))
        if not sample % _SAMPLES:
            show(used[-1])

    async def watch() -> None:
        began = monotonic()
        for sample in range(1, BARS * _SAMPLES):
            await asyncio.sleep(began + callers.seconds * sample / (BARS * _SAMPLES) - monotonic())
            note(sample)

    async with model.serving(), _service(rules) as port:
        between = start_envoy(envoy, items, model.port, port) if envoy else play_envoy(items, model.port, port)
        async with between as ask:
            try:
                async with asyncio.timeout(callers.seconds + _LAST_SECONDS):
                    statuses, _ = await asyncio.gather(callers.call(ask), watch())
            except OSError as error:
                raise StartError(f"a request was not answered: {str(error) or 'the time is over'}") from error
    note(BARS * _SAMPLES)
    return Outcome(used, statuses)


def rate_limits(rules: str) -> str:
    """Envoy's half of the rules, as `ratelimit check` has it."""
    [note] = envoy_notes(_book(rules))
    return note.message.partition("\n")[2]


def _book(rules: str) -> RuleBook:
    return parse([YamlText("rules.yaml", rules.encode())])


@asynccontextmanager
async def _service(rules: str) -> AsyncIterator[int]:
    """The port of a service with these rules, whose counters are in this process."""
    settings, _ = load_settings({})
    engine = Engine(settings)
    engine.publish(_book(rules))
    try:
        await engine.listen([Tcp("127.0.0.1", 0)])
        await engine.begin()
        [address] = engine.addresses
        assert isinstance(address, Tcp)
        yield address.port
    finally:
        await engine.abort()
