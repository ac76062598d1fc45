"""A client made of python-hyper's h2, for calls over any stream of bytes."""

import asyncio
import ssl

import h2.config
import h2.connection
import h2.events

from ratelimit_service.system.address import Address, Tcp
from tests.transports.http2.talk import message
from tests.transports.methods import WAIT_SECONDS


async def h2_ask(address: Address, path: str, body: bytes, context: ssl.SSLContext | None = None) -> bytes:
    """One call on a connection of its own, from bytes to bytes; ConnectionError when that ends before the answer."""
    assert isinstance(address, Tcp)
    name = "localhost" if context else None
    reader, writer = await asyncio.open_connection(address.host, address.port, ssl=context, server_hostname=name)
    client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    client.initiate_connection()
    headers = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "localhost")]
    client.send_headers(1, [*headers, ("content-type", "application/grpc"), ("te", "trailers")])
    client.send_data(1, message(body), end_stream=True)
    answer = b""
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                writer.write(client.data_to_send())
                sent = await reader.read(65_536)
                if not sent:
                    raise ConnectionError("the connection was closed")
                for event in client.receive_data(sent):
                    match event:
                        case h2.events.DataReceived():
                            answer += event.data
                        case h2.events.StreamEnded():
                            return answer[5:]
                        case h2.events.StreamReset() | h2.events.ConnectionTerminated():
                            raise ConnectionError(str(event))
    finally:
        writer.transport.abort()  # closing waits half a minute for a server's part of it
