"""The settings of `air serve rollouts`, a server that plays episodes of air's tasks with a client's model."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from air.serve.http.settings import ListenConfig


class RolloutsConfig(ListenConfig):
    """Settings of `air serve rollouts`, a server that plays episodes of air's tasks with a model that the
    client's request names."""

    max_episodes: int = Field(32, ge=1)
    """The maximum number of episodes that run at the same time, for all requests together. Further episodes
    wait in a queue."""
    max_rollouts: int = Field(4096, ge=1)
    """The maximum number of episodes in one request, which asks for `n` episodes for each of its `ids`. A
    larger request is refused."""
    task_roots: tuple[Path, ...] = ()
    """Folders with tasks: the task `NAME` is the subfolder `NAME` of one of them. If any folder is given, the
    tasks that ship with air are not available."""
    mlgym_root: Path | None = None
    """The folder of a checkout of the project MLGym, for tasks whose id begins with `mlgym:`. None: the
    folder in the environment variable `AIR_MLGYM_ROOT`."""
    provider: Literal["docker", "process"] = "docker"
    """The kind of box in which the agent works in a research task: `docker` (a container) or `process` (a
    plain process, which is not isolated)."""
