"""The settings of a source of prompts: a set of tasks, and the environment in which the tasks are played.
Both training engines (embedded and prime-rl) read them."""

from __future__ import annotations

from typing import Any

import verifiers.v1 as vf
from pydantic import BaseModel, Field, SerializeAsAny, model_validator


class EnvSource(BaseModel):
    """Settings of one source of prompts (tasks and their environment): a table
    `[[orchestrator.train.source]]` of a run file (TOML)."""

    name: str | None = None
    """The name of this source of prompts in logs. None: the id of its taskset, the plugin of `verifiers` that
    provides its tasks."""
    ratio: float = Field(1.0, gt=0)
    """Weight of this source of prompts. On average, twice the weight gives twice as many prompts."""
    group_size: int | None = Field(None, ge=1)
    """Number of episodes for each prompt. None: `orchestrator.group_size`."""
    env: SerializeAsAny[vf.EnvConfig] = vf.SingleAgentEnvConfig()
    """Settings of the environment (of the package `verifiers`) that runs the episodes of each prompt."""

    @model_validator(mode="before")
    @classmethod
    def _resolve_env(cls, data: Any) -> Any:
        return vf.resolve_env_field(data)

    @property
    def resolved_name(self) -> str:
        """The name of this source of prompts in logs: `name`, or the id of its taskset if `name` is None."""
        return self.name or self.env.env_id
