"""Builds the heat map of the results of `air matrix` as HTML, and computes how dark its cells are drawn. `air
matrix` trains a model on each of several lists of tasks (the rows), and evaluates it on each of several tasks
(the columns)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from air.view.render.markup import line

MEANING = "success (in italics: reward), [95 % interval]; bold: the row was trained on it"


def by_place(results: Mapping[str, Any]) -> dict[tuple[str, str], Mapping[str, Any]]:
    """Returns the cells of the heat map that shows the results of `air matrix`, as a dict by (row, column): a
    row is a list of training tasks, and a column an evaluated task. `results` is the content of the file
    `results.json` that `air matrix` writes."""
    return {(cell["row"], cell["column"]): cell for cell in results["cells"]}


def shade(results: Mapping[str, Any], cell: Mapping[str, Any]) -> float | None:
    """Returns how dark a cell of the heat map is drawn, from 0 to 1. This is its success rate or, if it shows
    a reward, where the reward lies between the lowest and the highest of its column. Returns None if the cell
    has no episodes yet. `results` is the content of `results.json`."""
    value = cell["value"]
    if value is None:
        return None
    if cell["measure"] == "success":
        return float(value)
    column = [one["value"] for one in results["cells"] if one["column"] == cell["column"]]
    values = [one for one in column if one is not None]
    spread = max(values) - min(values)
    return float((value - min(values)) / spread) if spread else 0.5


def interval(cell: Mapping[str, Any]) -> str:
    """Returns the confidence interval of a cell of the heat map as text; empty if the cell has none."""
    return "" if cell["low"] is None else f"{cell['low']:.2f} – {cell['high']:.2f}"


def as_html(results: Mapping[str, Any]) -> str:
    """Returns the results of `air matrix` as an HTML table with coloured cells. `results` is the content of
    its file `results.json`."""
    cells, columns = by_place(results), results["columns"]
    heads = "".join(f"<th>{line(name, 60)}</th>" for name in ("trained on", *columns))
    rows = [
        _row(results, row, [cells[row, column] for column in columns]) for row in results["rows"]
    ]
    return f'<table class="air matrix"><tr>{heads}</tr>{"".join(rows)}</table>'


def _row(results: Mapping[str, Any], name: str, cells: Sequence[Mapping[str, Any]]) -> str:
    return f"<tr><td>{line(name, 60)}</td>{''.join(_cell(results, cell) for cell in cells)}</tr>"


def _cell(results: Mapping[str, Any], cell: Mapping[str, Any]) -> str:
    dark = shade(results, cell)
    if dark is None:
        return "<td>–</td>"
    tag = "b" if cell["trained_on"] else "span"
    value = f"<{tag}>{cell['value']:.2f}</{tag}>"
    if cell["measure"] != "success":
        value = f"<i>{value}</i>"
    note = f"<br><small>{line(interval(cell), 40)}</small>"
    colour = f"rgba(47, 158, 110, {0.75 * dark:.2f})"
    return f'<td style="background: {colour}">{value}{note}</td>'
