"""Draws the results of `air matrix` as a heat map (a PNG file), with matplotlib. `air matrix` trains a model
on each of several lists of tasks (the rows), and evaluates it on each of several tasks (the columns)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from air.errors import MissingError, UsageError
from air.view.render import matrix
from air.view.render.clean import one_line

_CELL_WIDTH, _CELL_HEIGHT = 1.25, 0.62
"""The size of one cell of the heat map in inches."""


def save(path: Path, results: Mapping[str, Any]) -> None:
    """Draws the results of `air matrix` as a heat map, and writes it to the PNG file `path`. `results` is the
    content of the file `results.json` that `air matrix` writes.

    Raises MissingError if matplotlib is not installed, and UsageError if the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingError(
            "the heat map needs the package matplotlib", remedy="pip install 'air-agent[plot]'"
        ) from None
    rows, columns = results["rows"], results["columns"]
    figure = Figure(
        figsize=(2.2 + _CELL_WIDTH * len(columns), 1.9 + _CELL_HEIGHT * len(rows)),
        dpi=130,
        layout="constrained",
    )
    axis = figure.subplots()
    cells = matrix.by_place(results)
    shades = [[matrix.shade(results, cells[row, column]) for column in columns] for row in rows]
    axis.imshow(
        [[math.nan if shade is None else shade for shade in line] for line in shades],
        cmap="YlGn",
        vmin=0,
        vmax=1.15,  # the darkest green hides the text
        aspect="auto",
    )
    axis.set_xticks(range(len(columns)), [one_line(name, 40) for name in columns])
    axis.tick_params(axis="x", labelrotation=30, labelsize=8)
    for label in axis.get_xticklabels():
        label.set_horizontalalignment("right")
        label.set_rotation_mode("anchor")
    axis.set_yticks(range(len(rows)), [one_line(name, 40) for name in rows], fontsize=9)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    for y, row in enumerate(rows):
        for x, column in enumerate(columns):
            _write(axis, x, y, cells[row, column])
    axis.set_xlabel("evaluated on", fontsize=9)
    axis.set_ylabel("trained on", fontsize=9)
    axis.set_title(one_line(f"{results['name']}: {matrix.MEANING}", 120), fontsize=9, loc="left")
    try:
        figure.savefig(path, format="png")
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror}", where=str(path)) from error


def _write(axis: Any, x: int, y: int, cell: Mapping[str, Any]) -> None:
    """Writes the value and the confidence interval of one cell of the heat map into its square, in column `x`
    and row `y` (from 0)."""
    if cell["value"] is None:
        axis.text(x, y, "–", ha="center", va="center", fontsize=8, color="#666666")
        return
    style = {
        "fontweight": "bold" if cell["trained_on"] else "normal",
        "fontstyle": "normal" if cell["measure"] == "success" else "italic",
    }
    axis.text(x, y - 0.12, f"{cell['value']:.2f}", ha="center", va="center", fontsize=9, **style)
    axis.text(x, y + 0.25, matrix.interval(cell), ha="center", va="center", fontsize=6.5)
