"""Splits a text into passages for training, validation and the test; runs on the host, never in a box.

Reads `input.txt` from the folder `AIR_DOWNLOADS`. Writes for the agent `train.txt`, and for the grader
`val.json` and `test.json`, each a list of passages (their bytes as Latin-1 text).
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

PASSAGE = 1000
HIDDEN = 16


def prepare(agent_dir: Path, grader_dir: Path, split_seed: int) -> None:
    """Writes both folders' files; the same seed gives the same bytes. What lies between hidden passages is
    for training; a passage is `PASSAGE` bytes."""
    text = (Path(os.environ["AIR_DOWNLOADS"]) / "input.txt").read_bytes()
    passages = [text[at : at + PASSAGE] for at in range(0, len(text) - PASSAGE + 1, PASSAGE)]
    if len(passages) < 4 * HIDDEN:
        raise ValueError(f"the text has {len(text)} bytes, too few")
    order = list(range(len(passages)))
    random.Random(split_seed).shuffle(order)
    splits = {"val": order[:HIDDEN], "test": order[HIDDEN : 2 * HIDDEN]}
    for split, chosen in splits.items():
        shown = [passages[number].decode("latin-1") for number in chosen]
        (grader_dir / f"{split}.json").write_text(json.dumps(shown), encoding="utf-8")
    train = [passages[number] for number in sorted(order[2 * HIDDEN :])]
    (agent_dir / "train.txt").write_bytes(b"".join(train))
