"""MLGym's own configuration files, read as they are: `configs/tasks/*.yaml` and what they name.

Keys that are without effect upstream are ignored. Paths of dataset configs are relative to `configs/`, of
data and starter code to the checkout's root, of evaluation and baseline scripts to the workspace.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from air.config import first_bad_key

Kind = Literal["csv", "python", "model", "lm"]
KINDS: dict[str, Kind] = {
    "CSVSubmissionTasks": "csv",
    "PythonSubmissionTasks": "python",
    "ModelSubmissionTasks": "model",
    "LMSubmissionTasks": "lm",
}
"""How each of MLGym's task classes evaluates."""
_DEFAULT_SECONDS = 3600.0


class Unusable(Exception):
    """Why a task of the checkout cannot be used, in one line."""


class _Foreign(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)


class DatasetConfig(_Foreign):
    """One data set: a folder of the checkout, or the id of one on a hub."""

    name: str
    """Its name, upper-cased in descriptions."""
    description: str
    """What the agent is told of it."""
    data_path: str
    """A folder, relative to the checkout's root, or the hub's id."""
    is_local: bool = False
    """Whether `data_path` is a folder."""


class TaskConfig(_Foreign):
    """One task, as its YAML file states it."""

    id: str
    """MLGym's id; the config's file name is what air goes by."""
    name: str
    """A title for people."""
    description: str
    """What the agent is told; `{dataset_docs}` stands for the data sets' descriptions."""
    dataset_configs: tuple[str, ...] = ()
    """Files of data sets, relative to `configs/`."""
    task_entrypoint: str = "CSVSubmissionTasks"
    """MLGym's task class."""
    training_timeout: float | None = Field(_DEFAULT_SECONDS, gt=0)
    """Longest run of a command, and of the evaluation, in seconds."""
    starter_code: tuple[str, ...] = ()
    """Files and folders laid into the workspace."""
    baseline_scores: tuple[dict[str, float], ...] = ()
    """What the baseline scores, by metric; the first entry counts."""
    evaluation_paths: tuple[str, ...] = ()
    """The evaluation script; the first entry counts."""
    evaluation_read_only: bool = False
    """Whether the agent's copy of the evaluation script is write-protected."""

    @property
    def kind(self) -> Kind:
        """How it is evaluated.

        Raises:
            Unusable: MLGym has no such task class.
        """
        if self.task_entrypoint not in KINDS:
            raise Unusable(f"MLGym has no task class {self.task_entrypoint}")
        return KINDS[self.task_entrypoint]

    @property
    def seconds(self) -> float:
        """The time limit in seconds."""
        return self.training_timeout or _DEFAULT_SECONDS


ForeignT = TypeVar("ForeignT", bound=_Foreign)


def read_task(root: Path, name: str) -> TaskConfig:
    """Reads `configs/tasks/<name>.yaml`.

    Raises:
        Unusable: it is absent, no YAML, or lacks a key.
    """
    return _read(TaskConfig, root, f"configs/tasks/{name}.yaml")


def read_datasets(root: Path, task: TaskConfig) -> list[DatasetConfig]:
    """Reads the data sets that a task names.

    Raises:
        Unusable: one is absent, no YAML, or lacks a key.
    """
    return [_read(DatasetConfig, root, f"configs/{name}") for name in task.dataset_configs]


def describe(task: TaskConfig, datasets: list[DatasetConfig]) -> str:
    """The description with its data sets' filled in.

    Raises:
        Unusable: it has a placeholder other than `{dataset_docs}`.
    """
    docs = "".join(f"{d.name.upper()}:\n{d.description}\n\n" for d in datasets)
    try:
        return task.description.format(dataset_docs=docs)
    except (LookupError, ValueError) as error:
        raise Unusable(
            f"its description has a placeholder that MLGym does not fill: {error}"
        ) from None


def _read(kind: type[ForeignT], root: Path, name: str) -> ForeignT:
    import yaml

    try:
        found: Any = yaml.safe_load((root / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Unusable(f"there is no {name}") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise Unusable(f"{name} cannot be read: {' '.join(str(error).split())}") from None
    try:
        return kind.model_validate(found)
    except ValidationError as error:
        raise Unusable(f"{name}: {first_bad_key(error, found).message}") from None
