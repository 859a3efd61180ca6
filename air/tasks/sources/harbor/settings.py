"""Defines `HarborSettings`: a run's settings for the Harbor tasks that it plays."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from air.config import BaseConfig

ROOT_VARIABLE = "AIR_HARBOR_ROOT"


class HarborSettings(BaseConfig):
    """Settings for tasks whose id begins with `harbor:`."""

    root: Path | None = None
    """The folder at which relative paths in ids begin. None: `$AIR_HARBOR_ROOT`, or the current folder."""
    verifier: Literal["separate", "shared"] = "separate"
    """Where a task's tests run. `separate`: in a fresh box in which no process of the agent has run.
    `shared`: in the agent's own box after its processes were killed, for tasks that need more of this box
    than its files. An agent can have changed the programs there, so rewards of `shared` can be forged."""
    reward_key: str = ""
    """The name of the reward that counts, among the rewards that the tests write. Empty: the reward named
    `reward`, or the only reward. Grading fails if there is no such reward."""
    range: tuple[float, float] = (0.0, 1.0)
    """The lowest and the highest reward. Rewards beyond them are clipped. The lowest is also the reward of an
    agent whose work makes the tests write no reward."""
    network: Literal["task", "none"] = "task"
    """The hosts that boxes can reach. `task`: the hosts that the task declares, through air's proxy. `none`:
    no host, because boxes have no network."""
    host_env: tuple[str, ...] = ()
    """Names of environment variables of this machine that tasks may read as `${NAME}`."""
    artefact_mb: float = Field(64.0, gt=0)
    """The largest total size of an artefact's files, in MiB."""

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
        """The folder at which relative paths in ids begin, with the default applied."""
        return self.root or Path(os.environ.get(ROOT_VARIABLE) or ".").expanduser().absolute()

    def fixed(self) -> HarborSettings:
        """Returns a copy of these settings with an absolute `root`, so that ids mean the same in every
        process."""
        return self.model_copy(update={"root": self.folder})
