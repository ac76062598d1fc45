"""Rows as Markdown: the table that is printed, and that of bench/attack/RESULTS.md, with a column for each server."""

from collections.abc import Sequence
from pathlib import Path

from attack.catalogue import listed
from attack.verdict import Row

HEAD = (
    *(
        "attack",
        "verdict",
        "healthy calls lost",
        "p50/p99 before > during, ms",
        "MiB sent",
        "MiB grown / kept",
        "CPU %",
    ),
    *("attackers", "because"),
)
BEGIN, END = "<!-- attacks:begin -->\n", "<!-- attacks:end -->\n"
USUAL = {"OK", "HTTP 200"}
"""Answers that no table needs."""


def line(cells: Sequence[str]) -> str:
    """A row of a table."""
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def head(names: Sequence[str] = HEAD) -> str:
    """The first two lines of one."""
    return f"{line(names)}\n{line(['---'] * len(names))}"


def row_of(row: Row) -> str:
    """All of it in a line."""
    if row.healthy is None or row.counts is None:
        return line([row.attack.name, _verdict(row), *[""] * (len(HEAD) - 3), ", ".join(row.why)])
    answered, lost = row.calls()
    before, peak, after = row.memory
    return line(
        [
            row.attack.name,
            _verdict(row),
            f"{lost.total()} of {answered + lost.total()}",
            _times(row),
            f"{row.counts['sent'] / 1e6:.1f}",
            f"{peak - before:+.0f} / {after - before:+.0f}" if peak else "",
            f"{row.cpu:.0f}" if peak else "",
            _attackers(row),
            "; ".join([*row.why, *row.counts["notes"]]),
        ]
    )


def _verdict(row: Row) -> str:
    return f"**{row.verdict}**" if row.verdict in {"weak", "broken"} else row.verdict


def _times(row: Row) -> str:
    return " > ".join("/".join(map(_ms, row.times(phase))) for phase in ("before", "during"))


def _ms(ms: float | None) -> str:
    return "–" if ms is None else f"{ms:.1f}" if ms < 10 else f"{ms:.0f}"


def _attackers(row: Row) -> str:
    """What became of them: connections that were ended or refused, and answers."""
    counts = row.counts or {}
    answers = [pair for pair in counts["answers"].most_common(3) if pair[0] not in USUAL]
    refused = [("not let in", counts["refused"])] if counts["refused"] else []
    return ", ".join(f"{count} × {name}" for name, count in [*counts["ended"].most_common(2), *refused, *answers])


def short(row: Row) -> str:
    """A cell that stands beside those of other servers."""
    if row.healthy is None:
        return "–" if row.verdict == "not tried" else _verdict(row)
    _, lost = row.calls()
    parts = [_verdict(row), *([f"{lost.total()} lost"] if lost else []), _times(row)]
    if (grown := row.memory[1] - row.memory[0]) >= 20:
        parts.append(f"{grown:+.0f} MiB")
    return ", ".join(parts)


def write_document(path: Path, rows: Sequence[Row]) -> None:
    """Fills the table between the markers; columns of servers that were not run stay."""
    before, begin, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    old, end, after = rest.partition(END)
    if not end:
        raise SystemExit(f"{path} has no markers for the table of attacks")
    path.write_text(f"{before}{begin}{_merged(old, rows)}{end}{after}", encoding="utf-8")


def _merged(old: str, rows: Sequence[Row]) -> str:
    table = [[cell.strip() for cell in text.strip("| ").split(" | ")] for text in old.splitlines()]
    servers = table[0][2:] if table else []
    cells = {
        (one[0].strip("`"), server): cell for one in table[2:] for server, cell in zip(servers, one[2:], strict=True)
    }
    servers = list(dict.fromkeys([*servers, *(row.server for row in rows)]))
    cells |= {(row.attack.name, row.server): short(row) for row in rows}
    lines = [head(["attack", "what it does", *servers])]
    for attack in listed():
        columns = [cells.get((attack.name, server), "–") for server in servers]
        if set(columns) != {"–"}:
            lines.append(line([f"`{attack.name}`", attack.does, *columns]))
    return "\n".join(lines) + "\n"
