"""Turns the settings of a matrix into trainings and evaluations, and checks that the existing content of the
matrix's folder was made with the same settings.

A matrix is a table of results. A row is a list of training tasks; one model is trained on them with each
seed. A column is a task that all models play. A cell has the episodes of a row's models on a column's task.

The folder `output_dir / name` has `matrix.json` (the settings that the cells depend on), `runs/ROW-seedN/`
(ordinary runs of `rl`), `cells/ROW-seedN/COLUMN/` (evaluations, as `air eval` records them) and the results.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from air import paths
from air.errors import ConfigError, UsageError
from air.train.config import overrides
from air.train.config.matrix_config import BASE, MatrixConfig
from air.train.config.run_config import RunConfig
from air.train.evaluation.resumable_evaluation import Evaluation
from air.train.evaluation.settings import Settings, with_default_turn_limit
from air.train.loop import run_folder
from air.train.matrix.files import CELLS, FILE, RUNS

_SET_BY_MATRIX = {
    "output_dir": "set `output_dir` of the matrix (--output-dir)",
    "run.name": "name the row in `rows`, and the matrix by `name` (--name)",
    "embedded.seed": "set `seeds` of the matrix (--seeds)",
    "resume": "remove it; the same command continues a matrix",
}
"""Maps each key that the user may not set in the run files and the table `settings` of a matrix, because the
matrix sets it for each training, to a text that says what the user can do instead."""


@dataclass(frozen=True)
class TrainedRow:
    """One row of a matrix (a list of training tasks) with one seed, and the settings of the training that
    makes its model. The row `base` is the model before any training."""

    row: str
    seed: int | None
    """The seed of the training. None for the row `base`: its model is the model from which trainings
    start."""
    config: RunConfig
    """The settings of the training. For the row `base`, which is not trained: the settings of the first
    training, because evaluations take their settings from a training."""

    @property
    def label(self) -> str:
        """`ROW-seedN`, or `base` for the untrained row: the name of the training's folder in `runs/`, and of
        the folder in `cells/` with the evaluations of the trained model."""
        return self.row if self.seed is None else f"{self.row}-seed{self.seed}"

    def __str__(self) -> str:
        return self.row if self.seed is None else f"{self.row}, seed {self.seed}"


@dataclass(frozen=True)
class Plan:
    """The settings of all trainings and evaluations of a matrix, made from the user's settings by the
    function `plan`. `trained` has an element for each pair of a row (a list of training tasks) and a seed."""

    config: MatrixConfig
    trained: Sequence[TrainedRow]

    @property
    def folder(self) -> Path:
        return self.config.folder

    @property
    def start(self) -> str:
        """The folder or Hugging Face id of the model from which the trainings start."""
        name = self.trained[0].config.model.name
        return str(Path(name).expanduser()) if name.startswith("~") else name

    def evaluation(self, trained: TrainedRow, model: str, column: str) -> Evaluation:
        """Returns the evaluation (an object that plays and records episodes) of a model on the task `column`.
        The model was trained for `trained`, one row of the matrix with one seed; `model` is the model's
        folder or Hugging Face id."""
        settings, folder = self._settings(trained.config, column), self._folder(trained, column)
        return Evaluation(trained.label, model, settings, folder)

    def _folder(self, trained: TrainedRow, column: str) -> Path:
        return self.folder / CELLS / trained.label / slug(column)

    def _settings(self, config: RunConfig, column: str) -> Settings:
        (source,) = config.orchestrator.train.source
        env: Any = source.env
        taskset = env.taskset.model_copy(update={"tasks": [column], "weights": {}})
        sampling, chosen = config.orchestrator.train.sampling, self.config.evaluation.temperature
        return Settings(
            [with_default_turn_limit(env.model_copy(update={"taskset": taskset}))],
            temperature=sampling.temperature if chosen is None else chosen,
            max_tokens=sampling.max_completion_tokens,
            context=config.seq_len,
            renderer=config.orchestrator.renderer,
            compute=config.embedded,
        )

    def check_tasks(self) -> None:
        """Raises MissingError or ConfigError if a task of a row or a column cannot be found."""
        config = self.trained[0].config
        for name in {*self.config.columns, *(t for row in self.config.rows.values() for t in row)}:
            self._settings(config, name).check_tasks()

    def claim(self) -> None:
        """Writes `matrix.json`, the settings that the content of the matrix's folder depends on. Raises
        UsageError if the folder has other content, belongs to a matrix whose trainings or evaluations have
        other settings, or cannot be written. New rows, columns, seeds and episodes are allowed."""
        file, identity = self.folder / FILE, self._identity()
        try:
            if file.is_file():
                self._continue(_read(file), identity)
            elif run_folder.has_content(self.folder):
                raise UsageError(
                    "has something else in it", where=str(self.folder), remedy="give another --name"
                )
            paths.write_whole(file, f"{json.dumps(identity, indent=2)}\n".encode())
        except OSError as error:
            raise UsageError(
                f"cannot be written: {error.strerror}",
                where=str(self.folder),
                remedy="give another --output-dir",
            ) from None

    def _continue(self, before: Mapping[str, Any], identity: dict[str, Any]) -> None:
        """Compares `before`, the settings in `matrix.json`, with the current settings `identity`. Raises
        UsageError if a setting differs. Adds to `identity` the rows that only `before` has, so that
        `matrix.json` keeps them."""
        identity["rows"] = {**before["rows"], **identity["rows"]}
        earlier = {**before, "rows": {**identity["rows"], **before["rows"]}}
        if key := _difference(earlier, identity, self._non_default_settings()):
            raise UsageError(
                f"the matrix in this folder was begun with another `{key}`",
                where=str(self.folder),
                remedy="set it as it was, or give another --name",
            )

    def _non_default_settings(self) -> dict[str, Any]:
        """Returns the settings that the results in the cells depend on, as JSON data, without those settings
        of trainings and evaluations that have their default value."""
        return self._identity(exclude_defaults=True)

    def _identity(self, *, exclude_defaults: bool = False) -> dict[str, Any]:
        """Returns the settings that the results in the cells depend on, as JSON data. With
        `exclude_defaults`, leaves out settings of trainings and evaluations that have their default value."""
        how: Any = {"mode": "json", "exclude_defaults": exclude_defaults}
        settings = self.trained[0].config.model_dump(**how)
        for key in ("run", "output_dir", "resume"):
            settings.pop(key, None)
        settings.get("embedded", {}).pop("seed", None)
        settings["orchestrator"]["train"]["source"][0]["env"]["taskset"].pop("tasks", None)
        evaluation = self.config.evaluation.model_dump(**how, exclude={"episodes"})
        identity = {
            "v": 1,
            "settings": settings,
            "rows": self.config.rows,
            "evaluation": evaluation,
        }
        return json.loads(json.dumps(identity))  # type: ignore[no-any-return]


def plan(config: MatrixConfig) -> Plan:
    """Returns the settings of all trainings and evaluations of a matrix. Raises ConfigError or MissingError
    if a run file or the table `settings` cannot be used, and ConfigError if two columns would have the same
    folder."""
    overrides.refuse(config.settings, _SET_BY_MATRIX, "the matrix", "settings.{}".format)
    files = overrides.read_files([f"@{path}" for path in config.run_files], RunConfig)
    overrides.refuse(files.data, _SET_BY_MATRIX, "the matrix", files.place)
    overrides.put(files, config.settings, "settings")
    trained = [
        TrainedRow(row, seed, _run_config(files, config, row, tasks, seed))
        for row, tasks in config.rows.items()
        for seed in config.seeds
    ]
    slugs = [slug(column) for column in config.columns]
    if twice := [one for one in slugs if slugs.count(one) > 1]:
        raise ConfigError(
            f"two columns would have the folder {twice[0]!r}",
            where="columns",
            remedy="leave one of them out",
        )
    base = [TrainedRow(BASE, None, trained[0].config)] if config.base else []
    return Plan(config, [*base, *trained])


def _run_config(
    files: overrides.MergedSettings, config: MatrixConfig, row: str, tasks: Sequence[str], seed: int
) -> RunConfig:
    merged = copy.deepcopy(files)
    taskset = single_taskset(merged, "a matrix")
    taskset["tasks"] = list(tasks)
    taskset.pop("weights", None)
    name = f"{row}-seed{seed}"
    own = {
        "output_dir": str(config.folder / RUNS),
        "run": {"name": name},
        "embedded": {"seed": seed},
    }
    overrides.put(merged, own, f"row {row}")
    return overrides.build(RunConfig, merged).with_checkout()


def single_taskset(merged: overrides.MergedSettings, what: str) -> dict[str, Any]:
    """Returns the table `env.taskset` (the list of tasks and its settings) of the only source of prompts in
    the settings, so that the caller can replace its tasks. Raises ConfigError if there is not exactly one
    source, or if its tasks come from another package than air; `what` is the subject of the error message."""
    tables = _at(merged.data, "orchestrator", "train", "source")
    single = tables[0] if isinstance(tables, list) and len(tables) == 1 else None
    taskset = _at(single, "env", "taskset")
    if not isinstance(taskset, dict) or taskset.get("id") != "air":
        raise ConfigError(
            f'{what} needs exactly one [[orchestrator.train.source]], with env.taskset.id = "air"',
            where=", ".join(map(str, merged.files)) or "run_files",
            remedy="name another run file in run_files",
        )
    return taskset


def _at(data: Any, *keys: str) -> Any:
    """Returns the value at the path `keys` in the nested dicts `data`, or None if there is no such value."""
    for key in keys:
        data = data.get(key) if isinstance(data, dict) else None
    return data


def slug(task: str) -> str:
    """Returns the name of a task's folder, made from the task's id `task`. Each sequence of characters other
    than letters, digits, `_`, `.` and `-` is replaced by one `-`. Then `-` and `.` are removed at both
    ends."""
    return re.sub(r"[^\w.-]+", "-", task).strip("-.")


def _read(file: Path) -> dict[str, Any]:
    try:
        data = json.loads(file.read_bytes())
    except (ValueError, RecursionError):  # not JSON, not UTF-8, or nested too deeply
        data = None
    if not isinstance(data, dict) or data.get("v") != 1 or not isinstance(data.get("rows"), dict):
        raise UsageError(
            "is not the file of a matrix", where=str(file), remedy="give another --name"
        )
    return data


def _difference(before: Any, now: Any, chosen: Any, path: str = "") -> str:
    """Compares the recorded settings of a matrix (`before`) with its current settings (`now`).

    Returns the dotted path of the first setting that differs, such as `settings.seq_len`, or an empty text if
    all are equal. If `before` lacks a key, the matrix may come from an older version of air without this
    setting. Then the key counts as different only if it is in `chosen`, the current settings that are not
    defaults.
    """
    if isinstance(before, dict) and isinstance(now, dict):
        chosen = chosen if isinstance(chosen, dict) else {}
        for key in {**before, **now}:
            if key not in before and key not in chosen:
                continue
            inner = f"{path}.{key}".lstrip(".")
            if found := _difference(before.get(key), now.get(key), chosen.get(key), inner):
                return found
        return ""
    if _tables(before) and _tables(now) and len(before) == len(now):
        mine = chosen if _tables(chosen) and len(chosen) == len(now) else [{}] * len(now)
        for index, (old, new, own) in enumerate(zip(before, now, mine, strict=True)):
            if found := _difference(old, new, own, f"{path}.{index}"):
                return found
        return ""
    return path if before != now else ""


def _tables(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, dict) for one in value)
