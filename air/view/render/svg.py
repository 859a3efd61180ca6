"""Draws curves as SVG for the exported page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from air.view.render.markup import figure, line
from air.view.render.metric_series import smooth

Points = Sequence[tuple[float, float]]
WIDTH, HEIGHT = 560, 170
LEFT, RIGHT, TOP, BOTTOM = 52, 8, 8, 20
COLOURS = ("#2f6fde", "#e0862f", "#2fa874", "#b259c9", "#d9534a", "#17a2b8", "#8a6d3b", "#7a8499")


def curves(
    points_by_name: Mapping[str, Points], *, smoothed: bool = True, step: bool = False
) -> str:
    """Returns the HTML of a chart of points (x, y) by curve name, as SVG with a legend.

    `smoothed` draws long curves faint with their running mean on top; `step` draws stairs between points.
    """
    points = [point for values in points_by_name.values() for point in values]
    if not points:
        return '<div class="note">nothing to draw</div>'
    x_ticks = _ticks(min(x for x, _ in points), max(x for x, _ in points), 6, whole=True)
    y_ticks = _ticks(min(y for _, y in points), max(y for _, y in points), 4)
    box = (x_ticks[0], x_ticks[-1], y_ticks[0], y_ticks[-1])
    elements = [_axis(x_ticks, y_ticks, box)]
    for number, (name, values) in enumerate(points_by_name.items()):
        colour = COLOURS[number % len(COLOURS)]
        long = smoothed and len(values) > 8
        if long:
            elements.append(
                _path(values, box, colour, 'stroke-width="1" opacity=".25"', step=False)
            )
        whole = [(int(x), y) for x, y in values]
        strong: Points = smooth(whole) if long else values
        elements.append(_path(strong, box, colour, 'stroke-width="2"', step=step))
        elements += [
            f'<circle cx="{_x(x, box):.1f}" cy="{_y(y, box):.1f}" r="{2 if long else 3}" fill="{colour}">'
            f"<title>{line(name, 60)} {x:g}: {figure(y)}</title></circle>"
            for x, y in strong
        ]
    svg = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{"".join(elements)}</svg>'
    return f"<div>{_legend(list(points_by_name))}{svg}</div>"


def _legend(names: Sequence[str]) -> str:
    if len(names) < 2:
        return ""
    labels = (
        f'<span><i class="dot" style="background:{COLOURS[i % len(COLOURS)]}"></i>{line(name, 80)}</span> '
        for i, name in enumerate(names)
    )
    return f'<div class="note">{"".join(labels)}</div>'


def _axis(x_ticks: Points | Sequence[float], y_ticks: Sequence[float], box: _Box) -> str:
    parts = []
    for y in y_ticks:
        at = _y(y, box)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}" class="rule"/>'
            f'<text x="{LEFT - 6}" y="{at + 3.5:.1f}" text-anchor="end">{escape(f"{y:.4g}")}</text>'
        )
    for x in x_ticks:
        parts.append(
            f'<text x="{_x(float(x), box):.1f}" y="{HEIGHT - 5}" text-anchor="middle">{x:g}</text>'  # type: ignore[arg-type]
        )
    return "".join(parts)


_Box = tuple[float, float, float, float]


def _path(points: Points, box: _Box, colour: str, attributes: str, *, step: bool) -> str:
    places = [(_x(x, box), _y(y, box)) for x, y in points]
    moves = [f"M{places[0][0]:.1f} {places[0][1]:.1f}"]
    for x, y in places[1:]:
        moves.append(f"H{x:.1f}V{y:.1f}" if step else f"L{x:.1f} {y:.1f}")
    return f'<path d="{"".join(moves)}" fill="none" stroke="{colour}" {attributes}/>'


def _x(value: float, box: _Box) -> float:
    return LEFT + (value - box[0]) / (box[1] - box[0]) * (WIDTH - LEFT - RIGHT)


def _y(value: float, box: _Box) -> float:
    return HEIGHT - BOTTOM - (value - box[2]) / (box[3] - box[2]) * (HEIGHT - TOP - BOTTOM)


def _ticks(low: float, high: float, about: int, *, whole: bool = False) -> list[float]:
    """Returns about `about` round numbers that cover the range `low` to `high`; integers if `whole`."""
    span = (high - low) or abs(high) or 1.0
    rough = span / about
    power = 10.0 ** math.floor(math.log10(rough))
    size = next(n * power for n in (1, 2, 5, 10) if n * power >= rough)
    size = max(1.0, size) if whole else size
    first, last = math.floor(low / size), math.ceil(high / size)
    last = max(last, first + 1)
    return [round(i * size, 12) for i in range(first, last + 1)]
