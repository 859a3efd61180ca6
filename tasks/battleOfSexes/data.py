"""Draws the seeds of the validation and the test league; runs on the host, never in a box.

Nothing is given to the agent beyond its starter files: it learns of its opponents by validating, or
from the three practice opponents of `starter/practice.py`.
"""

from __future__ import annotations

import json
import random
from pathlib import Path


def prepare(agent_dir: Path, grader_dir: Path, split_seed: int) -> None:
    """Writes the grader's `seeds.json`; the same seed gives the same bytes."""
    rng = random.Random(split_seed)
    seeds = {split: rng.getrandbits(48) for split in ("val", "test")}
    (grader_dir / "seeds.json").write_text(json.dumps(seeds), encoding="utf-8")
