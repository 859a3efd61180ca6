"""Draws the seeds of the hidden mazes; runs on the host, never in a box.

Writes for the agent `train.json`, a list of seeds of mazes to train in (any other number is a maze too),
and for the grader `mazes.json`, `{"val": [seed, …], "test": [seed, …]}`.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

HIDDEN, TRAIN = 60, 200


def prepare(agent_dir: Path, grader_dir: Path, split_seed: int) -> None:
    """Writes both folders' files; the same seed gives the same bytes."""
    rng = random.Random(split_seed)
    # Of 64 bits, so that what a policy sees of a maze cannot be searched for among all mazes.
    mazes = {split: [rng.getrandbits(64) for _ in range(HIDDEN)] for split in ("val", "test")}
    (grader_dir / "mazes.json").write_text(json.dumps(mazes), encoding="utf-8")
    train = random.Random(rng.getrandbits(64)).sample(range(1_000_000), TRAIN)
    (agent_dir / "train.json").write_text(json.dumps(train), encoding="utf-8")
