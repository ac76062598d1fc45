"""`python docs/generate.py`: write the settings' tables into docs/settings.md, between the markers."""

import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ratelimit_service.settings import SETTINGS, Section, Setting  # noqa: E402 - the path comes first
from ratelimit_service.settings.load import ALWAYS_ON, UNUSED  # noqa: E402 - as above

BEGIN, END = "<!-- settings:begin -->\n", "<!-- settings:end -->\n"


def settings_table() -> str:
    """Every setting by section, then upstream's variables that are not settings here."""
    parts = [
        f"### {section}\n\n" + _table("variable | default | meaning | from", map(_row, _of(section)))
        for section in Section
    ]
    always = (f"`{name}` | {why}" for name, why in ALWAYS_ON.items())
    parts.append("### Upstream's, and always on\n\n" + _table("upstream's variable | what is done here", always))
    unused: dict[str, list[str]] = {}
    for name, why in UNUSED.items():
        unused.setdefault(why, []).append(f"`{name}`")
    reasons = (f"{why} | {', '.join(names)}" for why, names in unused.items())
    parts.append("### Upstream's, and not used by this release\n\n" + _table("why | variables", reasons))
    return "\n".join(parts)


def filled(text: str, table: str) -> str:
    """The text with the table between its markers."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    return f"{before}{begin}\n{table}\n{end}{after}"


def _of(section: Section) -> Iterable[Setting]:
    return (setting for setting in SETTINGS if setting.section is section)


def _row(setting: Setting) -> str:
    name = f"`{setting.variable}`" + (f"<br>`{setting.flag}`" if setting.flag else "")
    return f"{name} | {_default(setting)} | {setting.meaning} | {setting.origin}"


def _default(setting: Setting) -> str:
    return f"`{setting.default}`" if setting.default else "—"


def _table(header: str, rows: Iterable[str]) -> str:
    rule = " | ".join("---" for _ in header.split(" | "))
    return "".join(f"| {row} |\n" for row in (header, rule, *rows))


if __name__ == "__main__":
    path = ROOT / "docs" / "settings.md"
    path.write_text(filled(path.read_text(encoding="utf-8"), settings_table()), encoding="utf-8")
