"""The environment's settings: what stands under `[orchestrator.train.source.env]`."""

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
    """Which tasks are played: `[….env.taskset]`."""

    id: str = "air"
    """The plugin: this one."""
    tasks: list[str] = Field(default=["titanic"], min_length=1)
    """Task ids; `air tasks` lists them."""
    task_roots: list[Path] = Field(default_factory=list)
    """Folders in which to look for tasks, in this order, instead of among the shipped ones."""
    mlgym_root: Path | None = None
    """A checkout of MLGym, for tasks named `mlgym:…`. None: where `AIR_MLGYM_ROOT` says."""
    examples_per_task: int = Field(1, ge=1)
    """How many prompts of each task are in the pool; each has a seed of its own."""


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
    """How many format errors in a row are asked again; one more ends the episode, which is graded.
    None: as many as the format says (`mlgym`: 2; `fenced`: all)."""
    window: int = Field(1000, ge=1)
    """Lines of a file in view at once; tools of `mlgym`. What is longer than `max_observation_tokens`
    still loses its middle."""
    overlap: int = Field(2, ge=0)
    """Lines that stay in view when it is scrolled; tools of `mlgym`."""
    memory: bool = False
    """Whether the agent can keep notes for the length of its episode; tools of `mlgym`."""
    history: int | None = Field(None, ge=1)
    """Only so many of the latest observations are sent in full; older ones are left out. None: all. For
    evaluation only: it rewrites the prompt's beginning, so that an episode is no longer one sample."""
    max_observation_tokens: int = Field(1024, ge=16)
    """Longer observations lose their middle; the cut is marked and counted."""
    max_context_tokens: int | None = Field(None, ge=64)
    """The episode ends, and is graded, before its tokens exceed this. None: when the server says so."""
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
        """For training: refuses `history`.

        Raises:
            ConfigError: it is set.
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
    """`episode`: one trace an episode, its reward the sum of all terms. `segment`: one trace for each
    segment, which ends at a validate, rewarded by what arose in it (`air.env.credit`)."""
    image: str | None = None
    """The image of agents' boxes instead of the tasks' own, which graders keep: `air-harness` where a
    program in the box plays (`bash`, `mini_swe_agent`). None: each task's."""
    record_dir: Path | None = None
    """Where trajectories are written, one file an episode. None: nowhere."""
    record_diffs: bool = True
    """Whether trajectories hold what each step changed in the workspace."""
    record_traces: bool = True
    """Whether the verifiers traces, with tokens and logprobs, are written beside trajectories."""
    record_artefacts_mb: float = Field(16.0, ge=0, allow_inf_nan=False)
    """Largest artefact, in MiB, that is kept beside trajectories, to be graded again; 0 keeps none."""
    record_artefacts_total_mb: float = Field(2048.0, ge=0, allow_inf_nan=False)
    """Most that kept artefacts of one `record_dir` may have, compressed, in MiB."""
    max_boxes: int = Field(32, ge=1)
    """Boxes of agents alive at once in this process."""
    warm_boxes: int = Field(0, ge=0)
    """Boxes started ahead for each kind, so that an episode need not wait for one."""
    gpus: Literal["auto"] | list[str] = Field(default_factory=list)
    """GPUs that boxes may use: indices as NVML counts (`["7"]`), UUIDs or their beginnings, or `auto`:
    all that `CUDA_VISIBLE_DEVICES` leaves but the two below."""
    trainer_gpus: list[str] = Field(default_factory=list)
    """GPUs that the trainer has, named in the same way: boxes that name one of them are refused."""
    inference_gpus: list[str] = Field(default_factory=list)
    """The same of the inference server."""

    @field_validator("gpus", mode="before")
    @classmethod
    def _names(cls, value: object) -> object:
        if value != "auto" and not (
            isinstance(value, list) and all(isinstance(name, str) for name in value)
        ):
            raise ValueError(f'must be "auto" or a list of names such as ["7"], not {value!r}')
        return value

    slots_per_gpu: int = Field(1, ge=1)
    """Boxes that may share a GPU; its memory is not divided among them. 1: each has its own alone."""
    max_failures: int = Field(100, ge=0)
    """Failures of ours in a row, over all workers, after which the run stops; more than the episodes that
    one outage ends at once. 0: it never stops."""
    grader_boxes: int = Field(2, ge=1)
    """Grader boxes alive at once in this process."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.agent.runtime.type not in OF_RUNTIME:
            raise ValueError(
                f"agent.runtime.type {self.agent.runtime.type!r} cannot hold a research box; "
                "use docker, or subprocess for the process box"
            )
        given = self.agent.timeout
        if (given.setup, given.finalize, given.scoring) != (None, None, None):
            raise ValueError(
                "agent.timeout.setup, .finalize and .scoring would end our own work as if the agent "
                "had; only agent.timeout.rollout can be set"
            )
        if self.agent.retries != type(self.agent.retries)():
            raise ValueError(
                "agent.retries never applies to a lent box; use env.retries, "
                "which replays the whole episode in a new one"
            )
        return self

    @model_validator(mode="after")
    def _check_time(self) -> Self:
        if self.time_penalty and not isinstance(self.agent.harness, AirHarnessConfig | None):
            raise ValueError(
                "time_penalty needs the harness `air`: another program's agent can work on while it is "
                "graded, and that time is not counted"
            )
        return self

    def episode_seconds(self, task: TaskSpec) -> float:
        """The longest episode of a task, in seconds."""
        given = self.agent.timeout.rollout
        return task.limits.episode_seconds if given is None else given

    @property
    def provider(self) -> Provider:
        """The box provider that the agent's runtime type stands for."""
        return OF_RUNTIME[self.agent.runtime.type].provider


def check_history(env: vf.EnvConfig) -> None:
    """Refuses an environment that leaves out old observations, where it is to be trained on.

    Raises:
        ConfigError: it does.
    """
    harness = env.agent.harness if isinstance(env, ResearchEnvConfig) else None
    if isinstance(harness, AirHarnessConfig):
        harness.check_history()
