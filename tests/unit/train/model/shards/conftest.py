"""Checkpoints that real distributed processes have written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from air.train.model import policy
from tests import once

SCRIPT = Path(__file__).with_name("write_shards.py")


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each kind of checkpoint; not to be changed. No dimension of the model is a multiple of the
    world sizes, so shards are uneven, and some are empty."""

    def make(folder: Path) -> None:
        shape = {"hidden": 20, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 10}
        source = policy.build(folder / "base", ["some text"], vocab=280, max_length=64, **shape)
        # Not by the fork server: ranks that were forked from its children have ended without a word.
        done = subprocess.run(
            [sys.executable, SCRIPT, source, folder],
            env=os.environ | {"GLOO_SOCKET_IFNAME": "lo"},
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr

    return once.shared(tmp_path_factory, r"shards", make)
