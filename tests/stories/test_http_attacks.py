"""Hostile HTTP clients of every kind, beside a caller of gRPC that loses nothing."""

import socket
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Event, Thread

import grpc
import pytest

from tests.processes import ask, start_service
from tests.stories.rude_clients import ask_on, question

RULES = "domain: shop\ndescriptors: [{key: client, rate_limit: {unit: year, requests_per_unit: 1000000}}]\n"

CHUNKS = b"1\r\nx\r\n" * 50_000
UPLOAD = b"POST %b HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n"
OBJECTS = b'{"domain": "shop", "descriptors": [' + b",".join([b"{}"] * 1299) + b"]}"
BODY = b"POST /json HTTP/1.1\r\nHost: here\r\nContent-Length: %d\r\n\r\n%b" % (len(OBJECTS), OBJECTS)

ATTACKS = {
    "chunks of one byte": UPLOAD % b"/json" + CHUNKS,
    "chunks that nothing takes": UPLOAD % b"/nowhere" + CHUNKS,
    "pipelined requests, unread": b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n" * 20_000,
    "objects in JSON, unread": BODY * 100,
    "bytes that are not HTTP": b"GET / HTTP/1.1\r\n:\r\n\r\n",
    "a first line of 256 KB": b"GET /" + b"x" * 262_144,
    "connections": b"",
}


def attack(port: int, sent: bytes, over: Event) -> None:
    """Send it on a new connection, again and again, and read nothing."""
    while not over.is_set():
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as client:
            client.sendall(sent)


@pytest.mark.parametrize("name", ATTACKS)
def test_beside_hostile_http_clients_no_call_is_lost_and_little_is_kept(tmp_path: Path, name: str) -> None:
    over = Event()
    with start_service(tmp_path, RULES) as service, ExitStack() as stack:
        before = resident(service.pid)
        for _ in range(20):
            attacker = Thread(target=attack, args=(service.http_port, ATTACKS[name], over))
            attacker.start()
            stack.callback(attacker.join)
        stack.callback(over.set)
        with grpc.insecure_channel(f"127.0.0.1:{service.grpc_port}") as channel:
            call = ask_on(channel)
            statuses = [len(call(question("ada"), timeout=20).statuses) for _ in range(200)]
        kept = resident(service.pid) - before
        stack.close()
        health = ask(service.http_port, "/healthcheck").status
        log = service.log

    assert statuses == [2] * 200
    assert health == 200
    assert kept < 192 * 1024 * 1024  # 500 connections hold two bodies of 128 KiB each
    assert "Traceback" not in log
    assert len(log) < 10_000


def resident(pid: int) -> int:
    """Bytes of memory that a process has."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1])
    return pages * 4096
