"""Determines the settings with which a model is evaluated. A checkpoint of a run is evaluated with the
settings of the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import verifiers.v1 as vf

from air.env.config import (
    DEFAULT_TURNS,
    RESEARCH_FORMAT,
    AirHarnessConfig,
    AirTasksetConfig,
    ResearchEnvConfig,
)
from air.errors import ConfigError, MissingError
from air.train.config import overrides
from air.train.config.embedded_config import ComputeConfig
from air.train.config.run_config import RunConfig
from air.train.loop import run_folder
from air.trajectories import evaluations
from air.worlds.sources import load as load_world

CHECKPOINTS = "checkpoints"


@dataclass(frozen=True)
class Settings:
    """The settings with which episodes of an evaluation are played. `envs` are the settings of the
    environments, which name the tasks. `temperature` is the sampling temperature."""

    envs: Sequence[ResearchEnvConfig]
    temperature: float
    max_tokens: int | None
    """The largest number of tokens in one reply; None: only `context` limits it."""
    context: int
    """The largest number of tokens in one episode."""
    renderer: Any = None
    """A config of the package `renderers`; None: the renderer of the model's family."""
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    """How this process computes with a model that it loads: device, type of the weights and attention."""
    deterministic: bool = False
    """Whether replies are sampled in such a way that they can be repeated bit by bit (see
    `EmbeddedConfig.deterministic`). This has an effect only if this process itself loads the model, and if
    replies have seeds."""

    def check_tasks(self) -> None:
        """Raises MissingError if a task does not exist, and ConfigError if the id of a task is malformed."""
        for env in self.envs:
            taskset: Any = env.taskset
            for name in taskset.worlds:
                load_world(name)
            taskset.research_tasks()

    def identity(self) -> dict[str, Any]:
        """Returns the settings that influence the results of episodes, as JSON data without secrets. Two
        evaluations can be compared if this data is equal."""
        # A default value is left out, as in evaluations that earlier versions recorded.
        dtype = {} if self.compute.dtype == "auto" else {"dtype": self.compute.dtype}
        return {
            **dtype,
            "envs": [_plain(env) for env in self.envs],
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "context": self.context,
            "renderer": None if self.renderer is None else self.renderer.model_dump(mode="json"),
        }


def research_env(
    tasks: Sequence[str],
    *,
    runtime: str,
    max_turns: int | None,
    record_dir: Path | None = None,
    mlgym_root: Path | None = None,
    tokenizer: str | None = None,
    max_context_tokens: int | None = None,
    warm_boxes: int = 0,
) -> ResearchEnvConfig:
    """Returns the settings of an environment that has each task in `tasks` once.

    `runtime` is the kind of box (where an agent's commands run): `docker`, or `subprocess` for processes
    without a container. `max_turns` limits the turns of an episode; None: each task has its own limit.
    `record_dir` is the folder for trajectories (recorded episodes); None: nothing is recorded. `mlgym_root`
    is the folder of a checkout of MLGym (a benchmark of research tasks). `tokenizer`, a Hugging Face hub id
    or a folder, counts the tokens of observations; None: three bytes count as one token. `max_context_tokens`
    limits the tokens of an episode; None: only the model server limits them. `warm_boxes` is the number of
    boxes that are started in advance for each combination of box settings."""
    harness = AirHarnessConfig(tokenizer=tokenizer, max_context_tokens=max_context_tokens)
    agent = vf.AgentConfig.model_validate(
        {"harness": harness.model_dump(), "runtime": {"type": runtime}, "max_turns": max_turns}
    )
    return ResearchEnvConfig(
        taskset=AirTasksetConfig(tasks=list(tasks), mlgym_root=mlgym_root),
        agent=agent,
        record_dir=record_dir,
        warm_boxes=warm_boxes,
    )


def _plain(env: ResearchEnvConfig) -> dict[str, Any]:
    """Returns the settings of an environment as JSON data, without secrets. Settings that earlier versions of
    air did not have are left out if they have their default values. So these settings compare equal to those
    in evaluations that earlier versions recorded."""
    data = env.model_dump(mode="json", exclude={"record_dir", "split_seed"})
    for table, key, default in (
        (data, "reuse_boxes", False),
        (data["taskset"], "weights", {}),
        (data["taskset"], "purpose", "training"),
    ):
        if table.get(key) == default:
            table.pop(key, None)
    harness = data["agent"].get("harness")
    if not env.taskset.worlds and harness and harness.get("format", "") is None:
        harness["format"] = RESEARCH_FORMAT
    return data


@dataclass(frozen=True)
class Change:
    """A change that a command-line flag makes when a checkpoint of a run is evaluated: the new values, as
    strings, of one key in the settings of the run's environments."""

    flag: str
    """The flag that set the values, such as `--tasks`; error messages name it."""
    values: Sequence[str]


@dataclass(frozen=True)
class EvaluatedCheckpoint:
    """A checkpoint of a training run, and the settings with which it is evaluated. `checkpoint` is the
    checkpoint's folder, and `run` that of the run. `start` is the model from which the run started: a folder
    or a hub id."""

    checkpoint: Path
    run: Path
    start: str
    settings: Settings


def find_checkpoint(
    model: str, step: int | Literal["best"] | None = None
) -> tuple[Path, Path] | None:
    """Returns a pair: the folder of a training run, and the folder of the checkpoint to evaluate. `model` is
    the folder of a checkpoint or of a run. For a run, `step` chooses the checkpoint: the number of a step,
    `best` (see `best_step`), or None for the last checkpoint. Returns None if `model` is something else, such
    as a hub id, or the folder of a run of `sft` (supervised fine-tuning), which is a model itself. Raises
    MissingError if the run does not have the chosen checkpoint."""
    path = Path(model).expanduser()
    if (path / run_folder.SFT_FILE).is_file():
        return None
    if path.resolve().parent.name == CHECKPOINTS:
        run = path.resolve().parents[1]
        return (run, path) if (run / run_folder.CONFIG_FILE).is_file() else None
    root = path / CHECKPOINTS
    if not root.is_dir() and not run_folder.is_begun(path):
        return None
    steps = run_folder.steps(root)
    if not steps:
        raise MissingError(
            "this run has no checkpoint yet", where=model, remedy="wait for one, or name a model"
        )
    if step == "best":
        step = best_step(path)
    elif step is not None and step not in steps:
        raise MissingError(
            f"no checkpoint of step {step} (there: {', '.join(map(str, steps))})", where=model
        )
    return path.resolve(), run_folder.step_folder(root, step or steps[-1])


def best_step(run: Path) -> int:
    """Returns the step of the best checkpoint of the run in the folder `run`, by the metric
    `embedded.best_metric` of the run's config. Raises MissingError if no step with a checkpoint was
    evaluated, and ConfigError if the evaluations lack the metric."""
    checkpoints = run_folder.steps(run / CHECKPOINTS)
    rows, metric = evaluations.rows(run), evaluations.best_metric(run)
    step = evaluations.best_step(rows, metric, checkpoints)
    if step is None:
        evaluations.check_metric(rows, metric)
        raise MissingError(
            "no checkpoint of this run was evaluated, so none is the best",
            where=str(run),
            remedy="name a step; [orchestrator.eval] in a run file evaluates during a run",
        )
    return step


def read_evaluated_checkpoint(
    run: Path,
    checkpoint: Path,
    changes: Mapping[str, Change],
    sampling: Mapping[str, Any],
    compute: Mapping[str, Any],
) -> EvaluatedCheckpoint:
    """Returns the settings to evaluate the checkpoint in the folder `checkpoint` of the run in the folder
    `run`: the run's settings with the user's changes. `changes` has new values for keys of the run's
    environments, by key, such as `agent.max-turns`. New tasks (`taskset.tasks`) are played only in the first
    of the run's environments that is air's. `sampling` has new values for fields of `Settings`, and `compute`
    for keys of `[embedded]`. Raises ConfigError if the run's `config.json` or a change is wrong."""
    file = run / run_folder.CONFIG_FILE
    sources = overrides.read_files([f"@{file}"])
    if "taskset.tasks" in changes:
        _leave_out_task_settings(sources.data, file)
    for number in range(len(_tables(sources.data, file))):
        for key, change in changes.items():
            flag = f"--orchestrator.train.source.{number}.env.{key}"
            overrides.apply_flags(sources, [flag, *change.values], RunConfig, shown=change.flag)
    config = overrides.build(RunConfig, sources)
    train = config.orchestrator.train
    envs = [source.env for source in train.source]
    research = [env for env in envs if isinstance(env, ResearchEnvConfig)]
    if not research:
        raise ConfigError("has no environment of air to play", where=str(file))
    if "taskset.tasks" in changes:
        research = [with_default_turn_limit(research[0])]
    settings = {
        "temperature": train.sampling.temperature,
        "max_tokens": train.sampling.max_completion_tokens,
        "context": config.seq_len,
        **sampling,
    }
    return EvaluatedCheckpoint(
        checkpoint,
        run,
        config.model.name,
        Settings(
            research,
            renderer=config.orchestrator.renderer,
            compute=config.embedded.model_copy(update=compute),
            **settings,
        ),
    )


def with_default_turn_limit(env: ResearchEnvConfig) -> ResearchEnvConfig:
    """Returns `env`, the settings of an environment, with a limit of turns. If `env` has no limit and has
    only research tasks, this is a copy with the default limit; otherwise it is `env` itself, because other
    tasks, such as games, limit their turns themselves. Call this function after the tasks in `env` were
    replaced."""
    taskset: Any = env.taskset
    if taskset.worlds or env.agent.max_turns is not None:
        return env
    agent = env.agent.model_copy(update={"max_turns": DEFAULT_TURNS})
    return env.model_copy(update={"agent": agent})


def _leave_out_task_settings(data: dict[str, Any], file: Path) -> None:
    """Removes, from the settings `data` of a run, the settings that fit only the run's own tasks: the weights
    of the tasks, and the curricula (settings by which tasks get harder during training). Needed when other
    tasks are played. `file` is the file of the settings, which error messages name."""
    for table in _tables(data, file):
        table.get("env", {}).get("taskset", {}).pop("weights", None)
    for key in ("levels", "rounds"):
        data.get("embedded", {}).pop(key, None)


def _tables(data: Mapping[str, Any], file: Path) -> Sequence[Any]:
    try:
        tables = data["orchestrator"]["train"]["source"]
    except (KeyError, TypeError):
        tables = None
    if not isinstance(tables, list):
        raise ConfigError(
            "is not the file of an `rl` run of the embedded engine",
            where=str(file),
            remedy="name another folder, or give the model's own folder",
        )
    return tables
