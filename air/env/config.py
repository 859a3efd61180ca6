"""The settings of the research environment, in which an agent works on a machine-learning task.

In a run file they are the keys under `[orchestrator.train.source.env]`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

import verifiers.v1 as vf
from pydantic import Field, field_validator, model_validator

from air import actions
from air.errors import ConfigError, UsageError
from air.rewards.terms import RewardSettings
from air.sandbox.contract.kinds import OF_RUNTIME
from air.tasks.spec import Provider, TaskSpec
from air.worlds.research.tools import ToolSettings


class AirTasksetConfig(vf.TasksetConfig):
    """Settings that choose the tasks of a run: the keys under `[….env.taskset]`."""

    id: str = "air"
    """The name of the verifiers plugin that supplies the tasks; `air` is this package."""
    tasks: list[str] = Field(default=["titanic"], min_length=1)
    """The ids of the run's tasks. The command `air tasks` lists the available ids."""
    task_roots: list[Path] = Field(default_factory=list)
    """Folders that are searched for tasks, in this order. If any is given, the tasks that come with air
    are not used."""
    mlgym_root: Path | None = None
    """The folder of an MLGym checkout, which is needed for tasks named `mlgym:…`. None: the folder is taken
    from the environment variable `AIR_MLGYM_ROOT`."""
    examples_per_task: int = Field(1, ge=1)
    """The number of prompts made from each task; each prompt has its own seed."""


class AirHarnessConfig(vf.HarnessConfig):
    """Settings of air's own harness, the loop that calls the model and runs its actions.

    In a run file they are the keys under `[….env.agent.harness]`.
    """

    id: str = "air"
    """The name of the verifiers plugin that supplies the harness; `air` is this package."""
    format: str = "fenced"
    """The action format, which defines how the model writes an action: `fenced`, `mlgym`, or your own class
    as `module:Class`."""

    @field_validator("format")
    @classmethod
    def _check_format(cls, value: str) -> str:
        try:
            actions.get(value)
        except UsageError as error:
            raise ValueError(str(error)) from None
        return value

    format_retries: int | None = Field(None, ge=0)
    """The number of consecutive replies with a format error after which the model may still try again. If the
    next reply also has a format error, the episode ends and is graded. None: the action format's own limit
    (`mlgym`: 2; `fenced`: no limit)."""
    window: int = Field(1000, ge=1)
    """The number of lines of an open file that the tools of the format `mlgym` show at once. If these lines
    have more than `max_observation_tokens` tokens, the middle of the text is still cut out."""
    overlap: int = Field(2, ge=0)
    """The number of lines that stay visible when the agent scrolls in a file. Only with the format
    `mlgym`."""
    memory: bool = False
    """Whether the agent has tools to keep notes during its episode. Only with the format `mlgym`."""
    history: int | None = Field(None, ge=1)
    """The number of latest observations that are sent to the model. Older observations are replaced by a
    short note. None: all are sent. Use it only for evaluation, because it changes earlier parts of the prompt
    from call to call, so that an episode is no longer one training sample."""
    max_observation_tokens: int = Field(1024, ge=16)
    """The most tokens of one observation. The middle of a longer observation is cut out; a mark in the text
    shows the cut, and the metric `cut_observations` counts it."""
    max_context_tokens: int | None = Field(None, ge=64)
    """The most tokens of one episode. Before this limit is exceeded, the episode ends and is graded. None:
    the limit of the model server applies."""
    tokenizer: str | None = None
    """The hub id or folder of the model's tokenizer, which counts the tokens of observations. None: three
    bytes count as one token."""

    @classmethod
    def own_fields(cls) -> set[str]:
        """Returns the names of the settings that this class adds to those of verifiers, except `format`.

        Trajectories record the named settings, because these decide what the model is shown. The settings of
        verifiers itself are not recorded, because they may contain secrets.
        """
        return set(cls.model_fields) - set(vf.HarnessConfig.model_fields) - {"format"}

    def tool_settings(self, hosts: tuple[str, ...]) -> ToolSettings:
        """Returns the settings of the agent's tools. The task's box may reach the network hosts `hosts`."""
        return ToolSettings(
            window=self.window, overlap=self.overlap, memory=self.memory, hosts=hosts
        )

    def check_history(self) -> None:
        """Checks, before a training, that these settings do not leave old observations out of the prompt.

        Raises:
            ConfigError: `history` is set.
        """
        if self.history is not None:
            raise ConfigError(
                "leaving out old observations rewrites the prompt, so an episode would not be one sample",
                where="env.agent.harness.history",
                remedy="set it only for evaluation with an endpoint",
            )

    @model_validator(mode="after")
    def _check_tools(self) -> Self:
        if self.overlap >= self.window:
            raise ValueError(f"overlap ({self.overlap}) must be less than window ({self.window})")
        if not actions.get(self.format).uses_tools:
            fields = type(self).model_fields
            for name in ("window", "overlap", "memory"):
                if getattr(self, name) != fields[name].default:
                    raise ValueError(
                        f'{name} has no effect with format {self.format!r}; use "mlgym"'
                    )
        return self


class ResearchEnvConfig(RewardSettings, vf.SingleAgentEnvConfig):
    """Settings of the research environment: the keys under `[….env]`.

    They include the keys of the reward, which the base class `RewardSettings` defines.
    """

    agent: vf.AgentConfig = vf.AgentConfig(runtime=vf.DockerConfig(), max_turns=10)
    """The settings of the agent. `runtime.type` is `docker` (boxes are containers), or `subprocess` (a box is
    a plain process, not a container)."""
    credit: Literal["episode", "segment"] = "episode"
    """How rewards are assigned to traces (a trace is one training sample). `episode`: each episode becomes
    one trace, whose reward is the sum of all reward terms. `segment`: each part of an episode up to a
    `validate` becomes one trace, whose reward is the reward that arose in that part (see
    `air.env.credit`)."""
    image: str | None = None
    """The container image of agents' boxes; grader boxes always use the task's image. Use `air-harness` for
    harnesses that run as a program in the box (`bash`, `mini_swe_agent`). None: each task's own image."""
    record_dir: Path | None = None
    """The folder in which trajectories (recorded episodes) are written, one file for each episode. None:
    trajectories are not written."""
    record_diffs: bool = True
    """Whether a trajectory contains the changes that each step made in the workspace."""
    record_traces: bool = True
    """Whether the verifiers traces, with tokens and logprobs, are written beside the trajectories."""
    record_artefacts_mb: float = Field(16.0, ge=0, allow_inf_nan=False)
    """The largest artefact (the agent's graded files), in MiB, that is stored beside the trajectories, so
    that it can be graded again later. 0: no artefact is stored."""
    record_artefacts_total_mb: float = Field(2048.0, ge=0, allow_inf_nan=False)
    """The largest total size, compressed and in MiB, of the artefacts stored in one `record_dir`."""
    max_boxes: int = Field(32, ge=1)
    """The most agents' boxes that run at once in this process."""
    warm_boxes: int = Field(0, ge=0)
    """The number of boxes of each kind that are started in advance, so that episodes need not wait."""
    gpus: Literal["auto"] | list[str] = Field(default_factory=list)
    """The GPUs that boxes may use: a list of indices as `nvidia-smi` counts (`["7"]`), UUIDs, or beginnings
    of UUIDs. `auto`: all GPUs of `CUDA_VISIBLE_DEVICES` except `trainer_gpus` and `inference_gpus`."""
    trainer_gpus: list[str] = Field(default_factory=list)
    """The GPUs of the trainer, named as in `gpus`. Boxes must not use them."""
    inference_gpus: list[str] = Field(default_factory=list)
    """The GPUs of the inference server, named as in `gpus`. Boxes must not use them."""

    @field_validator("gpus", mode="before")
    @classmethod
    def _names(cls, value: object) -> object:
        if value != "auto" and not (
            isinstance(value, list) and all(isinstance(name, str) for name in value)
        ):
            raise ValueError(f'must be "auto" or a list of names such as ["7"], not {value!r}')
        return value

    slots_per_gpu: int = Field(1, ge=1)
    """The number of boxes that may share one GPU; its memory is not divided among them. 1: no sharing."""
    max_failures: int = Field(100, ge=0)
    """The number of consecutive episodes, over all workers, that may fail because of the infrastructure (not
    the agent) before the run is stopped. Set it higher than the number of episodes that one outage ends at
    once. 0: the run is never stopped."""
    grader_boxes: int = Field(2, ge=1)
    """The most grader boxes that run at once in this process."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.agent.runtime.type not in OF_RUNTIME:
            raise ValueError(
                f"agent.runtime.type {self.agent.runtime.type!r} cannot hold a research box; "
                "use docker, or subprocess for the process box"
            )
        timeout = self.agent.timeout
        if (timeout.setup, timeout.finalize, timeout.scoring) != (None, None, None):
            raise ValueError(
                "agent.timeout.setup, .finalize and .scoring would end air's own work; "
                "set only agent.timeout.rollout"
            )
        if self.agent.retries != type(self.agent.retries)():
            raise ValueError(
                "agent.retries has no effect in a lent box; use env.retries, "
                "which plays the whole episode again in a new box"
            )
        return self

    @model_validator(mode="after")
    def _check_time(self) -> Self:
        if self.time_penalty and not isinstance(self.agent.harness, AirHarnessConfig | None):
            raise ValueError(
                "time_penalty needs the harness `air`: another program can continue to work during "
                "grading, and that time is not counted"
            )
        return self

    def episode_seconds(self, task: TaskSpec) -> float:
        """Returns the time limit of an episode of `task`, in seconds."""
        limit: float | None = self.agent.timeout.rollout
        return task.limits.episode_seconds if limit is None else limit

    @property
    def provider(self) -> Provider:
        """The kind of the agent's box, `docker` or `process`, which follows from `agent.runtime.type`."""
        return OF_RUNTIME[self.agent.runtime.type].provider


def check_history(env: vf.EnvConfig) -> None:
    """Checks, before a training, that an environment does not leave old observations out of the prompt.

    Raises:
        ConfigError: the harness's `history` is set.
    """
    harness = env.agent.harness if isinstance(env, ResearchEnvConfig) else None
    if isinstance(harness, AirHarnessConfig):
        harness.check_history()
