"""`python docs/generate.py`: write the settings' tables into docs/settings.md, between the markers."""

import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ratelimit_service.settings import KNOBS, Knob, Section  # noqa: E402 - the path comes first
from ratelimit_service.settings.load import ALWAYS, WITHOUT_MEANING  # noqa: E402 - as above

BEGIN, END = "<!-- settings:begin -->\n", "<!-- settings:end -->\n"


def settings_table() -> str:
    """Every setting by section, then upstream's variables that are none."""
    parts = [
        f"### {section}\n\n" + _table("variable | default | meaning | from", map(_row, _of(section)))
        for section in Section
    ]
    always = (f"`{name}` | {why}" for name, why in ALWAYS.items())
    parts.append("### Understood, and always so\n\n" + _table("upstream's variable | here", always))
    unused: dict[str, list[str]] = {}
    for name, why in WITHOUT_MEANING.items():
        unused.setdefault(why, []).append(f"`{name}`")
    reasons = (f"{why} | {', '.join(names)}" for why, names in unused.items())
    parts.append("### Upstream's, and not used by this release\n\n" + _table("why | variables", reasons))
    return "\n".join(parts)


def filled(text: str, table: str) -> str:
    """The text with the table between its markers."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    return f"{before}{begin}\n{table}\n{end}{after}"


def _of(section: Section) -> Iterable[Knob]:
    return (knob for knob in KNOBS if knob.section is section)


def _row(knob: Knob) -> str:
    name = f"`{knob.variable}`" + (f"<br>`{knob.flag}`" if knob.flag else "")
    return f"{name} | {_default(knob)} | {knob.meaning} | {knob.origin}"


def _default(knob: Knob) -> str:
    return f"`{knob.default}`" if knob.default else "—"


def _table(header: str, rows: Iterable[str]) -> str:
    rule = " | ".join("---" for _ in header.split(" | "))
    return "".join(f"| {row} |\n" for row in (header, rule, *rows))


if __name__ == "__main__":
    path = ROOT / "docs" / "settings.md"
    path.write_text(filled(path.read_text(encoding="utf-8"), settings_table()), encoding="utf-8")
