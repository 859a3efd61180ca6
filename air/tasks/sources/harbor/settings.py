"""Defines `HarborSettings`: a run's settings for tasks in the format of Harbor (a framework that runs agents
on tasks in containers)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from air.config import BaseConfig

ROOT_VARIABLE = "AIR_HARBOR_ROOT"


class HarborSettings(BaseConfig):
    """A run's settings for tasks in Harbor's format, whose ids begin with `harbor:`. Harbor is a framework
    that runs agents on tasks in containers."""

    root: Path | None = None
    """The folder to which relative paths in the ids of Harbor tasks (`harbor:PATH`) refer. None: the folder
    that the environment variable `AIR_HARBOR_ROOT` names, or the current folder if it is not set."""
    verifier: Literal["separate", "shared"] = "separate"
    """Where a task's tests run. `separate`: in a fresh box (sandbox) in which no process of the agent has
    run. `shared`: in the agent's own box, after its processes were killed; this is for tasks whose tests need
    more of this box than the agent's files. With `shared`, an agent can forge rewards, because it can change
    the programs in its box."""
    reward_key: str = ""
    """The name of the reward that is used, if a task's tests write several rewards. Empty: the reward named
    `reward`, or the only reward. Grading fails if there is no such reward."""
    range: tuple[float, float] = (0.0, 1.0)
    """The lowest and the highest reward. Rewards outside this range are clipped to it. The lowest reward also
    goes to an agent whose work makes the tests fail, so that they write no reward."""
    network: Literal["task", "none"] = "task"
    """The network hosts that boxes (sandboxes) can reach. `task`: the hosts that the task declares, through
    air's proxy. `none`: no host, because boxes have no network."""
    host_env: tuple[str, ...] = ()
    """Names of environment variables of this machine that tasks may read as `${NAME}`."""
    artefact_mb: float = Field(64.0, gt=0)
    """The largest total size of an artefact's files (the agent's files to grade), in MiB."""

    @field_validator("root")
    @classmethod
    def _absolute(cls, root: Path | None) -> Path | None:
        return None if root is None else root.expanduser().absolute()

    @field_validator("range")
    @classmethod
    def _ascending(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not value[0] < value[1]:
            raise ValueError("must be [low, high] with low < high")
        return value

    @property
    def folder(self) -> Path:
        """The absolute path of the folder to which relative paths in the ids of Harbor tasks (`harbor:PATH`)
        refer: `root`, or its default if `root` is None."""
        return self.root or Path(os.environ.get(ROOT_VARIABLE) or ".").expanduser().absolute()

    def fixed(self) -> HarborSettings:
        """Returns a copy of these settings in which `root`, the folder to which relative paths in task ids
        refer, is an absolute path. So an id names the same task in every process, whatever its working
        directory is."""
        return self.model_copy(update={"root": self.folder})
