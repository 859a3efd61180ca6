"""Draws seasonal series and splits each; runs on the host, never in a box.

Writes for the agent `train.csv` (`series,t,y`), `val.csv` and `test.csv` (`id,series,t`), and for the grader
`val.csv` and `test.csv` (`id,y`). In every series the first 60 values are for training, the next 12 for
validation, the last 12 for the test.
"""

from __future__ import annotations

import hashlib
import math
import random
from pathlib import Path

SERIES = 8
PERIOD = 12
LENGTHS = {"train": 60, "val": 12, "test": 12}


def prepare(agent_dir: Path, grader_dir: Path, split_seed: int) -> None:
    """Writes both folders' files; the same seed gives the same bytes."""
    shapes = generator(split_seed, "shapes")
    noise = {split: generator(split_seed, split) for split in LENGTHS}
    rows: dict[str, list[tuple[object, ...]]] = {split: [] for split in LENGTHS}
    for series in range(SERIES):
        level, slope = shapes.uniform(5, 10), shapes.uniform(-0.05, 0.1)
        height, phase = shapes.uniform(1, 3), shapes.uniform(0, 2 * math.pi)
        t = 0
        for split, length in LENGTHS.items():
            for _ in range(length):
                wave = height * math.sin(2 * math.pi * t / PERIOD + phase)
                y = round(level + slope * t + wave + noise[split].gauss(0, 0.3), 4)
                rows[split].append((series, t, y))
                t += 1
    _write(agent_dir / "train.csv", "series,t,y", rows["train"])
    for split in ("val", "test"):
        points = [(f"{series}-{t}", series, t, y) for series, t, y in rows[split]]
        _write(agent_dir / f"{split}.csv", "id,series,t", [point[:3] for point in points])
        _write(grader_dir / f"{split}.csv", "id,y", [(point[0], point[3]) for point in points])


def generator(split_seed: int, part: str) -> random.Random:
    """A generator for one part: its state can be computed from rows that the agent is shown, and must tell
    nothing about other parts, hence a hash."""
    return random.Random(hashlib.sha256(f"{split_seed} {part}".encode()).digest())


def _write(path: Path, header: str, rows: list[tuple[object, ...]]) -> None:
    lines = [header, *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
