"""Places far from each other, on one machine: a network namespace for each, and the distance between them.

What is started or connected `inside` a place has that place's network, whose loopback is its own; the other places are
as far as a process makes them that passes the packets on. It holds a TUN device in each namespace, so that the kernel
needs no netem, and it can cut a place off, as a router does that drops what it gets. Nothing of all that has a name in
the system: it ends with the processes that use it, and these end with the test, however that ends.
"""

import asyncio
import ctypes
import fcntl
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from random import random
from typing import Final

from tests.peers import refuse
from tests.processes import ROOT, UNTIL_WE_END

_DEVICE: Final = Path("/dev/net/tun")
_OF_THIS_THREAD: Final = Path("/proc/thread-self/ns/net")
_CLONE_NEWNET: Final = 0x40000000  # linux/sched.h
_IFF_UP: Final = 1  # linux/if.h
_SIOCSIFFLAGS, _SIOCSIFADDR, _SIOCSIFNETMASK = 0x8914, 0x8916, 0x891C  # linux/sockios.h
_TUNSETIFF, _TUN_WITHOUT_HEADER = 0x400454CA, 0x1001  # linux/if_tun.h
_DESTINATION: Final = slice(16, 20)  # of an IPv4 packet
_LONGEST: Final = 65536


class Place:
    """One of them."""

    def __init__(self, name: str, address: str, namespace: int, router: "subprocess.Popen[str]") -> None:
        self.name = name
        self.address = address
        """By which the others reach what listens on all addresses here."""
        self._namespace = namespace
        self._router = router

    @contextmanager
    def inside(self) -> Iterator[None]:
        """What this thread opens and starts meanwhile is in this place."""
        with _OF_THIS_THREAD.open("rb") as before:
            _enter(self._namespace)
            try:
                yield
            finally:
                _enter(before.fileno())

    def cut(self) -> None:
        """From now on nothing arrives from here elsewhere, nor here from elsewhere; senders are not told."""
        self.lose(1)

    def heal(self) -> None:
        """All arrives again."""
        self.lose(0)

    def lose(self, share: float) -> None:
        """That share of the packets from and to this place is lost."""
        assert self._router.stdin is not None
        assert self._router.stdout is not None
        print(self.address, share, file=self._router.stdin, flush=True)
        assert self._router.stdout.readline() == "done\n"


@contextmanager
def open_network(round_trips: Mapping[str, float]) -> Iterator[Mapping[str, Place]]:
    """Places by their names, each so many milliseconds there and back from a place that has 0.

    Needs root, Linux and /dev/net/tun: without them the test is skipped, or fails in CI.
    """
    if not _DEVICE.exists():
        refuse(f"network namespaces: there is no {_DEVICE}")
    with ExitStack() as stack:
        namespaces = []
        for _ in round_trips:
            try:
                namespaces.append(_new_namespace())
            except PermissionError:
                refuse("network namespaces: only root can make them")
            stack.callback(os.close, namespaces[-1])
        addresses = [f"10.77.0.{number}" for number in range(1, 1 + len(namespaces))]
        sides = [
            f"{address}={namespace}={delay / 2000}"
            for address, namespace, delay in zip(addresses, namespaces, round_trips.values(), strict=True)
        ]
        router = stack.enter_context(
            subprocess.Popen(
                [*UNTIL_WE_END, sys.executable, "-m", "tests.network", *sides],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=namespaces,
                text=True,
            )
        )
        assert router.stdout is not None
        assert router.stdout.readline() == "done\n", "the network does not start"
        yield {
            name: Place(name, address, namespace, router)
            for name, address, namespace in zip(round_trips, addresses, namespaces, strict=True)
        }


def _call(function: str, *arguments: int) -> None:
    """Of the C library: Python has these from 3.12 on."""
    if getattr(ctypes.CDLL(None, use_errno=True), function)(*arguments):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _enter(namespace: int) -> None:
    _call("setns", namespace, _CLONE_NEWNET)


def _new_namespace() -> int:
    """A new one, as a file that keeps it."""
    with _OF_THIS_THREAD.open("rb") as before:
        _call("unshare", _CLONE_NEWNET)
        try:
            return os.open(_OF_THIS_THREAD, os.O_RDONLY)
        finally:
            _enter(before.fileno())


class Router:
    """Takes each packet to the namespace that has its address, when its time has come."""

    def __init__(self, sides: Mapping[str, tuple[int, float]]) -> None:
        self._loop = asyncio.get_running_loop()
        self._sides: dict[bytes, tuple[int, float]] = {}
        """By address: the device, and the seconds to the place that has 0."""
        self._lost: dict[bytes, float] = {}
        for text, (namespace, delay) in sides.items():
            address = socket.inet_aton(text)
            self._sides[address] = _open_device(namespace, address), delay
            self._lost[address] = 0
            self._loop.add_reader(self._sides[address][0], partial(self._take, address))

    def lose(self, text: str, share: float) -> None:
        """As `Place.lose`."""
        self._lost[socket.inet_aton(text)] = share

    def _take(self, source: bytes) -> None:
        device, delay = self._sides[source]
        packet = os.read(device, _LONGEST)
        target = packet[_DESTINATION]
        if target in self._sides:
            self._loop.call_later(delay + self._sides[target][1], self._give, packet, source, target)

    def _give(self, packet: bytes, source: bytes, target: bytes) -> None:
        if random() >= max(self._lost[source], self._lost[target]):  # noqa: S311 - no secret
            os.write(self._sides[target][0], packet)


def _open_device(namespace: int, address: bytes) -> int:
    """A TUN device that is up in this namespace; its own network has 256 addresses. The loopback is up then too."""
    _enter(namespace)
    device = os.open(_DEVICE, os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", b"far", _TUN_WITHOUT_HEADER))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for request, value in ((_SIOCSIFADDR, address), (_SIOCSIFNETMASK, b"\xff\xff\xff\0")):
            fcntl.ioctl(control, request, struct.pack("16sHH4s16x", b"far", socket.AF_INET, 0, value))
        for name in (b"far", b"lo"):
            fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH22x", name, _IFF_UP))
    return device


async def main(*sides: str) -> None:
    """The process of a network: ADDRESS=NAMESPACE=SECONDS for each place; then a line for each change, to the end."""
    split = (side.split("=") for side in sides)
    router = Router({address: (int(namespace), float(delay)) for address, namespace, delay in split})
    print("done", flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        address, share = line.split()
        router.lose(address, float(share))
        print("done", flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
