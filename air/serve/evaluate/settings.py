"""The settings of `air serve evaluate`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from air.env.config import AirHarnessConfig, ResearchEnvConfig
from air.errors import ConfigError
from air.serve.settings import ListenConfig
from air.serve.tool_names import calling, load_named
from air.tools import ToolSet
from air.train.config.run_config import ComputeConfig
from air.train.evaluation.play import research_env
from air.train.evaluation.settings import Settings, of_run, run_of
from air.worlds.proposals.posed import tool_set

TASK = "posed:later"
"""The id of a placeholder task for proposed questions. Each request brings a task of its own."""


class EvaluateConfig(ListenConfig):
    """Settings of a server whose model answers questions."""

    model: str = Field(min_length=1)
    """The folder of a run of `rl`, a checkpoint, the folder of a model, a hub id, or an endpoint's URL."""
    model_name: str = ""
    """The name of the model at an endpoint."""
    temperature: float | None = Field(None, ge=0, le=2)
    """The sampling temperature if a request names none. None: that of the model's run, or 1."""
    max_tokens: int | None = Field(None, ge=1)
    """The longest reply in tokens if a request names no limit. None: that of the model's run, or 1024."""
    context: int | None = Field(None, ge=1)
    """The longest episode in tokens. None: that of the model's run, or 8192."""
    tools: tuple[str, ...] = ()
    """The tools with which questions are answered: names, functions as `FILE.py:NAME` or `MODULE:NAME`, or
    TOML files with the key `tools`."""
    format: str = ""
    """The action format. Empty: that of the model's run; else `tool_calls` with tools, and without tools
    the whole reply is the answer."""
    provider: Literal["docker", "process"] | None = None
    """The kind of box of tools that need one. None: that of the model's run, or `docker`."""
    seed: int = Field(0, ge=0)
    """The seed of all answers: equal questions and settings get equal answers, apart from rounding."""
    max_requests: int = Field(4, ge=1)
    """The largest number of requests at once. Further requests queue."""
    max_queued: int = Field(256, ge=0)
    """The largest number of requests that wait for their turn. Further requests are refused with status
    503."""

    @property
    def is_endpoint(self) -> bool:
        """Whether the model is served elsewhere."""
        return self.model.startswith(("http://", "https://"))

    @model_validator(mode="after")
    def _named(self) -> Self:
        if self.is_endpoint and not self.model_name:
            raise ValueError("`model_name`: give the model's name at the endpoint (--model-name)")
        if self.model_name and not self.is_endpoint:
            raise ValueError(
                "`model_name`: only an endpoint has a name for its model; leave it out"
            )
        return self

    def played(self) -> tuple[str, Settings]:
        """Returns the folder or id of the model, and the settings with which it answers. They are those of
        its run if the model is a run's checkpoint. Raises ConfigError and MissingError."""
        model, settings = self._played()
        return model, replace(settings, envs=[self._changed(env) for env in settings.envs])

    def tool_set(self, settings: Settings) -> ToolSet:
        """Loads the tools for a model that answers with `settings`. Raises UsageError if one does not exist
        or cannot be used, or if the action format cannot call them."""
        tools = tool_set(load_named(self.tools), "--tools")
        harness = settings.envs[0].agent.harness
        name = harness.format if isinstance(harness, AirHarnessConfig) else None
        if name and calling(name, tools).scripts:
            raise ConfigError(
                f"the action format {name!r} writes shell scripts, which a question cannot run",
                where="--format",
                remedy="give another, such as tool_calls",
            )
        return tools

    def _changed(self, env: ResearchEnvConfig) -> ResearchEnvConfig:
        """Returns the settings of episodes with this server's format and kind of box."""
        agent = env.agent
        if self.format:
            harness = agent.harness or AirHarnessConfig()
            if not isinstance(harness, AirHarnessConfig):
                raise ConfigError(
                    "goes with air's own harness, which the model's run does not use",
                    where="--format",
                    remedy="leave it out",
                )
            agent = agent.model_copy(
                update={"harness": harness.model_copy(update={"format": self.format})}
            )
        if self.provider is not None:
            kind = "docker" if self.provider == "docker" else "subprocess"
            other = research_env([TASK], runtime=kind, max_turns=1)
            agent = agent.model_copy(update={"runtime": other.agent.runtime})
        return env.model_copy(update={"agent": agent})

    def _played(self) -> tuple[str, Settings]:
        given = {"temperature": self.temperature, "max_tokens": self.max_tokens}
        given |= {"context": self.context}
        given = {key: value for key, value in given.items() if value is not None}
        found = None if self.is_endpoint else run_of(self.model)
        if found is not None:
            run, checkpoint = found
            return str(checkpoint), of_run(run, checkpoint, {}, given, {}).settings
        usual: dict[str, Any] = {"temperature": 1.0, "max_tokens": 1024, "context": 8192}
        env = research_env([TASK], runtime="docker", max_turns=1)
        model = str(Path(self.model).expanduser()) if self.model.startswith("~") else self.model
        return model, Settings([env], compute=ComputeConfig(), **{**usual, **given})
