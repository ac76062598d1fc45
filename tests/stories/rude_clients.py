"""Clients that leave while their calls are under way, each in its own manner, again and again until told to stop."""

import socket
import struct
from collections.abc import Callable, Sequence
from threading import Event, Thread
from typing import Any, Final

import grpc
from h2.connection import H2Connection
from h2.events import StreamEnded

from ratelimit_service.api.generated.envoy.service.ratelimit.v3 import rls_pb2

PATH: Final = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
AT_ONCE: Final = 20
"""Calls."""
PACE: Final = 2
"""Calls of each that leaves, for each one that is waited for."""

_ALONE: Final = [("grpc.use_local_subchannel_pool", 1)]
"""A connection of its own: the channels of one process share one otherwise."""

_HEADERS: Final = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", PATH),
    (":authority", "localhost"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
]


def question(name: str) -> rls_pb2.RateLimitRequest:
    """A request that charges the client's own counter, and the one that all have."""
    request = rls_pb2.RateLimitRequest(domain="shop")
    for value in (name, "everybody"):
        request.descriptors.add().entries.add(key="client", value=value)
    return request


class Client:
    """Asks on a thread of its own; `answered` calls of those it `sent` came back with an answer.

    It keeps pace with the answers of others: a server that has more calls than it can answer turns some away, and may.
    """

    def __init__(
        self, name: str, port: int, ask: Callable[["Client", str], None], others: Sequence["Client"] = ()
    ) -> None:
        self.name = name
        self.port = port
        self.sent = 0
        self.answered = 0
        self.failures: list[str] = []
        self._over = Event()
        self._others = others
        self._ask = ask
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def goes_on(self) -> bool:
        """Whether to call again, once it is time to."""
        while self._others and self.sent >= AT_ONCE + PACE * sum(other.answered for other in self._others):
            if self._over.wait(0.001):
                break
        return not self._over.is_set()

    def finish(self) -> None:
        """No more calls."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._ask(self, f"127.0.0.1:{self.port}")
        except Exception as error:  # noqa: BLE001  # a thread's error is told by the test
            self.failures.append(repr(error))


def ask_on(
    channel: grpc.Channel,
) -> "grpc.UnaryUnaryMultiCallable[rls_pb2.RateLimitRequest, rls_pb2.RateLimitResponse]":
    """ShouldRateLimit, as grpcio calls it."""
    return channel.unary_unary(
        PATH,
        request_serializer=rls_pb2.RateLimitRequest.SerializeToString,
        response_deserializer=rls_pb2.RateLimitResponse.FromString,
    )


def be_healthy(client: Client, address: str) -> None:
    """Each call is waited for, longer than any may take."""
    with grpc.insecure_channel(address, _ALONE) as channel:
        ask, request = ask_on(channel), question(client.name)
        while client.goes_on():
            client.sent += 1
            try:
                answer = ask(request, timeout=20)
            except grpc.RpcError as error:
                client.failures.append(str(error))
            else:
                client.answered += len(answer.statuses) == 2


def cancel(client: Client, address: str) -> None:
    """Calls are cancelled as soon as they are sent, all but one."""
    _ask_many(client, address, 20, _leave_all_but_one)


def _leave_all_but_one(futures: Sequence["grpc.CallFuture[Any]"]) -> None:
    for future in futures[1:]:
        future.cancel()  # type: ignore[no-untyped-call] # in the stubs


def run_late(client: Client, address: str) -> None:
    """Calls have a deadline that passes."""
    _ask_many(client, address, 0.002, lambda _: None)


def _ask_many(
    client: Client, address: str, seconds: float, leave: Callable[[Sequence["grpc.CallFuture[Any]"]], None]
) -> None:
    with grpc.insecure_channel(address, _ALONE) as channel:
        ask, request = ask_on(channel), question(client.name)
        while client.goes_on():
            client.sent += AT_ONCE
            futures = [ask.future(request, timeout=seconds) for _ in range(AT_ONCE)]
            leave(futures)
            for future in futures:
                if not future.cancelled() and future.exception() is None:
                    client.answered += 1


def reset(client: Client, _: str) -> None:
    """On each connection every second call is reset in the packet it is sent in, and the others are waited for."""
    while client.goes_on():
        with socket.create_connection(("127.0.0.1", client.port), timeout=20) as wire:
            connection = _greet(wire)
            streams = [_send(client, connection) for _ in range(AT_ONCE)]
            for number in streams[::2]:
                connection.reset_stream(number)
            wire.sendall(connection.data_to_send())
            waiting = {*streams[1::2]}
            while waiting and (data := wire.recv(65536)):
                for event in connection.receive_data(data):
                    if isinstance(event, StreamEnded) and event.stream_id in waiting:
                        waiting.remove(event.stream_id)
                        client.answered += 1
                wire.sendall(connection.data_to_send())
            if waiting:
                client.failures.append(f"{len(waiting)} calls without an answer")


def hang_up(client: Client, _: str) -> None:
    """Each connection is reset by TCP, as when a process dies, with all of its calls under way."""
    while client.goes_on():
        with socket.create_connection(("127.0.0.1", client.port), timeout=20) as wire:
            connection = _greet(wire)
            for _number in range(AT_ONCE):
                _send(client, connection)
            wire.sendall(connection.data_to_send())
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _greet(wire: socket.socket) -> H2Connection:
    connection = H2Connection()
    connection.initiate_connection()
    wire.sendall(connection.data_to_send())
    return connection


def _send(client: Client, connection: H2Connection) -> int:
    number = connection.get_next_available_stream_id()
    body = question(client.name).SerializeToString()
    connection.send_headers(number, _HEADERS)
    connection.send_data(number, b"\0" + len(body).to_bytes(4, "big") + body, end_stream=True)
    client.sent += 1
    return number
