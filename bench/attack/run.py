"""Attack a rate-limit service, and see what a healthy client beside the attacker notices: `make attack`.

Without arguments: every attack on our own service with its default settings, a fresh one for each, on a core of its
own; the attackers have one address, and the healthy client another.
--envoyproxy attacks envoyproxy/ratelimit too, --command any other program, --at a server that runs already.

Rules of the verdicts: bench/attack/verdict.py. The exit code is 1 when a verdict is `broken`.
"""

import argparse
import io
import ipaddress
import json
import os
import platform
import resource
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any

from attack import attacker, files, floods, healthy, http1, made_up, messages, places, stores, tls  # noqa: F401 - these enter their attacks in the catalogue
from attack.catalogue import ATTACKS, Attack, Target, listed
from attack.frames import SHOULD_RATE_LIMIT
from attack.proc import look, pin, reset_peak
from attack.servers import PEER_RULES, PLAIN, Envoyproxy, Ours, Program, Running, Server
from attack.table import head, row_of, write_document
from attack.verdict import MIB, Row, judged, together

BESIDE, SECONDS = 1.5, 4.0
"""Of the phases before and after the attack, and of the attack."""

RUNS = 3
"""Of an attack whose verdict is `weak`: other work of the machine makes calls slow, and nothing makes them fast."""

GRACE = 30.0
"""Seconds that a client may take to print what it counted, after its time is over."""

PROGRAM = Path(__file__).parent


class Client:
    """A process beside the server, an attacker or the healthy client: it prints `ready`, reads lines, prints JSON."""

    def __init__(self, role: str, target: Target, seconds: float = 0) -> None:
        options = ["--be", role, "--target", json.dumps(asdict(target)), "--seconds", str(seconds)]
        command = [sys.executable, str(PROGRAM), *options]
        self._popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        pin(self._popen.pid, server=False)

    def ready(self) -> bool:
        """Wait until it is; False when it ends before."""
        return bool(_pipe(self._popen.stdout).readline())

    def write(self, word: str) -> None:
        """A line for it; one that has ended does not read."""
        with suppress(BrokenPipeError):
            print(word, file=_pipe(self._popen.stdin), flush=True)

    def report(self, seconds: float) -> Any:
        """What it printed at its end; None when it did not end in time."""
        try:
            printed, _ = self._popen.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            return None
        return json.loads(printed) if printed.strip() else None

    def end(self) -> None:
        """At once, if it still runs."""
        if self._popen.poll() is None:
            self._popen.kill()
            self._popen.communicate()


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def beside(attack: Attack, server: Server, target: Target, seconds: float) -> Row:
    """One attack, with a healthy client before, during and after it."""
    row, lasts, clients = Row(attack, server.name), max(seconds, attack.seconds), list[Client]()
    try:
        clients.append(client := Client("healthy", target))
        attackers = [Client(attack.name, target, lasts) for _ in range(attack.processes)]
        clients += attackers
        if not client.ready():
            return replace(row, verdict="broken", why=("no answer to a healthy client, before the attack",))
        for one in attackers:
            one.ready()
        time.sleep(min(BESIDE, seconds))
        reset_peak(target.pid)
        first = look(target.pid)
        client.write("during")
        began = time.monotonic()
        for one in attackers:
            one.write("go")
        reports = [one.report(lasts + GRACE) for one in attackers]
        # An attack that is over at once: what it leaves behind counts as long as one that goes on.
        time.sleep(max(0, min(seconds, BESIDE) - (time.monotonic() - began)))
        took, last = time.monotonic() - began, look(target.pid)
        client.write("after")
        time.sleep(min(BESIDE, seconds))
        client.write("end")
        seen = client.report(healthy.PATIENCE + GRACE)
        after = look(target.pid)
    finally:
        for one in clients:
            one.end()
    if None in reports or seen is None:
        return replace(row, why=("its attacker or the healthy client ended without a report",))
    row = replace(
        row,
        healthy=seen,
        counts=together(reports),
        cpu=100 * max(0, last.seconds - first.seconds) / took,
        memory=(first.memory / MIB, max(last.peak, after.peak, last.memory) / MIB, after.memory / MIB),
    )
    verdict, why = judged(row, died=len(first.pids - after.pids))
    return replace(row, verdict=verdict, why=why)


def rows_of(
    server: Server, chosen: Sequence[Attack], seconds: float, *, runs: int = RUNS, same_address: bool = False
) -> Iterator[Row]:
    """Each attack in turn; one that is weak is run again, and the best of its runs counts."""
    for attack in chosen:
        row = one = _row(server, attack, seconds, same_address=same_address)
        for _ in range(runs - 1):
            if one.verdict == "weak":
                one = _row(server, attack, seconds, same_address=same_address)
                row = min(row, one, key=Row.badness)
        yield row


def _row(server: Server, attack: Attack, seconds: float, *, same_address: bool) -> Row:
    if lacks := sorted(attack.needs - server.has):
        return Row(attack, server.name, why=(f"it needs {', '.join(lacks)}",))
    try:
        with redirect_stdout(io.StringIO()), server.start(attack) as target:  # logs of processes that end
            return beside(attack, server, replace(target, same_address=same_address), seconds)
    except AssertionError as error:  # of tests.processes: it did not start, or takes no connections
        return Row(attack, server.name, "broken", (str(error).splitlines()[0],))


def _servers(chosen: argparse.Namespace, fail: Any) -> list[Server]:
    """What is attacked."""
    if chosen.at:
        return [Running(chosen.name or "peer", _running(chosen, fail))]
    if chosen.command:
        return [Program(chosen.name or "peer", chosen.command, chosen.path, chosen.request)]
    ours = Ours(chosen.redis, dict(setting.split("=", 1) for setting in chosen.set), chosen.name or "ours")
    return [
        *([] if chosen.only_envoyproxy else [ours]),
        *([Envoyproxy()] if chosen.envoyproxy or chosen.only_envoyproxy else []),
    ]


def _running(chosen: argparse.Namespace, fail: Any) -> Target:
    """A server that runs, on this machine unless its owner says so."""
    host, _, port = chosen.at.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    for *_, address in socket.getaddrinfo(host, None):
        if not (chosen.i_own_this_server or ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback):
            fail(f"{host} is {address[0]}, another machine: attack only what is yours (--i-own-this-server)")
    http_port = int(chosen.http.rpartition(":")[2]) if chosen.http else 0
    return Target(host, int(port), chosen.path, chosen.request, chosen.pid or 0, http_port, tls=chosen.tls)


def _chosen(names: str, fail: Any) -> list[Attack]:
    """Those of the list, or all."""
    wanted = [name for name in names.split(",") if name]
    if unknown := [name for name in wanted if name not in ATTACKS]:
        fail(f"no attack is called {', '.join(unknown)}; see --list")
    return [ATTACKS[name] for name in wanted] or listed()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bench/attack", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--list", action="store_true", help="name the attacks and what each does")
    add("--only", default="", metavar="NAME,…", help="some of them")
    add("--seconds", type=float, default=SECONDS, help="of each attack; some need more (default: %(default)s)")
    add("--runs", type=int, default=RUNS, help="of an attack while it is weak (default: %(default)s)")
    add("--document", type=Path, metavar="FILE", help="write the column of each server in that document's table")
    add("--redis", action="store_true", help="ours with counters in Redis")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of ours")
    add("--envoyproxy", action="store_true", help="envoyproxy/ratelimit too, which Go builds")
    add("--only-envoyproxy", action="store_true", help="envoyproxy/ratelimit alone")
    add("--at", metavar="HOST:PORT", help="a server that runs, on this machine")
    add("--pid", type=int, help="its process, whose memory and processor time are looked at")
    add("--http", metavar="HOST:PORT", help="its HTTP port, on the same host")
    add("--tls", action="store_true", help="its gRPC port has TLS")
    add("--command", metavar="…", help="a program to start for each attack; {port} is that of gRPC")
    add("--name", default="", help="what to call it in the table")
    add("--path", default=SHOULD_RATE_LIMIT, help="the method of a peer that does not speak Envoy's protocol")
    add("--request", default=PLAIN, metavar="HEX", help="a plain message of that method")
    add("--show-rules", action="store_true", help="print the rules that a peer of Envoy's protocol needs")
    add(
        "--same-address",
        action="store_true",
        help="the healthy client has the address of the attackers, as behind a proxy",
    )
    add("--i-own-this-server", action="store_true", help="attack one that is not on this machine")
    add("--be", help=argparse.SUPPRESS)
    add("--target", help=argparse.SUPPRESS)
    return parser


def main() -> None:
    """Prints a table, each row as soon as it is known."""
    parser = _parser()
    chosen = parser.parse_args()
    if chosen.be:
        target = Target(**json.loads(chosen.target))
        return (
            healthy.main(target)
            if chosen.be == "healthy"
            else attacker.main(ATTACKS[chosen.be], target, chosen.seconds)
        )
    attacks = _chosen(chosen.only, parser.error)
    if chosen.list:
        for attack in attacks:
            needs = f" (needs {', '.join(sorted(attack.needs))})" if attack.needs else ""
            print(f"{attack.name:24} {attack.does}{needs}")
        return None
    if chosen.show_rules:
        return print(PEER_RULES, end="")
    broken = False
    cores, load = os.cpu_count() or 1, os.getloadavg()[0]
    busy = "; times mean little while others use it" if load > 0.5 * cores else ""
    print(f"{platform.machine()}, {cores} cores, Python {platform.python_version()}, load {load:.1f}{busy}")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # attackers have thousands of connections
    for server in _servers(chosen, parser.error):
        print(f"\n{server.name}\n\n{head()}", flush=True)
        verdicts = Counter[str]()
        for row in rows_of(server, attacks, chosen.seconds, runs=chosen.runs, same_address=chosen.same_address):
            broken |= row.verdict == "broken"
            verdicts[row.verdict] += 1
            print(row_of(row), flush=True)
            if chosen.document:
                write_document(chosen.document, [row])
        print("\n" + ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common()))
    sys.exit(broken)
