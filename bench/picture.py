"""A chart of lines over a logarithmic axis, as SVG: a legend, a scale, and nothing that has to be installed."""

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 70, 130, 20, 50
COLOURS = ("#0969da", "#bc4c00", "#1a7f37", "#8250df", "#cf222e")
SCALE_LINES = 5

Points = Sequence[tuple[float, float]]


def draw(lines: Mapping[str, Points], across: str, up: str) -> str:
    """The lines by name, and the titles of both axes."""
    places = sorted({x for points in lines.values() for x, _ in points})
    most = _round_up(max(y for points in lines.values() for _, y in points))
    low, high = math.log10(max(places[0], 1)), math.log10(max(places[-1], 10))

    def at(x: float, y: float) -> tuple[float, float]:
        part = (math.log10(max(x, 1)) - low) / (high - low or 1)
        return LEFT + part * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - y / most * (HEIGHT - TOP - BOTTOM)

    right = WIDTH - RIGHT
    size, font = f'viewBox="0 0 {WIDTH} {HEIGHT}"', 'font-family="sans-serif" font-size="12"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for step in range(SCALE_LINES + 1):
        value = most * step / SCALE_LINES
        _, y = at(places[0], value)
        parts.append(f'<path d="M{LEFT} {y:.0f}H{right}" stroke="#d0d7de"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.0f}" text-anchor="end">{value:,.0f}</text>')
    below = HEIGHT - BOTTOM + 18
    parts += [f'<text x="{at(x, 0)[0]:.0f}" y="{below}" text-anchor="middle">{x:,.0f}</text>' for x in places]
    middle = (LEFT + right) / 2
    parts.append(f'<text x="{middle:.0f}" y="{HEIGHT - 10}" text-anchor="middle">{escape(across)}</text>')
    parts.append(f'<text x="{LEFT}" y="12">{escape(up)}</text>')
    for number, (name, points) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in sorted(points)))
        _, last = at(*max(points))
        parts.append(f'<polyline points="{corners}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{right + 8}" y="{last + 4:.0f}" fill="{colour}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _round_up(value: float) -> float:
    """To one or two times, or five times, a power of ten."""
    power = 10.0 ** math.floor(math.log10(value or 1))
    return next(power * times for times in (1, 2, 5, 10) if power * times >= value)
