"""Files among the rules that no service can use."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from attack.attacker import Attacker
from attack.catalogue import Need, attack

ROOT = str(Path(__file__).resolve().parent.parent.parent)
RULES = "domain: {name}\ndescriptors: [{{key: user, rate_limit: {{unit: year, requests_per_unit: 5}}}}]\n"


def _write(folder: Path, name: str, text: str) -> None:
    """In one step, as an editor or a ConfigMap does."""
    fresh = folder / f".{name}.new"
    fresh.write_text(text, encoding="utf-8")
    fresh.rename(folder / name)


def _text(log: str) -> str:
    return Path(log).read_text(encoding="utf-8", errors="replace")


async def _loads(attacker: Attacker, domain: str) -> bool:
    """Whether new rules are in force within a few looks."""
    for _ in range(30):
        reader, writer = await asyncio.open_connection(attacker.target.host, attacker.target.debug_port)
        writer.write(b"GET /rlconfig HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        page = await reader.read()
        writer.close()
        if f"\n{domain}.".encode() in page:
            return True
        await asyncio.sleep(0.25)
    return False


@attack(Need.OURS, seconds=12)
async def rules_fifo(attacker: Attacker) -> None:
    """A pipe without a writer among the rules: other files are loaded, or a line of the log names it."""
    folder = Path(attacker.target.rules)
    os.mkfifo(folder / "pipe.yaml")
    await asyncio.sleep(1.5)
    _write(folder, "more.yaml", RULES.format(name="more"))
    if not await _loads(attacker, "more") and "pipe.yaml" not in _text(attacker.target.log):
        attacker.harm("rules are no longer loaded, and no line of the log says so")


@attack(Need.OURS, seconds=8)
async def rules_fifo_start(attacker: Attacker) -> None:
    """`ratelimit check` of a folder with a pipe without a writer: it must end."""
    folder = Path(attacker.target.rules).parent / "with-a-pipe"
    folder.mkdir()
    os.mkfifo(folder / "pipe.yaml")
    _write(folder, "more.yaml", RULES.format(name="more"))
    command = [sys.executable, "-m", "ratelimit_service", "check", str(folder)]
    checking = await asyncio.create_subprocess_exec(
        *command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": ROOT}
    )
    try:
        await asyncio.wait_for(checking.wait(), attacker.left - 0.5)
    except TimeoutError:
        checking.kill()
        attacker.harm("check never ends")


BOMB = "x0: &x0 [1]\n" + "".join(f"x{at}: &x{at} [{', '.join([f'*x{at - 1}'] * 9)}]\n" for at in range(1, 12))


@attack(Need.OURS, seconds=10)
async def rules_bombs(attacker: Attacker) -> None:
    """Files of aliases without end, of 20 MB, deep, of long numbers, a loop of links, /dev/zero: one after another."""
    folder = Path(attacker.target.rules)
    texts = {
        "bomb": BOMB,
        "large": "# " + "x" * 20_000_000,
        "deep": "[" * 100_000,
        "number": "domain: shop\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: " + "9" * 500_000,
        "merge": "a: &a {x: 1}\nb: {<<: [" + "*a, " * 50_000 + "*a]}",
    }
    for name, text in texts.items():
        _write(folder, f"{name}.yaml", text)
        await asyncio.sleep(1.2)
        (folder / f"{name}.yaml").unlink()
    for name, place in (("loop", "loop.yaml"), ("zero", "/dev/zero"), ("gone", "nowhere")):
        (folder / f"{name}.yaml").symlink_to(place)
        await asyncio.sleep(1.2)
        (folder / f"{name}.yaml").unlink()


@attack(Need.OURS)
async def rules_churn(attacker: Attacker) -> None:
    """A file of 2,000 rules that changes 20 times a second."""
    rules = "".join(
        f"  - {{key: k, value: v{at}, rate_limit: {{unit: day, requests_per_unit: 9}}}}\n" for at in range(2000)
    )
    for round_ in range(10_000):
        _write(Path(attacker.target.rules), "many.yaml", f"domain: many{round_}\ndescriptors:\n{rules}")
        await asyncio.sleep(0.05)
