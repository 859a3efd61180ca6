"""Splits scikit-learn's 8x8 digits into train, validation and test; runs on the host, never in a box.

Writes for the agent `train.csv` (`id,pixels,digit`), `val.csv` and `test.csv` (`id,pixels`), and for
the grader `val.csv` and `test.csv` (`id,digit`). `pixels` are 64 characters, row by row, one per
pixel: its darkness 0..16 as 0..9a..g. Images are shuffled and numbered anew.
"""

from __future__ import annotations

import random
from pathlib import Path

DARKNESS = "0123456789abcdefg"
VAL, TEST = 300, 300


def prepare(agent_dir: Path, grader_dir: Path, split_seed: int) -> None:
    """Writes both folders' files; the same seed gives the same bytes."""
    from sklearn.datasets import load_digits

    bundle = load_digits()
    images = [
        ("".join(DARKNESS[int(pixel)] for pixel in image), int(digit))
        for image, digit in zip(bundle.data, bundle.target, strict=True)
    ]
    random.Random(split_seed).shuffle(images)
    rows = [(number, pixels, digit) for number, (pixels, digit) in enumerate(images, 1)]
    splits = {"val": rows[:VAL], "test": rows[VAL : VAL + TEST], "train": rows[VAL + TEST :]}
    for split, part in splits.items():
        if split == "train":
            _write(agent_dir / "train.csv", "id,pixels,digit", part)
        else:
            _write(agent_dir / f"{split}.csv", "id,pixels", [row[:2] for row in part])
            _write(grader_dir / f"{split}.csv", "id,digit", [(row[0], row[2]) for row in part])


def _write(path: Path, header: str, rows: list[tuple[object, ...]]) -> None:
    lines = [header, *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
