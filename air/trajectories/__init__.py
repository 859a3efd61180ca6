"""Trajectories: the record of an episode, one JSON object a line.

`load(path)` reads one as types; `read(path)` gives its lines as they are.
"""

from __future__ import annotations

from air.trajectories.record import VERSION, Recorder, read
from air.trajectories.trajectory import (
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
    load,
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
]
