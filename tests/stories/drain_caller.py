"""A caller that does not stop: `python drain_caller.py sync|aio PORT,PORT` prints how its calls ended.

Several channels, each to all of the instances in turn, as a client of grpc's balances them. It prints `ready` when each
has had an answer, and goes on until there is a line on its input.
"""

import asyncio
import json
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Event

import grpc

from ratelimit_service.api.generated.envoy.service.ratelimit.v3 import rls_pb2

PATH = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
CHANNELS = 4
TASKS = 4
PAUSE_SECONDS = 0.002
OPTIONS = [("grpc.use_local_subchannel_pool", 1), ("grpc.lb_policy_name", "round_robin")]


def question() -> bytes:
    """What is asked."""
    made = rls_pb2.RateLimitRequest(domain="shop")
    made.descriptors.add().entries.add(key="user", value="ada")
    return made.SerializeToString()


def sync(target: str) -> Counter[str]:
    """A thread for each channel."""
    over, ended = Event(), Counter[str]()

    def call(channel: grpc.Channel, ready: Event) -> None:
        method = channel.unary_unary(PATH, None, None)
        while not over.wait(PAUSE_SECONDS):
            try:
                method(question(), timeout=20, wait_for_ready=True)
                ended["OK"] += 1
            except grpc.RpcError as error:
                ended[str(error)] += 1
            ready.set()

    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(CHANNELS))
        channels = [stack.enter_context(grpc.insecure_channel(target, OPTIONS)) for _ in range(CHANNELS)]
        begun = [Event() for _ in channels]
        for channel, ready in zip(channels, begun, strict=True):
            pool.submit(call, channel, ready)
        for ready in begun:
            ready.wait(20)
        print("ready", flush=True)
        sys.stdin.readline()
        over.set()
        pool.shutdown()
    return ended


async def aio(target: str) -> Counter[str]:
    """Some tasks for each channel."""
    over, ended = asyncio.Event(), Counter[str]()
    begun: asyncio.Queue[None] = asyncio.Queue()

    async def call(channel: grpc.aio.Channel) -> None:
        method = channel.unary_unary(PATH, None, None)
        while not over.is_set():
            try:
                await method(question(), timeout=20, wait_for_ready=True)
                ended["OK"] += 1
            except grpc.aio.AioRpcError as error:
                ended[str(error)] += 1
            begun.put_nowait(None)
            await asyncio.sleep(PAUSE_SECONDS)

    channels = [grpc.aio.insecure_channel(target, OPTIONS) for _ in range(CHANNELS)]
    calling = [asyncio.create_task(call(channel)) for channel in channels for _ in range(TASKS)]
    for _ in calling:
        await begun.get()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    over.set()
    await asyncio.gather(*calling)
    for channel in channels:
        await channel.close(None)
    return ended


if __name__ == "__main__":
    instances = "ipv4:" + ",".join(f"127.0.0.1:{port}" for port in sys.argv[2].split(","))
    print(json.dumps(sync(instances) if sys.argv[1] == "sync" else asyncio.run(aio(instances))), flush=True)
