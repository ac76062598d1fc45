"""What a look of the operator's page costs the service: `python bench/page.py [--rules 1000,5000,10000]`.

Milliseconds of the service's processor time for a text, rendered, packed and sent, and its bytes: with rules that were
never asked for, and when each has counts. All pages that are open together cost at most one of each text a second. The
last row of each is a second in which none is open and no call comes: the history goes on, and all other housekeeping.
"""

import argparse
import io
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from urllib.request import Request, urlopen

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.processes import Service, start_service

TEXTS = ("/status/rules", "/status/now", "/status/recent", "/metrics")
"""A page asks for the first two when it is opened, and for the third every two seconds."""


def rules_of(count: int) -> str:
    """The file: a rule for each of so many users."""
    digits = len(str(count - 1))
    limit = "rate_limit: {unit: hour, requests_per_unit: 1000000}"
    rules = (f"  - {{key: user, value: u{number:0{digits}}, {limit}}}\n" for number in range(count))
    return "domain: bench\ndescriptors:\n" + "".join(rules)


def ask_for_all(service: Service, count: int) -> None:
    """Charge each of the rules, most of them several times."""
    load = (f"127.0.0.1:{service.grpc_port}", "bench", "user=u{key}", f"--keys={count}", f"--calls={count * 20}")
    subprocess.run((sys.executable, "-m", "ratelimit_service", "load", *load), check=True, capture_output=True)


def processor_ms(service: Service) -> float:
    """That the service has taken until now."""
    tasks = Path(f"/proc/{service.pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e6


def looked(service: Service, text: str, looks: int) -> Iterator[tuple[float, int, int]]:
    """Of each look: milliseconds, bytes, and bytes by gzip."""
    url = f"http://127.0.0.1:{service.debug_port}{text}"

    def size(coding: str) -> int:
        with urlopen(Request(url, headers={"Accept-Encoding": coding})) as response:
            return len(response.read())

    for _ in range(looks):
        before = processor_ms(service)
        packed = size("gzip")
        yield processor_ms(service) - before, size("identity"), packed


def alone(service: Service, seconds: float) -> float:
    """Of a second without a request."""
    before = processor_ms(service)
    time.sleep(seconds)
    return (processor_ms(service) - before) / seconds


def rows(count: int, looks: int, seconds: float) -> Iterator[str]:
    """Of the table, for so many rules."""
    environ = {"RULES_POLL_INTERVAL": "1h"}  # what the service does between the looks counts too
    with tempfile.TemporaryDirectory() as folder, start_service(Path(folder), rules_of(count), environ) as service:
        for of in ("idle", "asked"):
            if of == "asked":
                ask_for_all(service, count)
            for text in TEXTS:
                ms, size, packed = (min(each) for each in zip(*looked(service, text, looks), strict=True))
                yield f"{count:7,} {of:6} {text:15} {ms:7.2f} {size / 1000:7.1f} {packed / 1000:7.1f}"
            yield f"{count:7,} {of:6} {'(a second)':15} {alone(service, seconds):7.2f}"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rules", default="1000,5000,10000", metavar="N,N", help="default: %(default)s")
    parser.add_argument("--looks", type=int, default=7, help="of which the least counts; default: %(default)s")
    parser.add_argument("--seconds", type=float, default=20, help="without a request; default: %(default)s")
    chosen = parser.parse_args()
    print(f"{'rules':>7} {'':6} {'text':15} {'ms':>7} {'kB':>7} {'by gzip':>7}")
    for count in map(int, chosen.rules.split(",")):
        with redirect_stdout(io.StringIO()):  # a service that ends prints its log
            found = list(rows(count, chosen.looks, chosen.seconds))
        print("\n".join(found), flush=True)


if __name__ == "__main__":
    main()
