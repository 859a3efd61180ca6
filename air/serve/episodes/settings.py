"""The settings of `air serve openenv` and `air serve ors`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import Field

from air.serve.settings import ListenConfig


class EpisodesConfig(ListenConfig):
    """Settings of a server of episodes: which tasks it offers, and how many clients play at once."""

    tasks: tuple[str, ...] = Field(min_length=1)
    """The ids of the tasks that clients may play, as a run file names them."""
    task_roots: tuple[Path, ...] = ()
    """Folders that are searched for tasks. If any is given, air's own tasks are not used."""
    mlgym_root: Path | None = None
    """The folder of an MLGym checkout, for tasks whose id begins with `mlgym:`."""
    provider: Literal["docker", "process"] = "docker"
    """The kind of box in which research tasks are played."""
    max_sessions: int = Field(default_factory=lambda: 2 * (os.cpu_count() or 1), ge=1)
    """The largest number of episodes at once; further clients are refused. Each episode of a research task
    has a box of its own."""
    grader_boxes: int = Field(2, ge=1)
    """The largest number of graders' boxes at once, for research tasks."""
    max_turns: int | None = Field(None, ge=1)
    """The number of actions of an episode. None: the task's own number, or 50 for a research task."""
    seconds: float | None = Field(None, gt=0, allow_inf_nan=False)
    """The time limit of an episode in seconds. None: the task's own limit."""
    idle_seconds: float = Field(900.0, gt=0, allow_inf_nan=False)
    """Seconds without a message after which the server ends a client's episode and frees its box."""
    seeds: int = Field(100, ge=1)
    """The number of episodes that each task has in a split's list. Each has its own seed."""
    gpus: tuple[str, ...] = ()
    """The GPUs that boxes may use, as in a run file."""
