"""A folder like a checkout of prime-rl, with another program in the place of its launcher."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import air

EIGHT = ",".join(f"{index}=GPU-{index}" for index in range(8))
"""A machine with eight GPUs, as the value of AIR_GPU_INVENTORY."""


def checkout(folder: Path, launcher: str) -> dict[str, str]:
    """Makes the checkout, whose launcher is the Python program `launcher`. Returns the environment variables
    with which air uses it, on a machine with eight GPUs."""
    package = folder / "prime_rl" / "entrypoints"
    package.mkdir(parents=True)
    (package / "rl.py").write_text(launcher)
    python = folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    roots = os.pathsep.join([str(folder), str(Path(air.__file__).parents[1])])
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{roots}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return {"AIR_PRIME_RL": str(folder), "AIR_GPU_INVENTORY": EIGHT}
