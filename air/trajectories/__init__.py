"""Writes and reads trajectories. A trajectory is the record of one episode (one attempt of an agent at a
task), in a file of JSON lines.

`load(path)` reads a whole trajectory as typed objects; `read(path)` yields its lines as dictionaries.
"""

from __future__ import annotations

from air.trajectories.reader import load, read, trajectory_files
from air.trajectories.recorder import Recorder
from air.trajectories.schema import (
    VERSION,
    Call,
    Diff,
    End,
    FileChange,
    Start,
    Step,
    TokenRef,
    ToolUse,
    Trajectory,
    Validation,
    parse,
)

__all__ = [
    "VERSION",
    "Call",
    "Diff",
    "End",
    "FileChange",
    "Recorder",
    "Start",
    "Step",
    "TokenRef",
    "ToolUse",
    "Trajectory",
    "Validation",
    "load",
    "parse",
    "read",
    "trajectory_files",
]
