"""How much of a budget of tokens is used through a real Envoy: `python bench/budgets.py [--callers 8,64,512]`.

Each caller asks, reads the answer of a model that streams, and asks again; what an answer has used is known at its end.
To look and charge, a request looks whether anything is left, and is charged when its stream is done. To reserve, it is
charged before what it may use, by a header or by the rule's estimate, and settled by its id. Several services share one
Redis, with the settings of a user. The model counts what is used: nearly all of the limit is right, and above it
nothing that was reserved. These are counts, not timings; a busy machine has fewer refusals.

By default all answers are in one window. With answers as long as the window, such as `--window 10 --answers 5-25
--seconds 59`, what is used is that of all windows; a bucket allows its burst once more.
"""

import argparse
import asyncio
import io
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ratelimit_service.commands.try_.model import answer, status_of
from ratelimit_service.commands.try_.run import Callers
from ratelimit_service.system.address import Tcp
from tests.clocks import stay_within
from tests.envoy.model import TOKENS, USAGE, start_model
from tests.envoy.proxy import Json, address, bootstrap, by, cluster, endpoint, route, start_envoy
from tests.processes import start_service
from tests.redis import start_redis

DAY = 86_400
LEAST, MOST = 3000, 9000
"""Tokens of an answer."""


class Way(NamedTuple):
    """How a budget is kept."""

    title: str
    key: str
    """Of its rule, and the path of its route."""
    limit: str
    """What the rule says beside its number and its window."""
    cost: Json
    """Of Envoy's item at the request."""
    by_id: bool = True


RESERVE = "reserve: {id: request_id, hold: 1 hour, estimate: 6000}"
FROM_HEADER: Json = {"hits_addend": {"format": "%REQ(x-max-tokens)%"}}
WAYS = (
    Way("look and charge", "look", "algorithm: fixed_window", {"hits_addend": {"number": 0}}, by_id=False),
    Way("reserve 9,000, `fixed_window`", "most", f"algorithm: fixed_window, {RESERVE}", FROM_HEADER),
    Way("the same, `token_bucket`", "bucket", f"algorithm: token_bucket, {RESERVE}", FROM_HEADER),
    Way("reserve 6,000, the mean, `fixed_window`", "mean", f"algorithm: fixed_window, {RESERVE}", {}),
)


def rules(limit: int, window: int) -> str:
    """A rule for each way."""
    text = "domain: shop\nsettle: settled\ndescriptors:\n"
    for way in WAYS:
        rule = f"rate_limit: {{unit: {window} seconds, requests_per_unit: {limit}, {way.limit}}}"
        below = f"descriptors: [{{key: request_id, {rule}}}]" if way.by_id else rule
        text += f"  - {{key: {way.key}, {below}}}\n"
    return text


def routed(way: Way) -> Json:
    """Envoy's half."""
    entries = [(way.key, "x-user")]
    mark = []
    if way.by_id:
        entries.append(("request_id", "x-request-id"))
        mark.append(("settled", "=1"))
    items = [by(*entries, **way.cost), by(*entries, *mark, hits_addend={"format": TOKENS}, apply_on_stream_done=True)]
    return route(f"/{way.key}", per_route={"rate_limits": items}) | {"route": {"cluster": "model"}}


def load(port: int, way: Way, user: str, chosen: argparse.Namespace, callers: int) -> Counter[int]:
    """What so many callers are answered."""

    async def ask(headers: Mapping[str, str]) -> int:
        sent = {**headers, "x-user": user, "x-max-tokens": str(MOST)}
        return status_of(await answer(Tcp("127.0.0.1", port), sent, f"/{way.key}"))

    shortest, longest = map(float, chosen.answers.split("-"))
    return asyncio.run(Callers(callers, chosen.seconds, (LEAST, MOST), (shortest, longest)).call(ask))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--callers", default="8,64,512", help="at once")
    parser.add_argument("--limit", type=int, default=100_000, help="tokens in a window")
    parser.add_argument("--window", type=int, default=DAY, help="seconds")
    parser.add_argument("--answers", default="0.3-1", help="seconds that an answer takes, from and to")
    parser.add_argument("--services", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6, help="for which callers ask")
    chosen = parser.parse_args()
    shown = sys.stdout
    print("| callers |", " | ".join(way.title for way in WAYS), "|")
    print("| --- |", " | ".join("---" for _ in WAYS), "|")
    with redirect_stdout(io.StringIO()), ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        redis = stack.enter_context(start_redis(folder / "redis"))
        model = stack.enter_context(start_model())
        environ = {"REDIS_URL": f"127.0.0.1:{redis.port}"}
        services = [
            stack.enter_context(start_service(folder / str(number), rules(chosen.limit, chosen.window), environ))
            for number in range(chosen.services)
        ]
        configuration = bootstrap(
            [service.grpc_port for service in services],
            [routed(way) for way in WAYS],
            filter_options={"failure_mode_deny": True},
            filters_before=[USAGE],
        )
        configuration["static_resources"]["clusters"].append(cluster("model", [endpoint(address(model.port))]))
        envoy = stack.enter_context(start_envoy(folder / "envoy", configuration))
        for callers in map(int, chosen.callers.split(",")):
            cells = []
            for way in WAYS:
                user = f"{way.key}-{callers}"
                stay_within(chosen.window, min(2 * chosen.seconds, 0.99 * chosen.window))
                statuses = load(envoy.port, way, user, chosen, callers)
                cells.append(f"{model.used[user]:,} ({statuses.pop(200, 0):,}, {statuses.pop(429, 0):,})")
                if statuses:
                    cells[-1] += f" and {dict(statuses)}"
            print(f"| {callers} |", " | ".join(cells), "|", file=shown, flush=True)


if __name__ == "__main__":
    main()
