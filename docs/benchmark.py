"""`python docs/benchmark.py`: draw pictures/benchmark.svg from the first table of performance.md."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

DOCS: Final = Path(__file__).resolve().parent
PICTURE: Final = DOCS / "pictures" / "benchmark.svg"

LEFT: Final = 270
ROW: Final = 44
SCALE: Final = 2.1 / 1000
"""Pixels for a call a second."""

STYLE: Final = """\
  <style>
    text { font: 15px system-ui, sans-serif; fill: #1f2328; }
    .note { font-size: 13px; fill: #59636e; }
    .ours { fill: #1a7f64; } .range { fill: #1a7f64; opacity: .45; }
    .theirs { fill: #9a6700; } .theirs-range { fill: #9a6700; opacity: .45; }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3; } .note { fill: #9198a1; }
      .ours, .range { fill: #3fb68b; } .theirs, .theirs-range { fill: #d29922; }
    }
  </style>
"""


class Bar(NamedTuple):
    """What a row of the table says: from the slowest run to the fastest."""

    name: str
    slowest: int
    fastest: int


def bars() -> Iterator[Bar]:
    """Of the rows that have calls a second."""
    table = (DOCS / "performance.md").read_text(encoding="utf-8").partition("\n\n| |")[2].partition("\n\n")[0]
    for row in table.splitlines()[2:]:
        name, calls, *_ = (cell.strip() for cell in row.strip("|").split("|"))
        numbers = [int(number.replace(",", "")) for number in re.findall(r"[\d,]+", calls)]
        if numbers:
            yield Bar(re.sub(r"\[(.*?)\]\(.*?\)", r"\1", name), numbers[0], numbers[-1])


def drawn() -> str:
    """The picture, which is readable on a light and on a dark page."""
    rows = [text for number, bar in enumerate(bars()) for text in _row(bar, 46 + number * ROW)]
    height = 46 + len(list(bars())) * ROW + 24
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 {height}" role="img">\n'
    title = "  <title>Calls a second on one core, by the table of docs/performance.md</title>\n"
    note = "Calls a second on one core, 1,000 keys; the pale part is from the slowest run to the fastest."
    return head + title + STYLE + f'  <text class="note" x="10" y="22">{note}</text>\n' + "".join(rows) + "</svg>\n"


def _row(bar: Bar, y: int) -> Iterator[str]:
    colour = "theirs" if bar.name.startswith("envoyproxy") else "ours"
    pale = "theirs-range" if colour == "theirs" else "range"
    solid, whole = round(bar.slowest * SCALE), round(bar.fastest * SCALE)
    said = f"{bar.slowest:,}" if bar.slowest == bar.fastest else f"{bar.slowest:,} – {bar.fastest:,}"
    yield f'  <text x="{LEFT - 12}" y="{y + 20}" text-anchor="end">{bar.name}</text>\n'
    yield f'  <rect class="{colour}" x="{LEFT}" y="{y}" width="{solid}" height="28"/>\n'
    yield f'  <rect class="{pale}" x="{LEFT + solid}" y="{y}" width="{whole - solid}" height="28"/>\n'
    yield f'  <text x="{LEFT + whole + 10}" y="{y + 20}">{said}</text>\n'


if __name__ == "__main__":
    PICTURE.write_text(drawn(), encoding="utf-8")
