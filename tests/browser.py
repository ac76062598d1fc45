"""A browser that is somebody else's, to see the page as people do."""

import asyncio
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from tempfile import TemporaryDirectory
from typing import Any

from aiohttp import ClientSession, ClientWebSocketResponse

from tests.peers import chromium
from tests.processes import eventually

_SECONDS = 120
_LISTENS = re.compile(r"DevTools listening on (ws://\S+)")


def _command(profile: str, *options: str) -> list[str]:
    return [
        str(chromium()),
        "--headless",
        "--hide-scrollbars",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        f"--user-data-dir={profile}",
        *options,
    ]


def browse(url: str, *options: str, milliseconds: int = 3000) -> str:
    """The page's DOM as markup, after its scripts have run for so long on the browser's own clock."""
    with TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        command = _command(profile, f"--virtual-time-budget={milliseconds}", *options, "--dump-dom", url)
        process = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    assert process.returncode == 0, process.stderr[-2000:]
    return process.stdout


class Page:
    """A page that is open, by the DevTools protocol."""

    def __init__(self, runner: asyncio.Runner, socket: ClientWebSocketResponse, session: str) -> None:
        self.problems: list[str] = []
        """Errors and warnings of the console, exceptions, and violations of the security policy."""
        self._paused: list[tuple[str, str]] = []
        """Requests that wait for `log_in`: the event, and the request's identity."""
        self._runner = runner
        self._socket = socket
        self._session = session
        self._numbers = count(1000)

    def evaluate(self, expression: str) -> Any:
        """The value of the expression, which JSON can carry."""
        reply = self.command("Runtime.evaluate", expression=expression, returnByValue=True, userGesture=True)
        assert "exceptionDetails" not in reply, reply["exceptionDetails"]
        return reply["result"].get("value")

    def resolve(self, promise: str) -> Any:
        """The value of this promise, which JSON can carry."""
        reply = self.command("Runtime.evaluate", expression=promise, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in reply, reply["exceptionDetails"]
        return reply["result"].get("value")

    def wait_until(self, condition: str) -> None:
        """Until the expression is true; half a second passes in the page between two looks."""
        tries = "for (let i = 0; i < 120 && !(await check()); i++) await new Promise(done => setTimeout(done, 500));"
        promise = f"(async () => {{ const check = async () => {condition}; {tries} return Boolean(await check()); }})()"
        assert self.resolve(promise) is True, (condition, self.problems)

    def press(self, key: str, code: int) -> None:
        """Press and release a key of the keyboard, where the focus is."""
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            self.command("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    def log_in(self, path: str, user: str, password: str, act: Callable[[], None]) -> None:
        """Act, and be asked for a name and a password by the browser, which a request to the path needs."""
        self.command("Fetch.enable", handleAuthRequests=True, patterns=[{"urlPattern": f"*{path}"}])
        act()
        answer = {"response": "ProvideCredentials", "username": user, "password": password}

        def asked() -> bool:
            self.evaluate("0")  # events come with a reply
            events, self._paused = self._paused, []
            for event, request in events:
                if event == "Fetch.authRequired":
                    self.command("Fetch.continueWithAuth", requestId=request, authChallengeResponse=answer)
                else:
                    self.command("Fetch.continueRequest", requestId=request)
            return any(event == "Fetch.authRequired" for event, _ in events)

        eventually(asked, f"the browser asks for a password for {path}")

    def command(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol."""
        return self._runner.run(self._command(method, parameters))

    async def _command(self, method: str, parameters: dict[str, Any]) -> Any:
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters, "sessionId": self._session})
        async with asyncio.timeout(_SECONDS):
            while True:
                message = json.loads(await self._socket.receive_str())
                self._note(message)
                if message.get("id") == number:
                    assert "error" not in message, message["error"]
                    return message["result"]

    def _note(self, message: dict[str, Any]) -> None:
        told = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                self.problems.append(json.dumps(told["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if told["type"] in {"error", "warning", "assert"}:
                self.problems.append(json.dumps(told["args"]))
            case "Fetch.requestPaused" | "Fetch.authRequired" as event:
                self._paused.append((event, told["requestId"]))
            case "Log.entryAdded" if told["entry"]["level"] in {"error", "warning"}:
                self.problems.append(told["entry"]["text"])


@contextmanager
def opened(url: str) -> Iterator[Page]:
    """A page in a browser of its own."""
    with TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile, asyncio.Runner() as runner:
        # Chromium makes a socket in TMPDIR, whose path has at most 107 bytes.
        environ = {name: value for name, value in os.environ.items() if name != "TMPDIR"}
        command = _command(profile, "--remote-debugging-port=0", "about:blank")
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environ)
        try:
            assert process.stderr is not None
            address = next(found[1] for line in process.stderr if (found := _LISTENS.search(line)))
            client = runner.run(_client())
            try:
                socket, session = runner.run(_attach(client, address))
                page = Page(runner, socket, session)
                for domain in ("Runtime", "Log", "Page"):
                    page.command(f"{domain}.enable")
                page.command("Page.navigate", url=url)
                at = url.partition("#")[0]  # the page may take away what follows
                loaded = f"location.href.split('#')[0] === {json.dumps(at)} && document.readyState === 'complete'"
                eventually(lambda: page.evaluate(loaded) is True, f"{url} has loaded")
                yield page
                runner.run(socket.close())
            finally:
                runner.run(client.close())
        finally:
            process.kill()
            process.communicate()


async def _client() -> ClientSession:
    return ClientSession()


async def _attach(client: ClientSession, address: str) -> tuple[ClientWebSocketResponse, str]:
    socket = await client.ws_connect(address, max_msg_size=0)
    await socket.send_json({"id": 1, "method": "Target.createTarget", "params": {"url": "about:blank"}})
    target = (await _reply(socket, 1))["targetId"]
    await socket.send_json(
        {"id": 2, "method": "Target.attachToTarget", "params": {"targetId": target, "flatten": True}}
    )
    return socket, (await _reply(socket, 2))["sessionId"]


async def _reply(socket: ClientWebSocketResponse, number: int) -> Any:
    async with asyncio.timeout(_SECONDS):
        while (message := json.loads(await socket.receive_str())).get("id") != number:
            pass
    return message["result"]
