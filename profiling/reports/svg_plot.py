"""Line plots as SVG, written without a plotting library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

from runtime.base.untrusted import printable

WIDTH, HEIGHT = 720, 440
LEFT, RIGHT, TOP, BOTTOM = 70, 24, 52, 58
TICKS = 6
COLOURS = ("#2563eb", "#6b7280", "#d97706", "#059669")
Line = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Axis:
    """Maps values to pixels: from 0 to the first round number that is not below the largest value."""

    label: str
    largest: float
    begin: float
    end: float

    @property
    def step(self) -> float:
        """Distance of two marks: 1, 2 or 5 times a power of ten."""
        rough = max(self.largest, 1e-9) / (TICKS - 1)
        power = 10.0 ** floor(log10(rough))
        return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))

    @property
    def marks(self) -> list[float]:
        """Round values from 0 to the first one that is not below the largest value."""
        return [index * self.step for index in range(ceil(self.largest / self.step - 1e-9) + 1)]

    def at(self, value: float) -> float:
        """Pixel coordinate of a value."""
        return self.begin + (self.end - self.begin) * value / self.marks[-1]


def svg(title: str, x_label: str, y_label: str, lines: Mapping[str, Line]) -> str:
    """A plot of named lines of points `(x, y)`, both 0 or more; at least one point."""
    points = [point for line in lines.values() for point in line]
    x = Axis(x_label, max(point[0] for point in points), LEFT, WIDTH - RIGHT)
    y = Axis(y_label, max(point[1] for point in points), HEIGHT - BOTTOM, TOP)
    style = 'font-family="sans-serif" font-size="12" fill="#111827"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {style}>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        _text(LEFT, 24, title, size=15),
        *_grid(x, y),
    ]
    for index, (name, line) in enumerate(lines.items()):
        parts += _line(name, [(x.at(a), y.at(b)) for a, b in line], COLOURS[index % len(COLOURS)], index)
    return "\n".join([*parts, "</svg>\n"])


def _grid(x: Axis, y: Axis) -> Iterator[str]:
    for value in y.marks:
        yield f'<path d="M{LEFT} {y.at(value):.1f}H{WIDTH - RIGHT}" stroke="#e5e7eb"/>'
        yield _text(LEFT - 8, y.at(value) + 4, f"{value:g}", anchor="end")
    for value in x.marks:
        yield f'<path d="M{x.at(value):.1f} {HEIGHT - BOTTOM}v5" stroke="#111827"/>'
        yield _text(x.at(value), HEIGHT - BOTTOM + 20, f"{value:g}", anchor="middle")
    yield f'<path d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}" stroke="#111827" fill="none"/>'
    yield _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, x.label, anchor="middle")
    yield _text(LEFT, TOP - 10, y.label)


def _line(name: str, points: Line, colour: str, index: int) -> Iterator[str]:
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
    yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
    yield from (f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3.5" fill="{colour}"/>' for a, b in points)
    yield f'<rect x="{LEFT + 12}" y="{TOP + 8 + 20 * index}" width="14" height="4" fill="{colour}"/>'
    yield _text(LEFT + 34, TOP + 14 + 20 * index, name)


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(printable(text))}</text>'
