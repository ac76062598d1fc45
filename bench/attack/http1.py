"""HTTP/1 on the ports beside gRPC: what its clients may cost those of gRPC, and what they may learn or do."""

import asyncio
import json
import re
from contextlib import suppress
from pathlib import Path

from attack.attacker import Attacker
from attack.catalogue import Need, attack
from attack.frames import descriptor, message, request
from attack.wire import Ended, Wire

CHUNKED = b"POST /json HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNKS = b"1\r\nx\r\n" * 40_000
OF_ONE_DESCRIPTOR = {"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "ada"}]}]}
CLOSE = b"Connection: close"


def post(path: bytes, body: bytes, *more: bytes) -> bytes:
    """A request with a body."""
    lines = [b"POST " + path + b" HTTP/1.1", b"Host: localhost", b"Content-Length: %d" % len(body), *more]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def get(path: bytes, *more: bytes) -> bytes:
    """One without."""
    return b"\r\n".join([b"GET " + path + b" HTTP/1.1", b"Host: localhost", *more]) + b"\r\n\r\n"


def json_request(key: str, value: str, *more: bytes) -> bytes:
    """One to /json, of one descriptor."""
    body = {"domain": "shop", "descriptors": [{"entries": [{"key": key, "value": value}]}]}
    return post(b"/json", json.dumps(body).encode(), *more)


async def fetch(attacker: Attacker, what: bytes, *, debug: bool = False) -> tuple[int, bytes]:
    """Ask as the healthy client's address does, with `Connection: close`: the status, 0 without one, and the body."""
    target = attacker.target
    port = target.debug_port if debug else target.http_port
    reader, writer = await asyncio.open_connection(target.host, port, local_addr=target.healthy_address)
    try:
        writer.write(what)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        return int(head.split()[1]) if head else 0, body
    finally:
        writer.close()


async def again(wire: Wire, what: bytes) -> None:
    """The same request, each when the one before was answered."""
    while True:
        await wire.exchange(what, 1)


async def chunks(attacker: Attacker, connections: int) -> None:
    """An upload in chunks of one byte, without end."""

    async def client(wire: Wire) -> None:
        await wire.send(CHUNKED)
        await wire.repeat(CHUNKS)

    await attacker.each(connections, client, attacker.open_http)


@attack(Need.HTTP)
async def http_chunks(attacker: Attacker) -> None:
    """Four uploads in chunks of one byte."""
    await chunks(attacker, 4)


@attack(Need.HTTP)
async def http_chunks_1(attacker: Attacker) -> None:
    """One upload in chunks of one byte."""
    await chunks(attacker, 1)


@attack(Need.HTTP)
async def http_chunks_20(attacker: Attacker) -> None:
    """20 uploads in chunks of one byte."""
    await chunks(attacker, 20)


@attack(Need.HTTP)
async def json_overrides(attacker: Attacker) -> None:
    """Two callers of /json with 31 KB: 500 descriptors with limits of their own."""
    own = {"entries": [], "limit": {"unit": "SECOND", "requests_per_unit": 1}}
    body = json.dumps({"domain": "shop", "descriptors": [own] * 500}).encode()
    await attacker.each(2, lambda wire: again(wire, post(b"/json", body)), attacker.open_http)


@attack(Need.HTTP)
async def json_nested(attacker: Attacker) -> None:
    """Two callers of /json with 100 KB of brackets, digits, and keys that come twice."""
    bodies = [
        *(b"[" * 100_000, b'{"a":' * 20_000, b'{"domain": ' + b"9" * 100_000, b'{"domain":"shop","domain":"x"}'),
        *(b'{"domain": NaN}', b'{"hitsAddend": 1e400}', b'"\\ud800"', "{}".encode("utf-16"), b"\xff\xfe", b""),
        *(json.dumps({"domain": "shop", "descriptors": [{}] * 40_000}).encode(), b"{" + b'"x":0,' * 20_000 + b"}"),
    ]

    async def client(wire: Wire) -> None:
        while True:
            for body in bodies:
                await wire.exchange(post(b"/json", body), 1)

    await attacker.each(2, client, attacker.open_http)


@attack(Need.HTTP)
async def json_calls(attacker: Attacker) -> None:
    """50 callers of /json, plain calls as fast as they are answered."""
    body = json.dumps(OF_ONE_DESCRIPTOR).encode()
    await attacker.each(50, lambda wire: again(wire, post(b"/json", body)), attacker.open_http)


@attack(Need.HTTP)
async def http_metrics(attacker: Attacker) -> None:
    """100 clients that read /metrics as fast as it is answered."""
    await attacker.each(100, lambda wire: again(wire, get(b"/metrics")), attacker.open_http)


@attack(Need.DEBUG, settings={"ADMIN_TOKEN": "0123456789abcdef0123456789abcdef"})
async def debug_tokens(attacker: Attacker) -> None:
    """50 clients try tokens on the debug port as fast as they are refused."""

    async def client(wire: Wire) -> None:
        while True:
            token = b"Authorization: Bearer %032x" % attacker.random.getrandbits(128)
            await wire.exchange(post(b"/reload", b"", token), 1)

    await attacker.each(50, client, lambda: attacker.open_http(debug=True))


@attack(Need.DEBUG)
async def debug_pages(attacker: Attacker) -> None:
    """50 clients that read the debug port's pages as fast as they are answered."""
    history = b"/status/history?domain=shop"
    paths = [b"/", b"/status", b"/rlconfig", b"/stats", b"/metrics", b"/status/past", b"/status/settings"]
    paths += [history, history + b"&rule=user", history + b"&rule=none"]

    async def client(wire: Wire) -> None:
        while True:
            for path in paths:
                await wire.exchange(get(path), 1)

    await attacker.each(50, client, lambda: attacker.open_http(debug=True))


@attack(Need.HTTP)
async def http_pipelines(attacker: Attacker) -> None:
    """Four clients that send requests without end and never read an answer."""

    async def client(wire: Wire) -> None:
        wire.stop_reading()
        await wire.repeat(get(b"/metrics") * 500)

    await attacker.each(4, client, attacker.open_http)


@attack(Need.HTTP, seconds=4)
async def http_slow(attacker: Attacker) -> None:
    """300 requests that come byte by byte, headers and bodies."""
    whole = post(b"/json", json.dumps(OF_ONE_DESCRIPTOR).encode())

    async def client(wire: Wire) -> None:
        start = attacker.random.choice((0, whole.index(b"\r\n\r\n") + 4))
        if start:
            await wire.send(whole[:start])
        for at in range(start, len(whole)):
            await wire.send(whole[at : at + 1])
            await asyncio.sleep(0.5)

    await attacker.each(300, client, attacker.open_http)


@attack(Need.HTTP, seconds=6)
async def http_connections(attacker: Attacker) -> None:
    """2,000 HTTP connections that say nothing."""
    await attacker.each(2000, lambda wire: wire.until_closed(), attacker.open_http)


@attack(Need.RATE_LIMITS, Need.HTTP, Need.DEBUG, Need.OURS, seconds=6)
async def http_places(attacker: Attacker) -> None:
    """900 requests to /json that wait in queues of 30 s: probes and the debug port must answer another address."""

    async def wait(wire: Wire) -> None:
        await again(wire, json_request("queue", f"{attacker.random.randrange(30)}"))

    async def probe(path: bytes, *, debug: bool) -> None:
        while True:
            status = 0
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(5):
                    status, _ = await fetch(attacker, get(path, CLOSE), debug=debug)
            if not status:
                attacker.harm(f"no answer to {path.decode()}")
            await asyncio.sleep(0.2)

    hold = attacker.each(900, wait, attacker.open_http)
    await asyncio.gather(hold, probe(b"/livez", debug=False), probe(b"/status/settings", debug=True))


@attack(Need.HTTP, Need.OURS, seconds=4, settings={"GRPC_MAX_CONNECTIONS": "200"}, files=400)
async def http_files(attacker: Attacker) -> None:
    """380 silent HTTP connections to a service that may open 400 files."""
    await attacker.each(380, lambda wire: wire.until_closed(), attacker.open_http)


def _size(file: str) -> int:
    return Path(file).stat().st_size


@attack(Need.HTTP, Need.OURS)
async def log_flood(attacker: Attacker) -> None:
    """20 connections at a time: requests that are no HTTP, first lines of 256 KB; the log must not grow with each."""
    most = 64 * 1024
    before = _size(attacker.target.log)
    wrong = [b"GET / HTTP/1.1\r\n:\r\n\r\n", b"GET /" + b"x" * 256_000 + b" HTTP/1.1\r\n\r\n", b"\0" * 100]

    async def client(wire: Wire) -> None:
        await wire.send(attacker.random.choice(wrong))
        try:
            await wire.until_ended(1)
        finally:
            if _size(attacker.target.log) - before > most:
                attacker.harm(f"over {most // 1024} KiB of log lines")

    await attacker.each(20, client, attacker.open_http)


@attack(Need.HTTP)
async def http_wrong(attacker: Attacker) -> None:
    """20 clients with requests of every wrong kind: lengths twice, two encodings, traversal, verbs, HTTP/2."""
    body = b"0\r\n\r\n"
    wrong = [
        *(post(b"/json", body, b"Transfer-Encoding: chunked"), post(b"/json", body, b"Content-Length: 9")),
        *(get(b"/../../etc/passwd"), get(b"//"), get(b"/%00"), get(b"http://x/"), b"BREW / HTTP/1.1\r\n\r\n"),
        *(b"GET / HTTP/9.9\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", b"CONNECT x:1 HTTP/1.1\r\n\r\n"),
        *(get(b"/", b"Upgrade: h2c", b"Connection: Upgrade"), get(b"/", b"Expect: 100-continue"), b"\r\n" * 9999),
        *(get(b"/", *(b"x%d: %s" % (at, b"y" * 80) for at in range(200))), get(b"/", b"x: " + b"y" * 100_000)),
        *(
            post(b"/json", b"x" * 200_000),
            post(b"/healthcheck", b"x" * 100),
            post(b"/json", b"\x1f\x8b", b"Content-Encoding: gzip"),
        ),
        message(b"x"),
    ]

    async def client(wire: Wire) -> None:
        await wire.send(attacker.random.choice(wrong))
        await asyncio.sleep(0.1)

    await attacker.each(20, client, attacker.open_http)


async def answer_of(attacker: Attacker, what: bytes, *, debug: bool = False) -> bytes:
    """What comes back for one request."""
    wire = await attacker.open_http(debug=debug)
    await wire.send(what)
    try:
        await wire.until_ended(1)
        await asyncio.sleep(0.3)
    except Ended:
        pass
    wire.close()
    return wire.text


@attack(Need.HTTP, Need.OURS)
async def other_sites(attacker: Attacker) -> None:
    """A page of another site makes a browser call /json: it must not charge."""
    body = json.dumps(OF_ONE_DESCRIPTOR).encode()
    kind = (b"Content-Type: text/plain", b"Connection: close")
    for line in (b"Origin: http://elsewhere.example", b"Sec-Fetch-Site: cross-site"):
        answer = await answer_of(attacker, post(b"/json", body, line, *kind))
        if b" 200 " in answer[:16] or b" 429 " in answer[:16]:
            attacker.harm(f"charged with {line.decode()}")


@attack(Need.DEBUG, Need.OURS)
async def foreign_hosts(attacker: Attacker) -> None:
    """A name of another site that leads to the debug port (DNS rebinding): it must not show rules."""
    for path in (b"/rlconfig", b"/status"):
        answer = await answer_of(attacker, b"GET " + path + b" HTTP/1.1\r\nHost: elsewhere.example\r\n\r\n", debug=True)
        if b" 200 " in answer[:16]:
            attacker.harm(f"{path.decode()} answers any Host")


@attack(Need.HTTP, Need.OURS)
async def server_versions(attacker: Attacker) -> None:
    """A stranger reads which versions of what are at work."""
    answer = await answer_of(attacker, get(b"/healthcheck", b"Connection: close"))
    if found := re.search(rb"(?i)\r\nserver: ([^\r]*\d[^\r]*)", answer):
        attacker.harm(f"Server: {found[1].decode()}")


@attack(Need.RATE_LIMITS, Need.DEBUG, Need.OURS)
async def texts(attacker: Attacker) -> None:
    """Control characters, quotes and markup in requests: what shows them must escape them."""
    shown = ["\u009b31m", "\u0085", "\x1b[2J", "\u202e", '"\n# x', "<script>"]
    block = attacker.block()
    wire = await attacker.open()
    for value in shown:
        body = message(request(descriptor((b"detailed", value.encode()), (b"x", value.encode()))))
        await wire.call(block, body)
        await wire.call(block, message(request(descriptor((value.encode(), b"x")))))
        await wire.call(block, message(request(descriptor((b"x", b"x")), domain=value.encode())))
    for path in (b"/stats", b"/metrics", b"/rlconfig"):
        answer = await answer_of(attacker, get(path, b"Connection: close"), debug=True)
        page = answer.partition(b"\r\n\r\n")[2].decode(errors="replace")
        for character in sorted(
            {c for c in page if (ord(c) < 32 and c != "\n") or 127 <= ord(c) < 160 or c == "\u202e"}
        ):
            if character != "\r":
                attacker.harm(f"{path.decode()} shows U+{ord(character):04X}")
