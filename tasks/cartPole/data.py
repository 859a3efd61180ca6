"""Draws the seeds of the hidden carts; runs on the host, never in a box.

Writes the grader's `carts.json`, `{"val": [seed, …], "test": [seed, …]}`. Nothing is given to the agent
beyond its starter files: the rules are its simulator.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

HIDDEN = 40


def prepare(agent_dir: Path, grader_dir: Path, split_seed: int) -> None:
    """Writes the grader's file; the same seed gives the same bytes."""
    rng = random.Random(split_seed)
    carts = {split: [rng.getrandbits(64) for _ in range(HIDDEN)] for split in ("val", "test")}
    (grader_dir / "carts.json").write_text(json.dumps(carts), encoding="utf-8")
