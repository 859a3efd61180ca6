"""The settings of `air serve evaluate`, a server whose model answers proposed questions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import starmap
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from air.env.config import AirHarnessConfig, ResearchEnvConfig
from air.errors import ConfigError
from air.rewards.proposals.agreement import Equality
from air.serve.http.settings import ListenConfig
from air.serve.tools.tool_names import calling, load_named
from air.tools import ToolSet
from air.train.coevolve.evaluate_service import MOST_ANSWERS, RequestDefaults
from air.train.config.embedded_config import ComputeConfig
from air.train.evaluation.settings import (
    Settings,
    find_checkpoint,
    read_evaluated_checkpoint,
    research_env,
)
from air.worlds.proposals.posed import PosedSettings, own_tools, read_settings, tool_set

TASK = "posed:later"
"""The id of a placeholder task. The environment in which the model answers needs a task when it starts, but
the questions come only later, with each request."""


class EvaluateConfig(ListenConfig):
    """Settings of `air serve evaluate`, a server whose model answers proposed questions several times, to
    find out how hard they are."""

    model: str = Field(min_length=1)
    """The model that answers: the folder of a training run (its last checkpoint is used), the folder of a
    checkpoint or of a model, a Hugging Face hub id, or the URL of an endpoint with OpenAI's chat completions
    API. Relative paths are relative to the current folder."""
    model_name: str = ""
    """The model's name at the endpoint. It must be set if `model` is a URL, and must not be set otherwise."""
    temperature: float | None = Field(None, ge=0, le=2)
    """The sampling temperature for requests that do not set their own. None: the temperature of the model's
    training run, or 1 for a model without a training run."""
    max_tokens: int | None = Field(None, ge=1)
    """The maximum number of tokens of one reply, for requests that do not set their own. None: the value of
    the model's training run, or 1024 for a model without a training run."""
    context: int | None = Field(None, ge=1)
    """The maximum number of tokens in one conversation about a question (prompt, replies and results of tools
    together). None: the value of the model's training run, or 8192 for a model without a training run."""
    tools: tuple[str, ...] | None = None
    """The tools with which the model answers: each is the name of a tool that ships with air, a function
    (`FILE.py:NAME` or `MODULE:NAME`), or a TOML file. An empty tuple: no tools. None: the tools that the
    model had in training, from the files of the tasks `posed:FILE` (proposed questions) of its training run;
    no tools if the run has no such tasks."""
    format: str = ""
    """The name of the action format (the syntax in which the model writes tool calls and answers). Empty: the
    format of the model's training run. If the run sets none and `tools` is None, the format that the run's
    tasks `posed:FILE` (files of proposed questions) set is used. If there is none either, the format is
    `tool_calls` if the model has tools; otherwise the whole reply is the answer."""
    provider: Literal["docker", "process"] | None = None
    """The kind of box for tools that need one: `docker` (a container) or `process` (a plain process). None:
    the kind of the model's training run, or `docker` for a model without a training run."""
    equality: Equality = "math"
    """The rule by which two answers to a question count as equal. The results `majority` (the most frequent
    answer) and `p_hat` (how far the answers agree, from 0 to 1) depend on it. `math`: a checker of
    mathematical answers decides. `forms`: only canonical forms are compared; `0.5` equals `1/2`, but `2x`
    does not equal `x*2`."""
    seed: int = Field(0, ge=0)
    """The random seed of all replies. Equal questions with equal settings get equal replies, apart from
    rounding differences."""
    k: int = Field(10, ge=1, le=MOST_ANSWERS)
    """The number of answers to each question, for requests that do not set their own."""
    top_p: float | None = Field(None, gt=0, le=1)
    """The sampling setting `top_p`, for requests that do not set their own: each token is sampled from the
    most probable ones whose probabilities add up to it. None: the default of the model's server."""
    files: Path | None = None
    """The folder with files of questions, which Agent0's curriculum training writes and names in requests
    `GET /hello?name=FILE`. The server writes the results there and removes these files, so name a folder with
    nothing else in it. None: the server does not have this path."""
    max_requests: int = Field(4, ge=1)
    """The maximum number of requests that run at the same time. Further requests wait in a queue."""
    max_queued: int = Field(256, ge=0)
    """The maximum number of requests in the queue. Further requests are refused with the status 503."""

    @property
    def defaults(self) -> RequestDefaults:
        """The settings of requests that do not set their own."""
        sampling = {} if self.top_p is None else {"top_p": self.top_p}
        return RequestDefaults(self.k, sampling)

    @property
    def is_endpoint(self) -> bool:
        """Whether another server runs the model, which is so if `model` is a URL."""
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

    def model_and_settings(self) -> tuple[str, Settings]:
        """Returns the model (its folder, hub id or URL), and the settings with which it answers. For a model
        from a training run, these are the run's settings, changed by this server's settings. Raises
        ConfigError if the run's configuration is invalid, and MissingError if the run has no checkpoint."""
        model, settings = self._base_model_and_settings()
        return model, replace(
            settings, envs=[self._with_own_settings(env) for env in settings.envs]
        )

    def tool_set(self, settings: Settings) -> ToolSet:
        """Loads the tools for a model that answers with `settings`. Raises UsageError if a tool does not
        exist or cannot be used, if the action format cannot express tool calls or is one for shell scripts,
        or if the tasks on which the model was trained do not all have the same tools."""
        if self.tools is None:
            tools = self._tools_of(settings.envs[0])
        else:
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

    def _tools_of(self, env: ResearchEnvConfig) -> ToolSet:
        """Loads the tools of the tasks `posed:FILE` (files of proposed questions) on which the model was
        trained. `env` has the settings of these tasks. Returns an empty set if there are no such tasks.
        Raises ConfigError if the tasks do not all have the same tools."""
        sets = {tools.digest: tools for tools in starmap(own_tools, _posed(env))}
        if len(sets) > 1:
            raise ConfigError(
                "the tasks of this run have different tools",
                where=self.model,
                remedy="name those with which the model answers: --tools TOOL …",
            )
        return next(iter(sets.values()), ToolSet(()))

    def _replacement_format(self, env: ResearchEnvConfig) -> str:
        """Returns the name of the action format (the syntax of tool calls and answers) that must replace the
        one in `env`, the settings of the model's training; an empty string if that one stays. The new format
        is the one in this server's settings. If these set neither a format nor tools, and `env` sets no
        format, it is the format in the run's task files `posed:FILE`."""
        if self.format or self.tools is not None:
            return self.format
        harness = env.agent.harness or AirHarnessConfig()
        if isinstance(harness, AirHarnessConfig) and harness.format is None:
            return next((settings.format for _, settings in _posed(env) if settings.format), "")
        return ""

    def _with_own_settings(self, env: ResearchEnvConfig) -> ResearchEnvConfig:
        """Returns a copy of `env`, the settings of the model's training, with this server's action format and
        kind of box. Raises ConfigError if an action format is set, but `env` does not use air's own harness
        (the loop that lets a model play an episode), which alone has formats."""
        agent, name = env.agent, self._replacement_format(env)
        if name:
            harness = agent.harness or AirHarnessConfig()
            if not isinstance(harness, AirHarnessConfig):
                raise ConfigError(
                    "goes with air's own harness, which the model's run does not use",
                    where="--format",
                    remedy="leave it out",
                )
            agent = agent.model_copy(
                update={"harness": harness.model_copy(update={"format": name})}
            )
        if self.provider is not None:
            kind = "docker" if self.provider == "docker" else "subprocess"
            other = research_env([TASK], runtime=kind, max_turns=1)
            agent = agent.model_copy(update={"runtime": other.agent.runtime})
        return env.model_copy(update={"agent": agent})

    def _base_model_and_settings(self) -> tuple[str, Settings]:
        given = {"temperature": self.temperature, "max_tokens": self.max_tokens}
        given |= {"context": self.context}
        given = {key: value for key, value in given.items() if value is not None}
        found = None if self.is_endpoint else find_checkpoint(self.model)
        if found is not None:
            run, checkpoint = found
            return str(checkpoint), read_evaluated_checkpoint(
                run, checkpoint, {}, given, {}
            ).settings
        usual: dict[str, Any] = {"temperature": 1.0, "max_tokens": 1024, "context": 8192}
        env = research_env([TASK], runtime="docker", max_turns=1)
        model = str(Path(self.model).expanduser()) if self.model.startswith("~") else self.model
        return model, Settings([env], compute=ComputeConfig(), **{**usual, **given})


def _posed(env: ResearchEnvConfig) -> Sequence[tuple[str, PosedSettings]]:
    """Returns a pair (FILE, settings in FILE) for each task `posed:FILE` in `env` whose FILE has settings for
    proposed questions. Tasks whose FILE contains the questions themselves are left out."""
    taskset: Any = env.taskset
    kind = TASK.partition(":")[0] + ":"
    names = (task.removeprefix(kind) for task in taskset.worlds if task.startswith(kind))
    read = ((name, read_settings(name)) for name in names)
    return [(name, settings) for name, settings in read if settings is not None]
