"""`make screenshots`: draw docs/pictures/page-*.webp, the page of a service with a shop's traffic and a Redis."""

import base64
import json
import random
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
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
from tests.processes import start_service  # noqa: E402 - as above
from tests.redis import start_redis  # noqa: E402 - as above

PICTURES: Final = ROOT / "docs" / "pictures"
MAX_BYTES: Final = 150_000
REQUESTS_PER_SECOND: Final = 60
USERS: Final = ("ada", "grace", "alan", "edsger", "barbara", "donald", "tony", "niklaus", "leslie", "frances")

Descriptor = Sequence[tuple[str, str]]


def request(chance: random.Random) -> tuple[str, Sequence[Descriptor]]:
    """What a shop asks: a few users and addresses do most of it, mallory guesses passwords, newsletters are sent."""
    rank = min(int(chance.paretovariate(0.9)) - 1, 500)
    user = USERS[rank] if rank < len(USERS) else f"u{rank}"
    match chance.choices(["page", "search", "checkout", "login", "mail"], [50, 18, 14, 6, 12])[0]:
        case "login":
            return "shop", [[("login", chance.choice(["mallory", "mallory", "mallory", user]))]]
        case "mail":
            return "mail", [[("sender", "shop@example.com")], [("recipient", f"{user}@example.com")]]
        case "page":
            last: Descriptor = [("country", "fr")]
        case path:
            last = [("path", f"/{path}")]
    plan: Descriptor = [("plan", "gold")] if rank % 7 == 3 else [("plan", "free"), ("user", user)]
    return "shop", [[("user", user)], [("client_ip", f"198.51.{rank % 250}.7")], plan, last]


def as_json(domain: str, descriptors: Sequence[Descriptor]) -> str:
    """A RateLimitRequest."""
    found = [{"entries": [{"key": key, "value": value} for key, value in each]} for each in descriptors]
    return json.dumps({"domain": domain, "descriptors": found})


@contextmanager
def traffic(port: int) -> Iterator[None]:
    """Requests to a service, until the block ends."""
    chance, ended = random.Random(4711), threading.Event()  # noqa: S311 - no secret is made of it

    def ask_on() -> None:
        connection = HTTPConnection("127.0.0.1", port)
        while not ended.wait(chance.expovariate(REQUESTS_PER_SECOND)):
            connection.request("POST", "/json", as_json(*request(chance)))
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


def main(minutes: float) -> None:
    """Take the pictures when the shop has been open for so many minutes, and one after its Redis is lost."""
    port = free_port()
    environ = {"REDIS_URL": f"127.0.0.1:{port}", "WORKERS": "2", "ON_STORE_FAILURE": "open"}
    with (
        TemporaryDirectory(prefix="shop-") as folder,
        start_redis(Path(folder, "redis"), port=port) as redis,
        start_service(Path(folder), Path(copytree(PICTURES / "shop", Path(folder, "rules"))), environ) as service,
        traffic(service.http_port),
    ):
        time.sleep(60 * minutes)
        with opened(f"http://127.0.0.1:{service.debug_port}/") as page:
            page.wait_until("/^[1-9]/.test(document.querySelector('#rows tr .number')?.innerText)")
            take(page, "light", 1440, 1800)
            take(page, "dark", 1440, 1800, "dark")
            take(page, "phone", 390, 1800)
            redis.kill()
            page.wait_until("/for 1. s/.test(document.querySelector('#troubles section')?.innerText)")
            take(page, "outage", 1440, 560)


if __name__ == "__main__":
    with redirect_stdout(StringIO()):  # the processes of tests print their logs
        main(float(sys.argv[1]))
