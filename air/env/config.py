"""The settings of the research environment, in which an agent works on machine-learning tasks: the keys under
`[orchestrator.train.source.env]` in a run file (TOML)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal, Self

import verifiers.v1 as vf
from pydantic import Field, field_validator, model_validator

from air import actions, tasks
from air.errors import ConfigError, UsageError
from air.rewards.terms import RewardSettings
from air.sandbox.contract.kinds import OF_RUNTIME
from air.tasks.sources.harbor.settings import HarborSettings
from air.tasks.spec import Provider, TaskSpec
from air.worlds.research.tools import ToolSettings
from air.worlds.sources import VALIDATION_SEED, is_world

RESEARCH_FORMAT = "fenced"
"""The action format (the syntax in which the model writes actions) of research tasks, if the settings name no
other."""
DEFAULT_TURNS = 10
"""The maximum number of turns (model calls) in an episode of a research task, if the settings set no
other."""
DEFAULT_VALIDATES = 32
"""The maximum number of validates (gradings that the agent requests) in an episode, if the settings limit
neither validates nor turns."""


class AirTasksetConfig(vf.TasksetConfig):
    """Settings that choose the tasks of a run: the keys under `[….env.taskset]` in a run file (TOML)."""

    id: str = "air"
    """The name of the `verifiers` plugin that provides the tasks; `air` is this package."""
    tasks: list[str] = Field(default=["titanic"], min_length=1)
    """The ids of the run's tasks. The command `air tasks` lists the available ids. Research tasks (such as
    `titanic`) and tasks in other worlds, such as games (`game:sokoban6`), may be mixed."""
    weights: dict[str, float] = Field(default_factory=dict)
    """Weights of tasks, by task id: `{ "titanic" = 3 }`. A weight is a positive number; a task that is not
    named here has weight 1. A task with weight 3 gets three times as many prompts as a task with weight 1. If
    an id names a set of Harbor tasks, its weight applies to each task of the set. To mix lists of tasks with
    different settings, define two sources in the run file, each with the setting `ratio` (its share of the
    prompts)."""
    task_roots: list[Path] = Field(default_factory=list)
    """Folders of tasks: each direct subfolder with a file `task.toml` is a task, and its name is the task's
    id. If two folders have the same id, the first folder counts. Empty: the folder of tasks that ships with
    air. Relative paths are relative to the working directory."""
    mlgym_root: Path | None = None
    """The folder of an MLGym checkout, for tasks whose id begins with `mlgym:`. None: the folder that the
    environment variable `AIR_MLGYM_ROOT` names."""
    harbor: HarborSettings = HarborSettings()
    """Settings for tasks whose id begins with `harbor:` (see `docs/harbor.md`). Such an id names the folder
    of one task, or the folder or data set of several tasks."""
    examples_per_task: int = Field(1, ge=1)
    """The number of prompts that are made from each task; each prompt has its own seed. With `weights`, it is
    the mean over the tasks."""
    first_seed: int = Field(0, ge=0)
    """The seed of each task's first prompt; the next prompts have the next seeds. To evaluate on other seeds
    than those of training, choose a number above all seeds of the training. For worlds other than research
    tasks, use `purpose` instead."""
    purpose: Literal["training", "evaluation"] = "training"
    """The purpose of the episodes. In worlds other than research tasks, the seeds of an `evaluation` begin at
    1000123 + `first_seed`, which is above all seeds of `training`, so that no model is evaluated on seeds on
    which it was trained. air's own training engine (`embedded`) sets `purpose` in evaluations. With the
    engine prime-rl, set it in each `[[orchestrator.eval.source]]`."""

    @field_validator("tasks", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        """Splits a text such as `titanic,digits`, the value of a command-line flag, into a list of task ids.
        Returns any other value unchanged."""
        return [name.strip() for name in value.split(",")] if isinstance(value, str) else value

    @field_validator("task_roots", "mlgym_root")
    @classmethod
    def _absolute(cls, value: list[Path] | Path | None) -> list[Path] | Path | None:
        """Returns the paths of the folders made absolute, so that they stay valid when the working directory
        changes."""
        if isinstance(value, list):
            return [root.expanduser().absolute() for root in value]
        return None if value is None else value.expanduser().absolute()

    @model_validator(mode="after")
    def _tasks_exist(self) -> Self:
        """Raises ValueError for unknown task ids, and returns the settings otherwise. The check is made here,
        when the settings are read, because `verifiers`' commands print such an error as one clear line. Ids
        with a prefix (such as Harbor's or MLGym's) are checked only when the run starts; so are all ids if
        this machine lacks one of the folders `task_roots`."""
        if all(root.is_dir() for root in self.task_roots):
            known = tasks.available(self.task_roots)
            for name in self.tasks:
                if name not in known and ":" not in name:
                    raise ValueError(str(tasks.unknown(name, known)))
        return self

    @model_validator(mode="after")
    def _weights_fit(self) -> Self:
        for name, weight in self.weights.items():
            if name not in self.tasks:
                raise ValueError(
                    f"weights names {name!r}, which is not in tasks; remove it or add the task"
                )
            if not 0 < weight < math.inf:
                raise ValueError(f"the weight of {name!r} must be a positive number, not {weight}")
        return self

    @model_validator(mode="after")
    def _seeds_stay_apart(self) -> Self:
        end = self.first_seed + self.examples_per_task * len(self.tasks)
        if self.worlds and end > VALIDATION_SEED:
            raise ValueError(
                "with worlds, first_seed + examples_per_task x number of tasks must be at most "
                f"{VALIDATION_SEED}, the first seed of evaluations; choose smaller numbers"
            )
        return self

    @property
    def worlds(self) -> list[str]:
        """The ids in `tasks` of all tasks that are not research tasks, such as games and questions."""
        return [name for name in self.tasks if is_world(name)]

    @property
    def research(self) -> list[str]:
        """The ids in `tasks` of the research tasks, in which an agent works in a box (a container or
        process)."""
        return [name for name in self.tasks if not is_world(name)]

    @property
    def members(self) -> list[str]:
        """The ids in `tasks`, with each set of Harbor tasks replaced by the ids of its tasks."""
        return tasks.expanded(self.tasks, self.harbor)

    def research_tasks(self) -> list[TaskSpec]:
        """Loads the research tasks that `tasks` names, each once, and returns them. An id of a set of Harbor
        tasks stands for all tasks of the set. Raises the errors of `air.tasks.load`."""
        names = tasks.expanded(self.research, self.harbor)
        return [self.research_task(name) for name in dict.fromkeys(names)]

    def research_task(self, name: str) -> TaskSpec:
        """Loads and returns the research task with the id `name`. Raises the errors of `air.tasks.load`."""
        return tasks.load(name, self.task_roots, mlgym_root=self.mlgym_root, harbor=self.harbor)


class AirHarnessConfig(vf.HarnessConfig):
    """Settings of air's own harness, the loop that calls the model and performs its actions: the keys under
    `[….env.agent.harness]` in a run file (TOML)."""

    id: str = "air"
    """The name of the `verifiers` plugin that provides the harness, the loop that plays the agent; `air` is
    this package."""
    format: str | None = None
    """The action format, which is the syntax in which the model writes its actions: the name of a format of
    air, or your own class as `module:Class`. None: the task's own format; for research tasks, `fenced`."""

    @field_validator("format")
    @classmethod
    def _check_format(cls, value: str | None) -> str | None:
        try:
            actions.get(value or RESEARCH_FORMAT)
        except UsageError as error:
            raise ValueError(str(error)) from None
        return value

    format_retries: int | None = Field(None, ge=0)
    """The number of consecutive replies with a format error that are tolerated. One more ends the episode,
    which is then graded. None: the action format's own limit (`mlgym`: 2; `fenced`: no limit)."""
    window: int = Field(1000, ge=1)
    """Format `mlgym`: the number of lines of an open file that the tools display at once. If these lines
    exceed `max_observation_tokens`, their middle is cut out."""
    overlap: int = Field(2, ge=0)
    """Format `mlgym`: the number of lines that remain visible when the agent scrolls in a file."""
    memory: bool = False
    """Format `mlgym`: whether the agent has tools to write and read notes during its episode."""
    history: int | None = Field(None, ge=1)
    """The number of latest observations (results of actions) whose text is sent to the model; the text of
    older ones is replaced by a short note. None: all. Only for evaluation: the replacement changes earlier
    parts of the prompt, so an episode could not be trained on as a single sample."""
    max_observation_tokens: int = Field(1024, ge=16)
    """The maximum number of tokens in one observation. The middle of a longer observation is replaced by a
    note with the number of tokens cut, and the metric `cut_observations` counts the observation."""
    max_context_tokens: int | None = Field(None, ge=64)
    """The maximum number of tokens in an episode's conversation with the model: the prompt and the reply of a
    model call together. If the next call could exceed this number, the episode ends and is graded. None: only
    the model server's limit applies."""
    tokenizer: str | None = None
    """The Hugging Face hub id or folder of the tokenizer with which the tokens of observations are counted.
    None: three bytes are assumed per token."""

    @classmethod
    def own_fields(cls) -> set[str]:
        """Returns the names of the settings that this class adds to its base class of `verifiers`, except
        `format`. Trajectories (recorded episodes) contain these settings, but not those of `verifiers`, which
        may be secret."""
        return set(cls.model_fields) - set(vf.HarnessConfig.model_fields) - {"format"}

    def tool_settings(self, hosts: tuple[str, ...]) -> ToolSettings:
        """Returns the settings of the agent's tools; `hosts` are the network hosts that the box may reach."""
        return ToolSettings(
            window=self.window, overlap=self.overlap, memory=self.memory, hosts=hosts
        )

    def check_history(self) -> None:
        """Raises ConfigError if `history` is set, which leaves old observations out of the prompt, because
        training needs all of them."""
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
        name_of_format = self.format or RESEARCH_FORMAT
        if not actions.get(name_of_format).uses_tools:
            fields = type(self).model_fields
            for name in ("window", "overlap", "memory"):
                if getattr(self, name) != fields[name].default:
                    raise ValueError(
                        f'{name} has no effect with format {name_of_format!r}; use "mlgym"'
                    )
        return self


class ResearchEnvConfig(RewardSettings, vf.SingleAgentEnvConfig):
    """Settings of the research environment: the keys under `[….env]` in a run file (TOML). The settings of
    the reward come from the base class `RewardSettings`."""

    agent: vf.AgentConfig = vf.AgentConfig(runtime=vf.DockerConfig(), max_turns=DEFAULT_TURNS)
    """Settings of the agent. `runtime.type` is `docker` (boxes are containers) or `subprocess` (boxes are
    processes). `max_turns` limits the turns (model calls) of an episode, for all tasks. Without it, a
    research task has at most 10 turns, and each other task has its own limit."""
    credit: Literal["episode", "segment"] = "episode"
    """The way in which the reward of an episode is assigned to training samples. (Each sample is one of
    `verifiers`' traces.) `episode`: one sample, with the sum of all reward terms. `segment`: one sample for
    each segment, with the reward that arose in it (see `air.env.credit`). A segment is the part of the
    episode up to a `validate` or, in worlds other than research tasks, up to an action with a reward."""
    max_validates: int | None = Field(None, ge=1)
    """The maximum number of validates (gradings that the agent requests) in an episode that are scored. To
    further requests, the answer is a fixed text. `submit` and the end of the episode are always scored. None:
    as many as `agent.max_turns`, or 32 if turns are not limited."""
    split_seed: str | None = Field(None, min_length=1)
    """The secret text from which the splits of the tasks' data into training, validation and test data are
    computed (see `air.tasks.splits`). `public`: the public split, for which the recorded scores of tasks are
    valid. None: the value of the environment variable `AIR_SPLIT_SEED` or, if it is not set, a secret that
    was generated for this installation. All machines of a run need the same secret. Trajectories (recorded
    episodes) contain only its fingerprint."""
    image: str | None = None
    """The container image of agents' boxes; graders always use the task's image. Choose `air-harness` if the
    harness runs the agent as a program in the box (`bash`, `mini_swe_agent`). None: each task's own image."""
    record_dir: Path | None = None
    """The folder for trajectories (recorded episodes), one file for each episode. A relative path is relative
    to the working directory. None: no trajectories are recorded."""
    record_diffs: bool = True
    """Whether a trajectory contains, for each turn, a diff of the workspace: what the turn changed in its
    files."""
    record_traces: bool = True
    """Whether `verifiers`' traces (its records of episodes, with tokens and log-probabilities) are written to
    files beside the trajectories."""
    record_artefacts_mb: float = Field(16.0, ge=0, allow_inf_nan=False)
    """The size in MiB up to which an artefact (the graded files of the agent) is stored beside the
    trajectories, so that it can be graded again later. 0: no artefact is stored."""
    record_artefacts_total_mb: float = Field(2048.0, ge=0, allow_inf_nan=False)
    """The maximum total size, in MiB after compression, of the artefacts stored in one `record_dir`."""
    max_boxes: int = Field(32, ge=1)
    """The maximum number of agents' boxes that run at the same time in this process."""
    warm_boxes: int = Field(0, ge=0)
    """The number of boxes that are started in advance, for each combination of box settings (image, limits,
    GPUs) that the tasks need."""
    reuse_boxes: bool = False
    """Whether a box (container) is reset after an episode and used for another episode. This saves the time
    to start a container (see `docs/boxes.md`). A box is removed instead if anything unusual happened in it,
    if an infrastructure error ended its episode, or if it has GPUs or network. false: each episode has a new
    box."""
    gpus: Literal["auto"] | list[str] = Field(default_factory=list)
    """The GPUs that boxes may use: indices from `nvidia-smi` (`["7"]`), UUIDs, or prefixes of UUIDs. `auto`:
    all GPUs in `CUDA_VISIBLE_DEVICES` except `trainer_gpus` and `inference_gpus`. Empty: boxes have no
    GPU."""
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
    """The number of boxes that may use one GPU at the same time; nothing limits the GPU memory that each of
    them uses. 1: no sharing."""
    max_failures: int = Field(100, ge=0)
    """The run is stopped after this number of consecutive episodes (of all tasks together, or of one task)
    with an infrastructure error: a failure of air or the machine, and not of the agent. All worker processes
    count together. The run is also stopped if one task fails too often while an action of the agent is
    carried out: each such failure adds 1 to the task's count, each other episode of the task subtracts 0.1,
    and the run stops when the count reaches this number. Set this limit above the number of episodes that run
    at the same time, because one outage can end all of them. 0: infrastructure errors never stop the run."""
    grader_boxes: int = Field(2, ge=1)
    """The maximum number of grader boxes, in which the work of agents is graded, that run at the same time in
    this process."""

    @model_validator(mode="before")
    @classmethod
    def _worlds_limit_turns(cls, data: Any) -> Any:
        """Removes the default limit of turns from the settings `data` if `tasks` contains worlds other than
        research tasks and the user set no limit, so that each world's own number applies."""
        if not isinstance(data, dict) or not isinstance(data.get("agent", {}), dict):
            return data
        taskset = data.get("taskset") or {}
        tables = taskset if isinstance(taskset, dict) else dict(taskset)
        names = tables.get("tasks", ())
        names = names.split(",") if isinstance(names, str) else names
        if not isinstance(names, list | tuple) or not any(map(is_world, map(str, names))):
            return data
        return {**data, "agent": {"max_turns": None, **data.get("agent", {})}}

    @model_validator(mode="after")
    def _check_worlds(self) -> Self:
        taskset = self.taskset
        worlds = taskset.worlds if isinstance(taskset, AirTasksetConfig) else []
        if not worlds:
            return self
        if not isinstance(self.agent.harness, AirHarnessConfig | None):
            raise ValueError(
                f"the harness {self.agent.harness.id!r} runs a program in a box, and {worlds[0]!r} has no "
                'box; use harness id = "air"'
            )
        if taskset.research:
            return self
        fields = type(self).model_fields
        for name in ("validate_penalty", "test_weight", "final", "terms", "max_validates", "gpus"):
            if getattr(self, name) != fields[name].get_default(call_default_factory=True):
                raise ValueError(
                    f"{name} has no effect on {worlds[0]!r}, which nothing grades; remove it"
                )
        return self

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
    def _check_search(self) -> Self:
        # The harness `bash` writes the key into the command line of its program in the box.
        if getattr(self.agent.harness, "search", False):
            raise ValueError(
                "agent.harness.search would show the key SERPER_API_KEY to the agent's commands, which can "
                "read every command line in the box; leave it out, and let commands reach the hosts that "
                "the task names under `network`"
            )
        return self

    @model_validator(mode="after")
    def _check_final(self) -> Self:
        if self.final == "holdout" and self.credit == "segment":
            raise ValueError(
                'final = "holdout" settles the reward at the end of the episode, so earlier segments would '
                'still be paid for validation scores; use credit = "episode"'
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

    @property
    def validates(self) -> int:
        """The maximum number of validates (gradings that the agent requests) in an episode that are
        scored."""
        return self.max_validates or self.research_turns or DEFAULT_VALIDATES

    @property
    def research_turns(self) -> int | None:
        """The maximum number of turns (model calls) in an episode of a research task; None if turns are not
        limited."""
        turns: int | None = self.agent.max_turns
        mixed = isinstance(self.taskset, AirTasksetConfig) and self.taskset.worlds
        return turns or (DEFAULT_TURNS if mixed else None)

    def episode_seconds(self, task: TaskSpec) -> float:
        """Returns the time limit of an episode of a research task, in seconds."""
        return self.limit_of(task.limits.episode_seconds)

    def limit_of(self, seconds: float) -> float:
        """Returns the time limit of an episode in seconds: the limit in the settings if there is one,
        otherwise `seconds`, the task's own limit."""
        limit: float | None = self.agent.timeout.rollout
        return seconds if limit is None else limit

    @property
    def provider(self) -> Provider:
        """The kind of the agent's box, `docker` or `process`, which the setting `agent.runtime.type`
        determines."""
        return OF_RUNTIME[self.agent.runtime.type].provider


def check_history(env: vf.EnvConfig) -> None:
    """Raises ConfigError if the setting `history` of air's harness is set, which leaves old observations out
    of the prompt, because training needs all of them."""
    harness = env.agent.harness if isinstance(env, ResearchEnvConfig) else None
    if isinstance(harness, AirHarnessConfig):
        harness.check_history()


def measures_actions(env: vf.EnvConfig) -> bool:
    """Whether the execution time of each action is measured. True if `env` is air's environment and air's own
    harness plays the agent. If the agent is a program in the box, its actions are not measured singly."""
    if not isinstance(env, ResearchEnvConfig):
        return False
    return env.agent.harness is None or isinstance(env.agent.harness, AirHarnessConfig)
