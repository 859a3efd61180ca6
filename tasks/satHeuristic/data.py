"""Draws the seeds of the validation and the test formulas; runs on the host, never in a box.

Nothing is given to the agent beyond its starter files: the formulas' generator is among them, and it
can draw as many as it likes, but not the ones that are graded.
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
