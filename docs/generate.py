"""`python docs/generate.py`: write the tables of docs/settings.md and docs/commands.md, between their markers.

And the names of all settings, for the Helm chart, which refuses others.
"""

import re
import sys
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import click  # noqa: E402 - the path comes first

from ratelimit_service.cli import VERBS, main  # noqa: E402 - as above
from ratelimit_service.settings import SETTINGS, Section, Setting  # noqa: E402 - as above
from ratelimit_service.settings.fields import NEW  # noqa: E402 - as above
from ratelimit_service.settings.load import ALWAYS_ON, UNUSED  # noqa: E402 - as above

BEGIN, END = "<!-- generated:begin -->\n", "<!-- generated:end -->\n"


NAMES = "deploy/helm/ratelimit/files/settings.txt"

READ = {
    "serve": "deploy.md",
    "check": "rules.md#checking",
    "diff": "testing.md#comparing-two-versions",
    "rules": "testing.md#cases",
    "explain": "http.md#post-explain-6070",
    "status": "commands.md#is-it-well",
    "load": "performance.md#a-load-of-your-own",
    "simulate": "testing.md#what-would-have-happened",
    "call": "../README.md#try-it",
    "counters": "redis.md#look-at-counters-and-reset-them",
    "ban": "bans.md",
    "unban": "bans.md",
    "bans": "bans.md",
    "hash": "rules-topics.md#secret-values",
    "schema": "rules.md#checking",
    "top": "commands.md#what-is-busy-now",
    "init": "commands.md#a-first-rules-file",
    "try": "budgets.md#see-it",
    "completion": "commands.md#the-tab-key",
}
"""What a document says of a command."""


def settings_table() -> str:
    """Every setting by section, then envoyproxy's variables that are not settings here."""
    parts = [f"### {section}\n\n" + _table("variable | default | meaning", _rows(_of(section))) for section in Section]
    always = (f"`{name}` | {why}" for name, why in ALWAYS_ON.items())
    parts.append("### Of envoyproxy/ratelimit, and always on\n\n" + _table("variable | what is done here", always))
    unused: dict[str, list[str]] = {}
    for name, why in UNUSED.items():
        unused.setdefault(why, []).append(f"`{name}`")
    reasons = (f"{why} | {', '.join(names)}" for why, names in unused.items())
    parts.append("### Of envoyproxy/ratelimit, and not used by this release\n\n" + _table("why | variables", reasons))
    return "\n".join(parts)


def commands_table() -> str:
    """Every command, the first sentence of its help, and where to read more."""
    return _table("command | does | more", map(_command_row, VERBS))


def names() -> str:
    """Every variable that the service knows, a line each."""
    known = {setting.variable for setting in SETTINGS} | ALWAYS_ON.keys() | UNUSED.keys()
    return "".join(f"{name}\n" for name in sorted(known))


def filled(text: str, table: str) -> str:
    """The text with the table between its markers."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    return f"{before}{begin}\n{table}\n{end}{after}"


def _command_row(verb: str) -> str:
    command = main.get_command(click.Context(main), verb)
    does = " ".join(((command and command.help) or "").partition("\n\n")[0].split())
    more = READ[verb]
    return f"`{verb}` | {does} | [{more}]({more})"


def _of(section: Section) -> Iterable[Setting]:
    return (setting for setting in SETTINGS if setting.section is section)


def _rows(settings: Iterable[Setting]) -> Iterable[str]:
    """One for each, and one for all that say `As X, for the second Redis.` behind each other."""
    for redis, group in groupby(settings, _redis):
        if redis:
            yield f"{', '.join(map(_name, group))} | | {redis}"
        else:
            yield from map(_row, group)


def _redis(setting: Setting) -> str:
    said = re.fullmatch(r"As `REDIS_\w+`, (for the \w+ Redis\.)", setting.meaning)
    return f"As the `REDIS_…` of the same name, {said[1]}" if said and " there" not in setting.origin else ""


def _row(setting: Setting) -> str:
    name = f"{_name(setting)}<br>`{setting.flag}`" if setting.flag else _name(setting)
    return f"{name} | {_default(setting)} | {setting.meaning}"


def _name(setting: Setting) -> str:
    return f"`{setting.variable}`" + ("⁺" if setting.origin == NEW else "")


def _default(setting: Setting) -> str:
    there = re.search(r"; (.+) there", setting.origin)
    values = (f"`{setting.default}`" if setting.default else "", f"envoyproxy {there[1]}" if there else "")
    return ", ".join(filter(None, values))


def _table(header: str, rows: Iterable[str]) -> str:
    rule = " | ".join("---" for _ in header.split(" | "))
    return "".join(f"| {row} |\n" for row in (header, rule, *rows))


if __name__ == "__main__":
    for name, table in (("settings.md", settings_table()), ("commands.md", commands_table())):
        path = ROOT / "docs" / name
        path.write_text(filled(path.read_text(encoding="utf-8"), table), encoding="utf-8")
    (ROOT / NAMES).write_text(names(), encoding="utf-8")
