"""Finds the settings with which a model is evaluated; for a run's checkpoint, those of its run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from air.env.config import DEFAULT_TURNS, RESEARCH_FORMAT, ResearchEnvConfig
from air.errors import ConfigError, MissingError
from air.train.config import overrides
from air.train.config.run_config import ComputeConfig, RunConfig
from air.train.loop import run_folder
from air.trajectories import evaluations
from air.worlds.sources import load as load_world

CHECKPOINTS = "checkpoints"


@dataclass(frozen=True)
class Settings:
    """The settings with which episodes of an evaluation are played."""

    envs: Sequence[ResearchEnvConfig]
    temperature: float
    max_tokens: int | None
    """The longest reply in tokens; None: only `context` limits it."""
    context: int
    """The longest episode in tokens."""
    renderer: Any = None
    """A config of the package `renderers`; None: the renderer of the model's family."""
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    """The settings of a model that this process loads: device, type of the weights and attention."""

    def check_tasks(self) -> None:
        """Raises MissingError if a task does not exist, and ConfigError if its id is malformed."""
        for env in self.envs:
            taskset: Any = env.taskset
            for name in taskset.worlds:
                load_world(name)
            taskset.research_tasks()

    def identity(self) -> dict[str, Any]:
        """Returns the settings that influence the results of episodes, as plain data without secrets."""
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


def _plain(env: ResearchEnvConfig) -> dict[str, Any]:
    """Returns the settings of an environment as plain data, without secrets. Settings that earlier versions
    did not have are left out if they have their default value. So evaluations of those versions still have
    the same settings."""
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
    """New values for one key of a run's environments, as a command-line flag sets them."""

    flag: str
    """The flag that set the values, such as `--tasks`; error messages name it."""
    values: Sequence[str]


@dataclass(frozen=True)
class OfRun:
    """A checkpoint of a run, with the run's settings and the model from which the run started."""

    checkpoint: Path
    run: Path
    start: str
    settings: Settings


def run_of(model: str, step: int | Literal["best"] | None = None) -> tuple[Path, Path] | None:
    """Returns the run's folder and the checkpoint that `model` names. If `model` is a run's folder, the
    checkpoint is that of `step` (None: the last one). Returns None if `model` is neither a run nor a
    checkpoint; the folder of a run of `sft` is neither, because it holds a trained model. Raises MissingError
    if the run has no such checkpoint."""
    path = Path(model).expanduser()
    if (path / run_folder.SFT_FILE).is_file():
        return None
    if path.resolve().parent.name == CHECKPOINTS:
        run = path.resolve().parents[1]
        return (run, path) if (run / run_folder.CONFIG_FILE).is_file() else None
    root = path / CHECKPOINTS
    if not root.is_dir():
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
    """Returns the step of the best checkpoint of the run in the folder `run`, by the metric that the run's
    config names. Raises MissingError if no checkpoint was evaluated; ConfigError if evaluations lack the
    metric."""
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


def of_run(
    run: Path,
    checkpoint: Path,
    changes: Mapping[str, Change],
    sampling: Mapping[str, Any],
    compute: Mapping[str, Any],
) -> OfRun:
    """Returns the settings of the run in the folder `run`, with changes. `changes` has new values for keys of
    its environments, by the key (`agent.max-turns`); `sampling` for fields of `Settings`; and `compute` for
    keys of `[embedded]`. Raises ConfigError if the run's `config.json` or a change is wrong."""
    file = run / run_folder.CONFIG_FILE
    sources = overrides.read_files([f"@{file}"])
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
        research = [with_turns(research[0])]
    settings = {
        "temperature": train.sampling.temperature,
        "max_tokens": train.sampling.max_completion_tokens,
        "context": config.seq_len,
        **sampling,
    }
    return OfRun(
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


def with_turns(env: ResearchEnvConfig) -> ResearchEnvConfig:
    """Returns the settings of an environment whose tasks were replaced, with a limit of turns that fits.
    Worlds limit the turns themselves, so they get no limit. Research tasks get the default limit."""
    taskset: Any = env.taskset
    if taskset.worlds or env.agent.max_turns is not None:
        return env
    agent = env.agent.model_copy(update={"max_turns": DEFAULT_TURNS})
    return env.model_copy(update={"agent": agent})


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
