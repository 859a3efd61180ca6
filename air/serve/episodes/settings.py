"""The settings of `air serve openenv` and `air serve ors`, the servers whose clients play air's tasks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import Field

from air.serve.http.settings import ListenConfig


class EpisodesConfig(ListenConfig):
    """Settings of an episode server (`air serve openenv` or `air serve ors`): which tasks it offers, and how
    many clients may play at the same time. In an episode, a client of the server plays a task."""

    tasks: tuple[str, ...] = Field(min_length=1)
    """The ids of the offered tasks, as in the files that configure trainings (run files), such as `titanic`
    or `game:sokoban6`."""
    task_roots: tuple[Path, ...] = ()
    """Folders with tasks: the task `NAME` is the subfolder `NAME` of one of them. If any folder is given, the
    tasks that ship with air are not available."""
    mlgym_root: Path | None = None
    """The folder of a checkout of the project MLGym, for tasks whose id begins with `mlgym:`. None: the
    folder in the environment variable `AIR_MLGYM_ROOT`."""
    provider: Literal["docker", "process"] = "docker"
    """The kind of box in which the agent works in a research task: `docker` (a container) or `process` (a
    plain process, which is not isolated)."""
    max_sessions: int = Field(default_factory=lambda: 2 * (os.cpu_count() or 1), ge=1)
    """The maximum number of clients that play at the same time. With OpenEnv, each connection counts, even
    before its first episode. Further clients are refused. Each episode of a research task has its own box (a
    container or process)."""
    grader_boxes: int = Field(2, ge=1)
    """The maximum number of boxes (containers or processes) in which results of research tasks are graded at
    the same time."""
    max_turns: int | None = Field(None, ge=1)
    """The maximum number of actions in an episode. None: the task's own maximum number of turns; for a
    research task, 50."""
    seconds: float | None = Field(None, gt=0, allow_inf_nan=False)
    """The time limit of an episode in seconds. None: the task's own limit."""
    idle_seconds: float = Field(900.0, gt=0, allow_inf_nan=False)
    """If a client sends no message for this number of seconds, the server ends the client's episode and frees
    its box."""
    seeds: int = Field(100, ge=1)
    """The number of episodes of each task in each split (`train` and `validation`). Each of them has its own
    random seed. Clients can request the list of a split's episodes."""
    gpus: tuple[str, ...] = ()
    """The GPUs that boxes (containers) may use: indices from `nvidia-smi`, such as `7`, UUIDs, or prefixes of
    UUIDs. Empty: none."""
