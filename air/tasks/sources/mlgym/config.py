"""Reads the files in a checkout of MLGym (a public collection of research tasks) that describe its tasks:
`configs/tasks/*.yaml`, and the config of each data set that such a file names.

Keys that air does not use are ignored. In these files, the path of a data set's config is relative to
`configs/`; paths of data and of starter code are relative to the checkout's root; and the path of an
evaluation script is relative to the workspace, the folder in which the agent works.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from air.config import first_problem

Kind = Literal["csv", "python", "model", "lm"]
KINDS: dict[str, Kind] = {
    "CSVSubmissionTasks": "csv",
    "PythonSubmissionTasks": "python",
    "ModelSubmissionTasks": "model",
    "LMSubmissionTasks": "lm",
}
"""The kind of a task's evaluation, by the name of the class in MLGym that the task's config names. `csv`: the
agent hands in a CSV file, `python`: a Python program, `model`: a trained model, `lm`: a language model."""
_DEFAULT_SECONDS = 3600.0


class Unusable(Exception):
    """Raised if a task in a checkout of MLGym cannot be used. The message gives the reason in one line."""


class _Foreign(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)


class DatasetConfig(_Foreign):
    """MLGym's config of one data set. The data set is a folder of the checkout, or is downloaded from Hugging
    Face."""

    name: str
    """The data set's name; task descriptions show it in upper case."""
    description: str
    """The data set's description for the agent."""
    data_path: str
    """The folder of the data set, relative to the checkout's root, or the data set's id on Hugging Face."""
    is_local: bool = False
    """Whether `data_path` is a folder of the checkout instead of an id on Hugging Face."""


class TaskConfig(_Foreign):
    """MLGym's config of one task, as its YAML file in `configs/tasks` states it."""

    id: str
    """The task's id in MLGym; air uses the name of the config's file instead."""
    name: str
    """The task's title for people."""
    description: str
    """The task's text for the agent; `{dataset_docs}` stands for the descriptions of its data sets."""
    dataset_configs: tuple[str, ...] = ()
    """Paths of the configs of the task's data sets, relative to `configs/`."""
    task_entrypoint: str = "CSVSubmissionTasks"
    """Name of MLGym's class for this kind of task; a key of `KINDS`."""
    training_timeout: float | None = Field(_DEFAULT_SECONDS, gt=0)
    """Time limit of each command of the agent, and of the evaluation, in seconds. None means an hour."""
    starter_code: tuple[str, ...] = ()
    """Files and folders of the checkout that are copied into the workspace, the folder in which the agent
    works."""
    baseline_scores: tuple[dict[str, float], ...] = ()
    """The scores of the baseline, by the metric's name. Only the first dictionary is used."""
    evaluation_paths: tuple[str, ...] = ()
    """Path of the evaluation script, relative to the workspace (the folder in which the agent works). Only
    the first entry is used."""
    evaluation_read_only: bool = False
    """Whether the agent's copy of the evaluation script is write-protected."""

    @property
    def kind(self) -> Kind:
        """The kind of the task's evaluation, such as `csv`; raises Unusable if `task_entrypoint` is not a
        task class of MLGym."""
        if self.task_entrypoint not in KINDS:
            raise Unusable(f"MLGym has no task class {self.task_entrypoint}")
        return KINDS[self.task_entrypoint]

    @property
    def seconds(self) -> float:
        """The time limit of each command of the agent, and of the evaluation, in seconds."""
        return self.training_timeout or _DEFAULT_SECONDS


ForeignT = TypeVar("ForeignT", bound=_Foreign)


def read_task(root: Path, name: str) -> TaskConfig:
    """Reads `configs/tasks/<name>.yaml`; raises Unusable if it is absent or invalid."""
    return _read(TaskConfig, root, f"configs/tasks/{name}.yaml")


def read_datasets(root: Path, task: TaskConfig) -> list[DatasetConfig]:
    """Reads the configs of a task's data sets; raises Unusable if a config is absent or invalid."""
    return [_read(DatasetConfig, root, f"configs/{name}") for name in task.dataset_configs]


def describe(task: TaskConfig, datasets: list[DatasetConfig]) -> str:
    """Returns the task's text for the agent: its description, in which `{dataset_docs}` is replaced by the
    names and descriptions of its data sets.

    Raises Unusable if the text has a placeholder other than `{dataset_docs}`.
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
        data: Any = yaml.safe_load((root / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Unusable(f"there is no {name}") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise Unusable(f"{name} cannot be read: {' '.join(str(error).split())}") from None
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise Unusable(f"{name}: {first_problem(error, data).message}") from None
