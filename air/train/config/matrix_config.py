"""Defines the settings in a file (TOML) of the command `air matrix`.

A matrix is a table of results. A row is a list of tasks, on which one model is trained. A column is a task,
which the models of all rows play. A cell is the result of one row's model on one column's task.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from air.config import BaseConfig

BASE = "base"
"""The name of the row of the model that is not trained."""
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")


class MatrixEvaluationConfig(BaseConfig):
    """Settings in the table `[evaluation]` of a matrix: how the episodes of each cell are played. A cell is
    the result of the model of one row on the task of one column."""

    episodes: int = Field(100, ge=1)
    """Number of episodes of each cell and training seed. The worlds (games or environments) of these episodes
    get seeds that are reserved for evaluations; all cells of a column use the same seeds. To continue a
    finished matrix, set a larger number."""
    temperature: float | None = Field(None, ge=0, le=2.0)
    """Sampling temperature of the model's replies in the evaluation. None: the sampling temperature of the
    training."""


class MatrixConfig(BaseConfig):
    """All settings in a file of the command `air matrix`, which trains one model on each of several lists of
    tasks (the rows), and lets every model play all tasks in another list (the columns)."""

    name: str = "matrix"
    """The name of the matrix; its folder is `output_dir / name`."""
    output_dir: Path = Path("outputs")
    """The folder that contains the matrix's folder."""
    run_files: list[Path] = Field(default_factory=list)
    """The run files (TOML) of `rl` with the settings of each training; a later file overrides earlier ones.
    Together they must define exactly one source of prompts; its tasks are replaced by those of each row. They
    may not set `output_dir`, `run.name`, `embedded.seed` or `resume`, which the matrix sets. If a path
    `configs/…` does not exist, air's own file of this name is read."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings that override those of `run_files`, with the same tables and keys: for example `max_steps`, or
    the key `name` in the table `model`."""
    rows: dict[str, list[str]] = Field(min_length=1)
    """The rows: for each row's name the ids of the tasks that its model is trained on. The name `base` is
    reserved."""
    columns: list[str] = Field(min_length=1)
    """The columns: the ids of the tasks that every row's model plays."""
    base: bool = True
    """Whether the matrix has a row `base`: the model from which the trainings start, without training."""
    seeds: list[int] = Field(default=[0], min_length=1)
    """The seeds (`embedded.seed`) with which each row is trained: one training for each seed."""
    evaluation: MatrixEvaluationConfig = MatrixEvaluationConfig()
    """How the episodes of each cell are played."""

    @field_validator("name")
    @classmethod
    def _names_a_folder(cls, value: str) -> str:
        if not _NAME.fullmatch(value):
            raise ValueError(
                f"{value!r} must be letters, digits, '_', '.' and '-': it names a folder"
            )
        return value

    @field_validator("seeds")
    @classmethod
    def _are_from_zero_on(cls, value: list[int]) -> list[int]:
        if min(value) < 0:
            raise ValueError(f"{min(value)} is below 0; use whole numbers from 0 on")
        return value

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name, tasks in self.rows.items():
            if not _NAME.fullmatch(name) or name == BASE:
                raise ValueError(
                    f"the row name {name!r} must be letters, digits, '_', '.' and '-', and not {BASE!r}"
                )
            if not tasks:
                raise ValueError(f"the row {name!r} has no task; name one")
        for key, values in (("columns", self.columns), ("seeds", self.seeds)):
            if len(set(values)) < len(values):
                raise ValueError(f"{key} has a value twice; remove it")
        return self

    @property
    def folder(self) -> Path:
        """The path of the matrix's folder, `output_dir / name`."""
        return self.output_dir.expanduser() / self.name
