"""The HTTP ports of a service in a thread of its own, and a client that is somebody else's."""

import asyncio
import http.client
import json
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from ratelimit_service.api.health import Health
from ratelimit_service.api.ratelimit import ShouldRateLimit
from ratelimit_service.api.response import ResponseEncoder
from ratelimit_service.limiter.limiter import Limiter
from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.loading import Loading
from ratelimit_service.rules.reading.parse import parse
from ratelimit_service.rules.secret import hash_value_of
from ratelimit_service.rules.sources.files import RulesFiles
from ratelimit_service.rules.sources.stored import StoredRules
from ratelimit_service.server.admin.bans_api import ban_method
from ratelimit_service.server.admin.endpoints import Methods
from ratelimit_service.server.admin.explain_api import explainer
from ratelimit_service.server.admin.resets import reset_method
from ratelimit_service.server.admin.rules_api import RulesApi
from ratelimit_service.server.admin.rules_trial import TrialOptions
from ratelimit_service.server.admin.server import AdminServer
from ratelimit_service.server.events import EventLog
from ratelimit_service.server.state import ServiceState
from ratelimit_service.settings import Settings
from ratelimit_service.stores import open_rule_store
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.stores.store import Store
from ratelimit_service.system.address import Tcp
from tests.clocks import Clock

START_SECONDS = 60


class Reply(NamedTuple):
    """What came back."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


class Service:
    """Everything that HTTP shows, put together as `app.py` does it; the rules are the files in `rules`."""

    def __init__(
        self,
        rules: Path,
        *,
        store: Store | None = None,
        answer: ResponseEncoder | None = None,
        health: Health | None = None,
        **values: Any,
    ) -> None:
        self.rules = rules
        local = dict.fromkeys(("host", "debug_host"), "127.0.0.1") | {"port": "0", "debug_port": "0"}
        self.settings = Settings.model_validate(local | values)
        self.store = store or MemoryStore(1000, Clock())
        self._following: asyncio.Task[None] | None = None
        self.limiter = Limiter(self.store, max_values=self.settings.metrics_max_values)
        self.health = health or Health()
        self.rule_store = open_rule_store(self.settings)
        parser = partial(parse, hash_value=hash_value_of(self.settings), precedence=self.settings.rules_precedence)
        self.loading = Loading(
            [RulesFiles(rules), *([] if self.rule_store is None else [StoredRules(self.rule_store)])],
            parser,
            self._publish,
            clock=Clock(1_700_000_000_000_000),
        )
        trial = TrialOptions(parser, self.settings.rules_precedence, has_home=True, counts_as_envoyproxy=None)
        self.method = ShouldRateLimit(self.limiter, answer or ResponseEncoder())
        self.explainer = explainer(self.limiter)
        self.bans = ban_method(self.limiter)
        self.resets = reset_method(self.limiter)
        self.events = EventLog()
        self.server = AdminServer(
            ServiceState(self.limiter, self.method, self.loading, self.health, self.store.metrics),
            self.settings,
            Methods(self.explainer, self.bans, self.resets),
            self.events,
            partial(RulesApi, self.loading, self.rule_store, trial),
        )

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run it in the service's loop, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(START_SECONDS)

    def start(self) -> None:
        self.loop = uvloop.new_event_loop()  # as `ratelimit serve`
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        try:
            self.do(self._start())
        except BaseException:
            self.end()
            raise

    async def _start(self) -> None:
        await self.loading.load()
        if self.rule_store is not None:
            self._following = asyncio.create_task(self.loading.run())
        self.http, self.debug, self.prometheus = await self.server.start([Tcp("127.0.0.1", 8081)])

    def stop(self) -> None:
        self.do(self._stop())

    async def _stop(self) -> None:
        await self.server.stop()
        if self._following is not None:
            self._following.cancel()
        if self.rule_store is not None:
            await self.rule_store.close()

    def end(self) -> None:
        """Whether or not it was stopped before."""
        self.stop()
        self.explainer.close()
        self.loop.call_soon_threadsafe(self.bans.close)
        self.loop.call_soon_threadsafe(self.resets.close)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(START_SECONDS)
        self.loop.close()

    def load(self, text: str) -> None:
        """Have these rules on disk, and look at them."""
        (self.rules / "rules.yaml").write_text(text, encoding="utf-8")
        self.do(self.loading.load())

    def get(self, path: str, verb: str = "GET", **headers: str) -> Reply:
        """Ask the operator's port."""
        return ask(self.debug[0], verb, path, headers=headers)

    @property
    def bearer(self) -> dict[str, str]:
        """The header with the token that the service has made."""
        return {"Authorization": f"Bearer {self.server.made_token}"}

    def post(self, body: Any) -> Reply:
        """Ask `/json`; what is not bytes is made JSON."""
        return ask(self.http[0], "POST", "/json", body=body if isinstance(body, bytes) else json.dumps(body).encode())

    def _publish(self, book: RuleBook) -> None:
        self.limiter.book = book
        self.health.set_rules_loaded(bool(book.rules))


def ask(
    address: Tcp, verb: str, path: str, *, body: bytes | None = None, headers: dict[str, str] | None = None
) -> Reply:
    """One request on a connection of its own."""
    connection = http.client.HTTPConnection(*address, timeout=START_SECONDS)
    try:
        connection.request(verb, path, body, headers or {})
        response = connection.getresponse()
        return Reply(response.status, response.headers, response.read())
    finally:
        connection.close()


@contextmanager
def running(folder: Path, rules: str, **options: Any) -> Iterator[Service]:
    """A service by these rules."""
    (folder / "rules.yaml").write_text(rules, encoding="utf-8")
    service = Service(folder, **options)
    service.start()
    try:
        yield service
    finally:
        service.end()
