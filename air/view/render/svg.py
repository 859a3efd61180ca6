"""Draws line charts as SVG for the exported HTML page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from air.view.render.charts import COLOURS, EACH, MEAN, Chart, Points, as_csv, file_name
from air.view.render.markup import figure, line

WIDTH, HEIGHT = 560, 190
LEFT, RIGHT, TOP, BOTTOM = 60, 8, 8, 34


def curves(chart: Chart, *, step: bool = False) -> str:
    """Returns the HTML of a line chart: its legend, an SVG, and buttons with which the user saves it as PNG
    and CSV.

    If a curve has many points, the values are a thin line and their running mean is a thick line. If `step`
    is true, the line keeps the value of a point until the next point, like a stair; otherwise it joins the
    points directly. A curve without points is only named in the legend.
    """
    points = [point for values in chart.curves.values() for point in values]
    if not points:
        return '<div class="note">nothing to draw</div>'
    x_ticks = _ticks(min(x for x, _ in points), max(x for x, _ in points), 6, whole=True)
    y_ticks = _ticks(min(y for _, y in points), max(y for _, y in points), 4)
    box = (x_ticks[0], x_ticks[-1], y_ticks[0], y_ticks[-1])
    elements = [_axis(x_ticks, y_ticks, box), _labels(chart)]
    for number, (name, values) in enumerate(chart.curves.items()):
        if not values:
            continue
        colour = COLOURS[number % len(COLOURS)]
        strong = chart.strong(name)
        if chart.smoothed:
            thin = 'stroke-width="1" opacity=".35"'
            elements.append(_path(values, box, colour, thin, step=False))
        elements.append(_path(strong, box, colour, 'stroke-width="2"', step=step))
        size = 2 if chart.smoothed else 3
        elements += [
            f'<circle cx="{_x(x, box):.1f}" cy="{_y(y, box):.1f}" r="{size}" fill="{colour}">'
            f"<title>{line(name, 60)} {x:g}: {figure(y)}</title></circle>"
            for x, y in strong
        ]
    svg = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{"".join(elements)}</svg>'
    save = (
        f'<div class="save" data-name="{file_name(chart)}" data-csv="{escape(as_csv(chart))}">'
        '<button data-save="png">PNG</button><button data-save="csv">CSV</button></div>'
    )
    legend = _legend(list(chart.curves), smoothed=chart.smoothed)
    return f'<div class="chart"><div class="chart-head">{legend}{save}</div>{svg}</div>'


def _legend(names: Sequence[str], *, smoothed: bool) -> str:
    shown = names if len(names) > 1 else ()
    labels = [
        f'<span><i class="dot" style="background:{COLOURS[i % len(COLOURS)]}"></i>{line(name, 80)}</span> '
        for i, name in enumerate(shown)
    ]
    if smoothed:
        labels.append(
            f'<span><i class="thin"></i>{EACH}</span> <span><i class="thick"></i>{MEAN}</span>'
        )
    return f'<div class="note">{"".join(labels)}</div>'


def _labels(chart: Chart) -> str:
    """Returns SVG elements with the labels of the horizontal and the vertical axis."""
    middle = TOP + (HEIGHT - TOP - BOTTOM) / 2
    y = (
        f'<text x="12" y="{middle:.0f}" text-anchor="middle" transform="rotate(-90 12 {middle:.0f})">'
        f"{line(chart.y, 40)}</text>"
    )
    x = (LEFT + WIDTH - RIGHT) / 2
    return f'<text x="{x:.0f}" y="{HEIGHT - 4}" text-anchor="middle">{line(chart.x, 40)}</text>' + (
        y if chart.y else ""
    )


def _axis(x_ticks: Sequence[float], y_ticks: Sequence[float], box: _Box) -> str:
    parts = []
    for y in y_ticks:
        at = _y(y, box)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}" class="rule"/>'
            f'<text x="{LEFT - 6}" y="{at + 3.5:.1f}" text-anchor="end">{escape(f"{y:.4g}")}</text>'
        )
    for x in x_ticks:
        parts.append(
            f'<text x="{_x(x, box):.1f}" y="{HEIGHT - 20}" text-anchor="middle">{x:g}</text>'
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
    """Returns round numbers at which an axis gets marks. They cover the range from `low` to `high`, and are
    about `about` in number. With `whole`, they are integers."""
    span = (high - low) or abs(high) or 1.0
    rough = span / about
    power = 10.0 ** math.floor(math.log10(rough))
    size = next(n * power for n in (1, 2, 5, 10) if n * power >= rough)
    size = max(1.0, size) if whole else size
    first, last = math.floor(low / size), math.ceil(high / size)
    last = max(last, first + 1)
    return [round(i * size, 12) for i in range(first, last + 1)]
