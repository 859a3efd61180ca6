"""The settings of `air serve rollouts`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from air.serve.settings import ListenConfig


class RolloutsConfig(ListenConfig):
    """Settings of a server that plays episodes on request."""

    max_episodes: int = Field(32, ge=1)
    """The largest number of episodes at once, over all requests. Further episodes queue."""
    max_rollouts: int = Field(4096, ge=1)
    """The largest number of episodes of one request. A request for more is refused."""
    task_roots: tuple[Path, ...] = ()
    """Folders that are searched for tasks. If any is given, air's own tasks are not used."""
    mlgym_root: Path | None = None
    """The folder of an MLGym checkout, for tasks whose id begins with `mlgym:`."""
    provider: Literal["docker", "process"] = "docker"
    """The kind of box in which research tasks are played."""
