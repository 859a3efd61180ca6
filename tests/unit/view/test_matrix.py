"""The heat map of a matrix, as a picture and as a page of the viewer."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from air.errors import UsageError
from air.view import heat_map
from air.view.index.run_discovery import discover, matrices
from air.view.render import matrix


def cell(row: str, column: str, value: float | None, **more: Any) -> dict[str, Any]:
    known = {"row": row, "column": column, "trained_on": row == column, "measure": "success"}
    return {**known, "value": value, "low": value, "high": value, **more}


def results() -> dict[str, Any]:
    cells = [
        cell("base", "a", 0.25, low=0.2, high=0.5),
        cell("base", "<b>", -1.0, measure="reward"),
        cell("a", "a", 0.75),
        cell("a", "<b>", 3.0, measure="reward", low=None, high=None),
        cell("new", "a", None),
        cell("new", "<b>", 1.0, measure="reward"),
    ]
    rows, columns = ["base", "a", "new"], ["a", "<b>"]
    return {"v": 1, "name": "m", "rows": rows, "columns": columns, "cells": cells}


def test_a_cell_is_as_dark_as_its_success_or_its_place_in_the_column() -> None:
    shades = [matrix.shade(results(), one) for one in results()["cells"]]
    assert shades == [0.25, 0.0, 0.75, 1.0, None, 0.5]


def test_names_of_tasks_stay_text() -> None:
    page = matrix.as_html(results())
    assert "&lt;b&gt;" in page
    assert page.count("<b>") == 1  # of the cell whose row was trained on its column
    assert "<b>0.75</b>" in page
    assert "0.20 – 0.50" in page
    assert page.count(">–</td>") == 1


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    heat_map.save(tmp_path / "m.png", results())
    data = (tmp_path / "m.png").read_bytes()
    width, height = struct.unpack(">II", data[16:24])
    assert data[:4] == b"\x89PNG"
    assert min(width, height) > 300
    with pytest.raises(UsageError, match="cannot be written"):
        heat_map.save(tmp_path / "no" / "m.png", results())


def test_the_viewer_finds_the_runs_and_the_results_of_a_matrix(tmp_path: Path) -> None:
    for run in ("outputs/m/runs/a-seed0", "outputs/other"):
        (tmp_path / run / "trajectories").mkdir(parents=True)
    folder = tmp_path / "outputs" / "m"
    (folder / "matrix.json").write_text("{}")
    assert matrices(discover([folder])) == {}
    (folder / "results.json").write_text(json.dumps(results()))
    for place in (folder, tmp_path / "outputs"):
        runs = discover([place])
        assert {run.name for run in runs} >= {"a-seed0"}
        assert list(matrices(runs)) == [str(folder)]
    assert [run.name for run in discover([tmp_path / "outputs" / "other"])] == ["other"]
