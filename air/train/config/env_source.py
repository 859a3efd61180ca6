"""The settings of a source of prompts, `[[orchestrator.train.source]]`, for both training engines."""

from __future__ import annotations

from typing import Any

import verifiers.v1 as vf
from pydantic import BaseModel, Field, SerializeAsAny, model_validator


class EnvSource(BaseModel):
    """Settings of one source of prompts: the keys of `[[orchestrator.train.source]]` that air reads with
    either training engine."""

    name: str | None = None
    """The name of this source of prompts in logs. None: the id of its taskset."""
    ratio: float = Field(1.0, gt=0)
    """Weight of this source: prompts are drawn from the sources in proportion to their weights."""
    group_size: int | None = Field(None, ge=1)
    """Number of episodes for each prompt. None: `orchestrator.group_size`."""
    env: SerializeAsAny[vf.EnvConfig] = vf.SingleAgentEnvConfig()
    """The verifiers environment that runs an episode for each prompt, with air's own settings."""

    @model_validator(mode="before")
    @classmethod
    def _resolve_env(cls, data: Any) -> Any:
        return vf.resolve_env_field(data)

    @property
    def resolved_name(self) -> str:
        """The name of this source of prompts in logs: `name`, or the id of its taskset."""
        return self.name or self.env.env_id
