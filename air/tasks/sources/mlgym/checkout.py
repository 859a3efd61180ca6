"""Reads the tasks in a checkout of MLGym, and reports which tasks can be used and why others cannot."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from air.errors import MissingError
from air.sandbox.pool.gpus import inventory
from air.tasks.missing_resources import missing
from air.tasks.sources.mlgym import house_prices_split
from air.tasks.sources.mlgym.checkout_files import DATA, CheckoutSource, download_name
from air.tasks.sources.mlgym.config import (
    DatasetConfig,
    TaskConfig,
    Unusable,
    describe,
    read_datasets,
    read_task,
)
from air.tasks.sources.mlgym.table import Entry, read_table
from air.tasks.spec import Download, RewardScale, TaskData, TaskGrader, TaskLimits, TaskSpec

PREFIX = "mlgym:"
ROOT_VARIABLE = "AIR_MLGYM_ROOT"
HOME = "/home/agent/workspace"
"""The path of the agent's workspace that is fixed in the text of MLGym's scripts. In a grader box (sandbox)
the workspace has another path, so this one is replaced before a script runs."""
_SPARE_SECONDS = 120.0
_MIN_COMMANDS_PER_EPISODE = 4
"""The time limit of an episode is at least this many times the time limit of one command, so that an agent
has time for several long commands."""


@dataclass(frozen=True)
class Status:
    """Says whether air can use one of MLGym's tasks, and if not, why."""

    id: str
    """The task's id: `mlgym:<config name>`."""
    state: Literal["ready", "needs", "missing"]
    """`ready`: the task can be used. `needs`: the task needs something that this machine lacks, such as GPUs.
    `missing`: the task cannot be used, because the checkout or air's file `table.toml` lacks something."""
    reason: str
    """Why the task is not ready, in one line; empty if it is ready."""
    task: TaskSpec | None
    """The task; None if its state is `missing`."""


def find_checkout(root: Path | None = None) -> Checkout | None:
    """Returns the checkout of MLGym in the folder `root`, by default the folder that the environment variable
    `AIR_MLGYM_ROOT` names. Returns None if there is no `root` and the variable is not set.

    Raises MissingError if the folder is not a checkout of MLGym.
    """
    if root is not None:
        return Checkout(root)
    variable = os.environ.get(ROOT_VARIABLE)
    return Checkout(Path(variable), said_by=ROOT_VARIABLE) if variable else None


class Checkout:
    """A clone of MLGym's repository in the folder `root`, from which tasks are read. The clone is never
    changed. Each call of `load` or `status` reads the files of the task again.

    `said_by` is the name of the setting that gave `root`, for error messages. Raises MissingError if `root`
    is not a checkout of MLGym.
    """

    def __init__(self, root: Path, *, said_by: str = "mlgym_root") -> None:
        self.root = root.expanduser().resolve()
        if not (self.root / "configs" / "tasks").is_dir():
            raise MissingError(
                f"no checkout of MLGym at {self.root}: it has no configs/tasks",
                where=said_by,
                remedy="name the folder of a clone of facebookresearch/MLGym",
            )
        self._table = read_table(self.root)

    def names(self) -> list[str]:
        """Returns the sorted names of all task configs in the checkout: the file names in `configs/tasks`
        without `.yaml`."""
        return sorted(file.stem for file in (self.root / "configs" / "tasks").glob("*.yaml"))

    def load(self, name: str) -> TaskSpec:
        """Reads and returns the task whose config in MLGym is `name` (without `.yaml`). Raises MissingError,
        with the reason, if the task cannot be used."""
        try:
            return self._load(name)
        except Unusable as error:
            raise MissingError(
                str(error),
                where=f"task {PREFIX}{name}",
                remedy="`air tasks` shows what can be used",
            ) from None

    def status(self, name: str) -> Status:
        """Returns whether the task with the config `name` (without `.yaml`) can be used, and why not."""
        try:
            task = self._load(name)
            needs = self._needs(name, task)
        except Unusable as error:
            return Status(PREFIX + name, "missing", str(error), None)
        return Status(PREFIX + name, "needs" if needs else "ready", needs, task)

    def _load(self, name: str) -> TaskSpec:
        if name not in self.names():
            raise Unusable("there is no such config in configs/tasks")
        config = read_task(self.root, name)
        datasets = read_datasets(self.root, config)
        kind = config.kind
        if name not in self._table:
            raise Unusable("air's table has no entry for it, which configs/air.toml can add")
        entry = self._table[name]
        script = self._script(config)
        limits = _limits(config, entry, waits=kind != "csv")
        how = _evaluation_settings(config, entry, limits, script)
        source = self._source(name, config, datasets, entry, script, how)
        scale = entry.model_dump(include=set(RewardScale.model_fields), exclude_unset=True)
        scale["baseline"] = _baseline(config, entry)
        trust: Literal["data", "code", "evaluator"] = "code" if entry.player else "evaluator"
        gpus = 0 if entry.without_gpu and not inventory() else entry.gpus
        notes = [entry.note, entry.without_gpu if gpus < entry.gpus else ""]
        task = TaskSpec(
            id=PREFIX + name,
            name=config.name,
            description="\n\n".join(filter(None, [describe(config, datasets), *notes])),
            metric=entry.metric,
            artefact=entry.artefact[0],
            more_artefacts=entry.artefact[1:],
            image=entry.image,
            gpus=gpus,
            data=TaskData(
                downloads=tuple(
                    Download(name=download_name(path), url=entry.downloads[path])
                    for path in source.downloads
                )
            ),
            trust="data" if kind == "csv" else trust,
            caveat=entry.caveat,
            limits=limits,
            grader=TaskGrader(gpus=gpus if kind in ("model", "lm") else 0, repeats=entry.repeats),
            **scale,
        )
        return task.set_origin(self.root, source.digest(task.model_dump_json()), source)

    def _script(self, config: TaskConfig) -> str:
        """Returns the path of the task's evaluation script, relative to the workspace. Raises Unusable if the
        script is not part of the task's starter code."""
        if not config.evaluation_paths:
            raise Unusable("its config names no evaluation script")
        script = config.evaluation_paths[0]
        names = [Path(item).name for item in config.starter_code]
        if Path(script).is_absolute() or Path(script).parts[0] not in names:
            raise Unusable(f"its evaluation script {script} is not among its starter code")
        return script

    def _source(
        self,
        name: str,
        config: TaskConfig,
        datasets: list[DatasetConfig],
        entry: Entry,
        script: str,
        how: dict[str, object],
    ) -> CheckoutSource:
        starter = tuple(self._inside(item) for item in config.starter_code)
        if absent := [str(p.relative_to(self.root)) for p in starter if not p.exists()]:
            raise Unusable(f"the checkout lacks its starter code {', '.join(absent)}")
        folders, table, generates, downloads = [], None, False, tuple(entry.downloads)
        for dataset in (d for d in datasets if d.is_local):
            folder = self._inside(dataset.data_path)
            if folder.is_dir() and any(folder.iterdir()):
                folders.append(folder)
                downloads = tuple(path for path in downloads if not path.startswith(f"{DATA}/"))
            elif entry.split and house_prices_split.original(folder).is_file():
                table = house_prices_split.original(folder)
            elif entry.generate:
                generates = True
            elif not any(path.startswith(f"{DATA}/") for path in downloads):
                raise Unusable(f"the checkout lacks its data {dataset.data_path}")
        read_only = [DATA] if (folders or table) and entry.data else []
        return CheckoutSource(
            name=name,
            how=how,
            own_solvers=self.root / "configs" / "air" / f"{name}.toml",
            starter=starter,
            data=tuple(folders),
            table=table,
            generates=generates,
            downloads=downloads,
            shown=entry.data,
            protected=(*read_only, *([script] if config.evaluation_read_only else [])),
        )

    def _needs(self, name: str, task: TaskSpec) -> str:
        """Returns a string that lists the GPUs, the image and the downloads that the task needs and this
        machine lacks; an empty string if nothing is missing."""
        datasets = read_datasets(self.root, read_task(self.root, name))
        hub = [] if task.data.downloads else [d.data_path for d in datasets if not d.is_local]
        loads = [f"{name} (name its files under `downloads` in configs/air.toml)" for name in hub]
        return ", ".join([*missing(task), *loads])

    def _inside(self, name: str) -> Path:
        path = Path(os.path.normpath(self.root / name))  # a link can lead out of it
        if not path.is_relative_to(self.root):
            raise Unusable(f"its path {name} leads out of the checkout")
        return path


def _limits(config: TaskConfig, entry: Entry, *, waits: bool) -> TaskLimits:
    """Returns a task's limits of time and resources. The time limits of a command and of a grading come from
    MLGym's config of the task, all other limits from air's own settings for it (`entry`). The time limit of
    an episode is raised if it is too short for several commands.

    `waits`: whether the grader runs the agent's code and waits for it. If so, the grader's time limit is 120
    seconds longer.
    """
    return entry.limits.model_copy(
        update={
            "exec_seconds": config.seconds,
            "grade_seconds": config.seconds + (_SPARE_SECONDS if waits else 0),
            "episode_seconds": max(
                entry.limits.episode_seconds, _MIN_COMMANDS_PER_EPISODE * config.seconds
            ),
        }
    )


def _evaluation_settings(
    config: TaskConfig, entry: Entry, limits: TaskLimits, script: str
) -> dict[str, object]:
    """Returns the settings with which a task's evaluation script is run, such as its path and time limit, as
    a dict of plain JSON values. They are later written to the file `how.json`, which the grader's program
    reads."""
    return {
        "kind": config.kind,
        "script": script,
        "home": HOME,
        "metric": entry.metric,
        "artefact": list(entry.artefact),
        "player": entry.player,
        "probe": entry.probe,
        "processes": max(1, entry.gpus),
        "seconds": config.seconds,
        "memory": limits.memory_mb << 20,
    }


def _baseline(config: TaskConfig, entry: Entry) -> float:
    """Returns the baseline score that MLGym's config states for the task's metric. Upper and lower case in
    the metric's name do not matter. Returns `entry.baseline` if the config states none, or if
    `entry.own_baseline` is set."""
    scores_by_name = config.baseline_scores[0] if config.baseline_scores else {}
    scores = {name.lower(): score for name, score in scores_by_name.items()}
    if entry.own_baseline:
        return entry.baseline
    return scores.get(entry.metric.lower(), entry.baseline)
