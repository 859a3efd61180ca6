"""A source of prompts, as the run files of both engines name it: a verifiers environment and its weight."""

from __future__ import annotations

from typing import Any

import verifiers.v1 as vf
from pydantic import BaseModel, Field, SerializeAsAny, model_validator


class EnvSource(BaseModel):
    """The keys of `[[orchestrator.train.source]]` that air reads with either engine."""

    name: str | None = None
    """Name in logs; None: the taskset's id."""
    ratio: float = Field(1.0, gt=0)
    """Weight among the sources."""
    group_size: int | None = Field(None, ge=1)
    """Episodes of one prompt; None: `orchestrator.group_size`."""
    env: SerializeAsAny[vf.EnvConfig] = vf.SingleAgentEnvConfig()
    """The verifiers environment, with air's own settings."""

    @model_validator(mode="before")
    @classmethod
    def _resolve_env(cls, data: Any) -> Any:
        return vf.resolve_env_field(data)

    @property
    def resolved_name(self) -> str:
        """The name in logs."""
        return self.name or self.env.env_id
