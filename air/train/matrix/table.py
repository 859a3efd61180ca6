"""Makes the table of a matrix's results for a terminal. A matrix has a row for each list of training tasks,
and a column for each task on which the trained models are evaluated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from air.train.loop.progress import plain_table


def table(results: Mapping[str, Any]) -> Table:
    """Returns a table for the terminal with the rows and columns of the matrix. `results` is the content of
    `results.json`."""
    made = plain_table(
        "success, or reward (r) where a task has no success; [95 % interval]; *: the row was trained on it"
    )
    made.add_column("trained on", no_wrap=True)
    for column in results["columns"]:
        made.add_column(column, justify="right", no_wrap=True)
    cells = {(cell["row"], cell["column"]): cell for cell in results["cells"]}
    for row in results["rows"]:
        made.add_row(row, *(text(cells[row, column]) for column in results["columns"]))
    return made


def text(cell: Mapping[str, Any]) -> str:
    """Returns the text of one cell of the table, such as `0.41 [0.35, 0.47]*`: the value, and its confidence
    interval if there is one. The star says that the row's model was trained on the column's task. The letter
    r after the value says that it is a mean reward, not a mean success. A cell without a value is a dash."""
    if cell["value"] is None:
        return "–"
    shown = f"{cell['value']:.2f}" + ("" if cell["measure"] == "success" else " r")
    if cell["low"] is not None:
        shown += f" \\[{cell['low']:.2f}, {cell['high']:.2f}]"
    return shown + ("*" if cell["trained_on"] else "")
