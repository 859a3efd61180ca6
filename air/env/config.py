"""The environment's settings: the keys under `[orchestrator.train.source.env]`."""

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
    """The tasks to play: `[….env.taskset]`."""

    id: str = "air"
    """The plugin: this one."""
    tasks: list[str] = Field(default=["titanic"], min_length=1)
    """Task ids; `air tasks` lists them."""
    task_roots: list[Path] = Field(default_factory=list)
    """Folders that are searched for tasks, in this order, instead of the shipped tasks."""
    mlgym_root: Path | None = None
    """A checkout of MLGym, for tasks named `mlgym:…`. None: the one that `AIR_MLGYM_ROOT` names."""
    examples_per_task: int = Field(1, ge=1)
    """Prompts of each task in the pool; each has its own seed."""


class AirHarnessConfig(vf.HarnessConfig):
    """How the model plays: `[….env.agent.harness]`."""

    id: str = "air"
    """The plugin: this one."""
    format: str = "fenced"
    """The action format: `fenced`, `mlgym`, or a class of yours as `module:Class`."""

    @field_validator("format")
    @classmethod
    def _check_format(cls, value: str) -> str:
        try:
            actions.get(value)
        except UsageError as error:
            raise ValueError(str(error)) from None
        return value

    format_retries: int | None = Field(None, ge=0)
    """Consecutive format errors after which the model may try again; one more ends the episode, which is
    graded. None: the format's own number (`mlgym`: 2; `fenced`: no limit)."""
    window: int = Field(1000, ge=1)
    """Lines of a file in view at once; tools of `mlgym`. A view longer than `max_observation_tokens` still
    loses its middle."""
    overlap: int = Field(2, ge=0)
    """Lines that stay in view when the agent scrolls; tools of `mlgym`."""
    memory: bool = False
    """Whether the agent can keep notes for the length of its episode; tools of `mlgym`."""
    history: int | None = Field(None, ge=1)
    """The number of latest observations that are sent; older ones are left out. None: all. For evaluation
    only: it rewrites the prompt's beginning, so that an episode is no longer one sample."""
    max_observation_tokens: int = Field(1024, ge=16)
    """Longer observations lose their middle; the cut is marked and counted."""
    max_context_tokens: int | None = Field(None, ge=64)
    """The episode ends, and is graded, before its tokens exceed this. None: at the server's limit."""
    tokenizer: str | None = None
    """Hub id or folder of the policy's tokenizer, to count with. None: three bytes count as one token."""

    @classmethod
    def own_fields(cls) -> set[str]:
        """The names of the settings that decide what the model is shown, beside the format: those that
        verifiers' harnesses do not have. They are recorded; verifiers' own may hold secrets."""
        return set(cls.model_fields) - set(vf.HarnessConfig.model_fields) - {"format"}

    def tool_settings(self, hosts: tuple[str, ...]) -> ToolSettings:
        """The settings of the tools, for a task that opens these hosts."""
        return ToolSettings(
            window=self.window, overlap=self.overlap, memory=self.memory, hosts=hosts
        )

    def check_history(self) -> None:
        """Refuses `history`, for training.

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
    """The research environment: `[….env]`. `RewardSettings` has the keys that decide the reward."""

    agent: vf.AgentConfig = vf.AgentConfig(runtime=vf.DockerConfig(), max_turns=10)
    """The one agent. `runtime.type` is `docker`, or `subprocess` for the process box."""
    credit: Literal["episode", "segment"] = "episode"
    """`episode`: one trace for each episode; its reward is the sum of all terms. `segment`: one trace for
    each segment, which ends at a validate; its reward is what arose in the segment (`air.env.credit`)."""
    image: str | None = None
    """The image of agents' boxes; graders keep the task's image. `air-harness` is for programs that play in
    the box (`bash`, `mini_swe_agent`). None: each task's own image."""
    record_dir: Path | None = None
    """The folder of trajectories, one file for each episode. None: trajectories are not written."""
    record_diffs: bool = True
    """Whether trajectories hold each step's changes of the workspace."""
    record_traces: bool = True
    """Whether the verifiers traces, with tokens and logprobs, are written beside trajectories."""
    record_artefacts_mb: float = Field(16.0, ge=0, allow_inf_nan=False)
    """Largest artefact, in MiB, that is kept beside trajectories for later grading; 0: none is kept."""
    record_artefacts_total_mb: float = Field(2048.0, ge=0, allow_inf_nan=False)
    """Largest total size of the kept artefacts of one `record_dir`, compressed, in MiB."""
    max_boxes: int = Field(32, ge=1)
    """Most boxes of agents at once in this process."""
    warm_boxes: int = Field(0, ge=0)
    """Boxes of each kind that are started ahead, so that episodes need not wait."""
    gpus: Literal["auto"] | list[str] = Field(default_factory=list)
    """GPUs that boxes may use: indices as NVML counts (`["7"]`), UUIDs or their beginnings, or `auto`:
    all of `CUDA_VISIBLE_DEVICES` except the two lists below."""
    trainer_gpus: list[str] = Field(default_factory=list)
    """GPUs of the trainer, named in the same way; `gpus` must not name one of them."""
    inference_gpus: list[str] = Field(default_factory=list)
    """GPUs of the inference server, likewise."""

    @field_validator("gpus", mode="before")
    @classmethod
    def _names(cls, value: object) -> object:
        if value != "auto" and not (
            isinstance(value, list) and all(isinstance(name, str) for name in value)
        ):
            raise ValueError(f'must be "auto" or a list of names such as ["7"], not {value!r}')
        return value

    slots_per_gpu: int = Field(1, ge=1)
    """Boxes that may share a GPU; its memory is not divided among them. 1: no sharing."""
    max_failures: int = Field(100, ge=0)
    """Consecutive infrastructure failures, over all workers, after which the run stops. Set it higher than
    the number of episodes that one outage ends at once. 0: the run never stops."""
    grader_boxes: int = Field(2, ge=1)
    """Most grader boxes at once in this process."""

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
        """The longest episode of a task, in seconds."""
        limit: float | None = self.agent.timeout.rollout
        return task.limits.episode_seconds if limit is None else limit

    @property
    def provider(self) -> Provider:
        """The box provider that the agent's runtime type stands for."""
        return OF_RUNTIME[self.agent.runtime.type].provider


def check_history(env: vf.EnvConfig) -> None:
    """Refuses to train on an environment that leaves out old observations.

    Raises:
        ConfigError: the harness's `history` is set.
    """
    harness = env.agent.harness if isinstance(env, ResearchEnvConfig) else None
    if isinstance(harness, AirHarnessConfig):
        harness.check_history()
