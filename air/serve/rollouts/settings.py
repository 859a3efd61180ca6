"""The settings of `air serve rollouts`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from air.serve.settings import ListenConfig


class RolloutsConfig(ListenConfig):
    """Settings of `air serve rollouts`, a server that plays episodes with a client's model."""

    max_episodes: int = Field(32, ge=1)
    """The maximum number of episodes at the same time, over all requests. Further episodes wait in a
    queue."""
    max_rollouts: int = Field(4096, ge=1)
    """The maximum number of episodes in one request. A larger request is refused."""
    task_roots: tuple[Path, ...] = ()
    """Folders that are searched for tasks. If any is given, the tasks that ship with air are not searched."""
    mlgym_root: Path | None = None
    """The folder of an MLGym checkout, for tasks whose id begins with `mlgym:`."""
    provider: Literal["docker", "process"] = "docker"
    """The kind of box in which research tasks run: a container, or a plain process."""
