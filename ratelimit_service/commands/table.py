"""Tables and shares as text."""

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]], *, right: int = 0) -> list[str]:
    """A line for each row, in columns; the first `right` of them, such as numbers, are aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if index < right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def share(part: int, whole: int) -> str:
    """`12.5 %`."""
    return f"{100 * part / (whole or 1):.1f} %"
