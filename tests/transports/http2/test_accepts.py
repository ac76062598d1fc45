"""New connections are accepted while others keep the event loop busy."""

import asyncio
import socket

import uvloop

from ratelimit_service.system.address import Tcp
from ratelimit_service.transports.http2 import Http2Transport
from ratelimit_service.transports.options import GrpcOptions

COME = 160


def test_connections_that_come_at_once_are_accepted_in_a_few_turns_of_the_loop() -> None:
    """A turn may take milliseconds beside a busy client, and each connection waits for those before it."""

    async def turns() -> int:
        transport = Http2Transport(GrpcOptions())
        (address,) = await transport.start([], [], [Tcp("127.0.0.1", 0)])
        assert isinstance(address, Tcp)
        # The kernel completes these before anything accepts them.
        clients = [socket.create_connection((address.host, address.port)) for _ in range(COME)]
        count = 0
        while accepted(transport) < COME:
            await asyncio.sleep(0)
            count += 1
        for client in clients:
            client.close()
        await transport.stop(0)
        return count

    assert uvloop.run(turns()) < COME // 4


def accepted(transport: Http2Transport) -> float:
    """How many connections are open."""
    (metric,) = (metric for metric in transport.metrics() if metric.name == "ratelimit_grpc_connections")
    return sum(value for _, value in metric.samples if isinstance(value, int | float))
