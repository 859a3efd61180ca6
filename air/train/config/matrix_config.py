"""Defines the settings in a file (TOML) of the command `air matrix`: train on each row, play every column."""

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
    """Settings in the table `[evaluation]` of a matrix: how each cell is played."""

    episodes: int = Field(100, ge=1)
    """Number of episodes of each cell and seed. Episodes of worlds have seeds that are kept for evaluations,
    the same seeds in all cells of a column. A finished matrix may be continued with a larger number."""
    temperature: float | None = Field(None, ge=0, le=2.0)
    """Sampling temperature. None: the temperature of the training."""


class MatrixConfig(BaseConfig):
    """All settings in a file of the command `air matrix`."""

    name: str = "matrix"
    """The name of the matrix; its folder is `output_dir / name`."""
    output_dir: Path = Path("outputs")
    """The folder that contains the matrix's folder."""
    run_files: list[Path] = Field(default_factory=list)
    """The run files (TOML) of `rl` with the settings of each training; a later one wins. They have one source
    of prompts, whose tasks the rows replace. A path `configs/…` also finds air's own files."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Keys of run files that win over `run_files`, such as `max_steps`, or `model.name`."""
    rows: dict[str, list[str]] = Field(min_length=1)
    """The tasks that each row's model is trained on, by the row's name."""
    columns: list[str] = Field(min_length=1)
    """The tasks that every row's model plays."""
    base: bool = True
    """Whether there is a row `base`, of the model from which the trainings start."""
    seeds: list[int] = Field(default=[0], min_length=1)
    """The seeds (`embedded.seed`) with which each row is trained."""
    evaluation: MatrixEvaluationConfig = MatrixEvaluationConfig()
    """How each cell is played."""

    @field_validator("name")
    @classmethod
    def _names_a_folder(cls, value: str) -> str:
        if not _NAME.fullmatch(value):
            raise ValueError(
                f"{value!r} must be letters, digits, '_', '.' and '-': it names a folder"
            )
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
