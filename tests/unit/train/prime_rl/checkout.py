"""A folder like a checkout of prime-rl, with another program in the place of its launcher."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import air
from tests.fork_server import of_this_run

EIGHT = ",".join(f"{index}=GPU-{index}" for index in range(8))
"""A machine with eight GPUs, as the value of AIR_GPU_INVENTORY."""


def checkout(folder: Path, launcher: str, *, forked: bool = False) -> dict[str, str]:
    """Makes the checkout, whose launcher is the Python program `launcher`. Returns the environment variables
    with which air uses it, on a machine with eight GPUs.

    If `forked`, its Python is a command of the fork server, which need not import torch anew. With HANGS in
    its environment, it still is a process of its own: the fork server's commands are not the children of
    those who ask for them, so what becomes of them by signals would be another matter.
    """
    package = folder / "prime_rl" / "entrypoints"
    package.mkdir(parents=True)
    (package / "rl.py").write_text(launcher)
    python = folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    roots = os.pathsep.join([str(folder), str(Path(air.__file__).parents[1])])
    own = shlex.quote(sys.executable)
    program = shlex.join(of_this_run().program("python")) if forked else own
    python.write_text(
        f'#!/bin/sh\nexport PYTHONPATH="{roots}"\n[ -z "$HANGS" ] || exec {own} "$@"\nexec {program} "$@"\n'
    )
    python.chmod(0o755)
    return {"AIR_PRIME_RL": str(folder), "AIR_GPU_INVENTORY": EIGHT}
