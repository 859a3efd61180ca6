"""Draws the hidden inputs of validation and test; runs on the host, never in a box.

An input is a list of 1 to 30 integers from -99 to 99. Beside random ones there are the awkward: a
single number, all negative, all zero, one positive among negatives, all positive. Nothing is given to the
agent beyond its starter files.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

RANDOM, LONGEST, LARGEST = 40, 30, 99


def prepare(agent_dir: Path, grader_dir: Path, split_seed: int) -> None:
    """Writes the grader's `val.json` and `test.json`; the same seed gives the same bytes."""
    rng = random.Random(split_seed)
    for split in ("val", "test"):
        (grader_dir / f"{split}.json").write_text(json.dumps(inputs(rng)), encoding="utf-8")


def inputs(rng: random.Random) -> list[list[int]]:
    """The inputs of one split."""

    def numbers(low: int, high: int, count: int = 0) -> list[int]:
        count = count or rng.randint(2, LONGEST)
        return [rng.randint(low, high) for _ in range(count)]

    lone = numbers(-LARGEST, -1)
    lone[rng.randrange(len(lone))] = rng.randint(1, LARGEST)
    awkward = [
        numbers(-LARGEST, -1, 1),
        numbers(1, LARGEST, 1),
        [0],
        [0] * rng.randint(2, LONGEST),
        numbers(-LARGEST, -1),
        numbers(-LARGEST, 0),
        numbers(1, LARGEST),
        [LARGEST] * LONGEST,
        [-LARGEST] * LONGEST,
        lone,
    ]
    usual = [numbers(-LARGEST, LARGEST) for _ in range(RANDOM)]
    mixed = [*awkward, *usual]
    rng.shuffle(mixed)
    return mixed
