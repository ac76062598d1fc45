"""`make screenshots`: draw docs/pictures/page-*.webp, the page of a shop under attack, with a Redis.

After a third of the time its rules are loaded again; after a half an attacker tries passwords and fetches pages, from a
network of addresses, and some of it is banned near the end.
"""

import base64
import json
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from http.client import HTTPConnection
from io import StringIO
from pathlib import Path
from shutil import copytree
from tempfile import TemporaryDirectory
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.browser import Page, opened  # noqa: E402 - the path comes first
from tests.ports import free_port  # noqa: E402 - as above
from tests.processes import Service, ask, start_service  # noqa: E402 - as above
from tests.redis import start_redis  # noqa: E402 - as above

PICTURES: Final = ROOT / "docs" / "pictures"
MAX_BYTES: Final = 150_000
REQUESTS_PER_SECOND: Final = 60
ATTACKS_PER_SECOND: Final = 40
RELOAD, ATTACK, BAN = 1 / 3, 1 / 2, 9 / 10
"""When these begin, as shares of the time."""
BANNED: Final = {"domain": "shop", "entries": [{"key": "login", "value": "mallory"}], "for": "1h", "who": "ops"}
USERS: Final = ("ada", "grace", "alan", "edsger", "barbara", "donald", "tony", "niklaus", "leslie", "frances")

Descriptor = Sequence[tuple[str, str]]


def request(chance: random.Random) -> tuple[str, Sequence[Descriptor]]:
    """What a shop asks: a few users do most of it, newsletters are sent, and one form has a wrong domain."""
    rank = min(int(chance.paretovariate(0.9)) - 1, 500)
    user = USERS[rank] if rank < len(USERS) else f"u{rank}"
    match chance.choices(["page", "search", "checkout", "login", "mail"], [50, 18, 14, 3, 15])[0]:
        case "login":
            return chance.choice(["shop", "shop", "shop", "shopp"]), [[("login", f"u{chance.randrange(5000)}")]]
        case "mail":
            return "mail", [[("sender", "shop@example.com")], [("recipient", f"{user}@example.com")]]
        case "page":
            last: Descriptor = [("country", "fr")]
        case path:
            last = [("path", f"/{path}")]
    plan: Descriptor = [("plan", "gold")] if rank % 7 == 3 else [("plan", "free"), ("user", user)]
    return "shop", [[("user", user)], [("client_ip", f"198.51.{rank % 250}.7")], plan, last]


def attack(chance: random.Random) -> tuple[str, Sequence[Descriptor]]:
    """Passwords of mallory's choice, and pages, from one network."""
    address: Descriptor = [("client_ip", f"203.0.113.{chance.randrange(256)}")]
    login = [[("login", chance.choice(["mallory", "mallory", "admin", "root"]))], address]
    return "shop", login if chance.random() < 0.4 else [address, [("path", "/checkout")]]


def as_json(domain: str, descriptors: Sequence[Descriptor]) -> str:
    """A RateLimitRequest."""
    found = [{"entries": [{"key": key, "value": value} for key, value in each]} for each in descriptors]
    return json.dumps({"domain": domain, "descriptors": found})


@contextmanager
def traffic(port: int, of: Callable[[random.Random], tuple[str, Sequence[Descriptor]]], rate: float) -> Iterator[None]:
    """Requests to a service, so many a second, until the block ends."""
    chance, ended = random.Random(4711), threading.Event()  # noqa: S311 - no secret is made of it

    def ask_on() -> None:
        connection = HTTPConnection("127.0.0.1", port)
        while not ended.wait(chance.expovariate(rate)):
            connection.request("POST", "/json", as_json(*of(chance)))
            connection.getresponse().read()

    thread = threading.Thread(target=ask_on)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def take(page: Page, name: str, width: int, height: int, scheme: str = "light") -> None:
    """Write a picture of what the page shows on a screen of that size."""
    size: dict[str, Any] = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    page.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    page.command("Emulation.setDeviceMetricsOverride", **size)
    page.command("Runtime.evaluate", expression="new Promise(requestAnimationFrame)", awaitPromise=True)
    picture = base64.b64decode(page.command("Page.captureScreenshot", format="webp", quality=70)["data"])
    assert len(picture) < MAX_BYTES, f"page-{name}.webp would have {len(picture)} bytes"
    (PICTURES / f"page-{name}.webp").write_bytes(picture)
    print(f"docs/pictures/page-{name}.webp: {len(picture) // 1000} kB", file=sys.stderr)


def live(service: Service, minutes: float) -> ExitStack:
    """Let so many minutes pass in the shop; it goes on until the result is closed."""
    seconds, going_on = 60 * minutes, ExitStack()
    going_on.enter_context(traffic(service.http_port, request, REQUESTS_PER_SECOND))
    time.sleep(RELOAD * seconds)
    ask(service.debug_port, "/reload", method="POST")
    time.sleep((ATTACK - RELOAD) * seconds)
    going_on.enter_context(traffic(service.http_port, attack, ATTACKS_PER_SECOND))
    time.sleep((BAN - ATTACK) * seconds)
    ask(service.debug_port, "/bans", method="POST", body=json.dumps(BANNED | {"why": "tries passwords"}))
    time.sleep((1 - BAN) * seconds)
    return going_on


def main(minutes: float) -> None:
    """Take the pictures when the shop has been open for so many minutes, and one after its Redis is lost."""
    port = free_port()
    environ = {"REDIS_URL": f"127.0.0.1:{port}", "WORKERS": "2", "ON_STORE_FAILURE": "open"}
    with (
        TemporaryDirectory(prefix="shop-") as folder,
        start_redis(Path(folder, "redis"), port=port) as redis,
        start_service(Path(folder), Path(copytree(PICTURES / "shop", Path(folder, "rules"))), environ) as service,
        live(service, minutes),
        opened(f"http://127.0.0.1:{service.debug_port}/") as page,
    ):
        page.wait_until("/^[1-9]/.test(document.querySelector('#rows tr .number')?.innerText)")
        take(page, "light", 1440, 1800)
        take(page, "dark", 1440, 1800, "dark")
        take(page, "phone", 390, 1800)
        redis.kill()
        page.wait_until("/for 1. s/.test(document.querySelector('#troubles .alarm')?.innerText)")
        take(page, "outage", 1440, 560)


if __name__ == "__main__":
    with redirect_stdout(StringIO()):  # the processes of tests print their logs
        main(float(sys.argv[1]))
