"""A chart of lines, as SVG: axes, a legend, and nothing that has to be installed."""

from collections.abc import Callable, Mapping, Sequence
from html import escape
from math import floor, log10
from operator import itemgetter
from typing import Final

_WIDTH, _HEIGHT = 640, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 130, 20, 50
_COLOURS: Final = ("#0969da", "#bc4c00", "#1a7f37", "#8250df", "#cf222e")
_STEPS: Final = 5
_LINE: Final = 14
"""The height of a name."""

Points = Sequence[tuple[float, float]]


def draw(
    lines: Mapping[str, Points],
    across: str,
    up: str,
    ticks: Sequence[float],
    tick_text: Callable[[float], str],
    *,
    linear: bool = False,
) -> str:
    """Lines by name over an axis with these ticks, logarithmic unless `linear`; `across` and `up` are its titles."""
    top = _round_up(max(y for points in lines.values() for _, y in points))
    low, high = (ticks[0], ticks[-1]) if linear else (log10(max(ticks[0], 1)), log10(max(ticks[-1], 10)))

    def place(x: float, y: float) -> tuple[float, float]:
        part = ((x if linear else log10(max(x, 1))) - low) / (high - low or 1)
        return _LEFT + part * (_WIDTH - _LEFT - _RIGHT), _HEIGHT - _BOTTOM - y / top * (_HEIGHT - _TOP - _BOTTOM)

    right = _WIDTH - _RIGHT
    size, font = f'viewBox="0 0 {_WIDTH} {_HEIGHT}"', 'font-family="sans-serif" font-size="12"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for step in range(_STEPS + 1):
        value = top * step / _STEPS
        _, y = place(ticks[0], value)
        parts.append(f'<path d="M{_LEFT} {y:.0f}H{right}" stroke="#d0d7de"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.0f}" text-anchor="end">{value:,.10g}</text>')
    below = _HEIGHT - _BOTTOM + 18
    parts += [
        f'<text x="{place(x, 0)[0]:.0f}" y="{below}" text-anchor="middle">{escape(tick_text(x))}</text>' for x in ticks
    ]
    middle = (_LEFT + right) / 2
    parts.append(f'<text x="{middle:.0f}" y="{_HEIGHT - 10}" text-anchor="middle">{escape(across)}</text>')
    parts.append(f'<text x="{_LEFT}" y="12">{escape(up)}</text>')
    ordered = {name: sorted(points, key=itemgetter(0)) for name, points in lines.items()}
    ends = _apart({name: place(*points[-1])[1] for name, points in ordered.items()})
    for number, (name, points) in enumerate(ordered.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in points))
        parts.append(f'<polyline points="{corners}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{right + 8}" y="{ends[name] + 4:.0f}" fill="{colour}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _apart(ends: Mapping[str, float]) -> Mapping[str, float]:
    """The heights of the names at the ends of lines, moved up where one would cover another."""
    placed: dict[str, float] = {}
    room = float(_HEIGHT)
    for name, y in sorted(ends.items(), key=itemgetter(1), reverse=True):
        placed[name] = min(y, room)
        room = placed[name] - _LINE
    return placed


def _round_up(value: float) -> float:
    """To one or two times, or five times, a power of ten."""
    power = 10.0 ** floor(log10(value or 1))
    return next(power * times for times in (1, 2, 5, 10) if power * times >= value)
