"""Finds the Harbor tasks that a path names. The path is a task's folder, a folder of such folders, or a file
that lists the tasks of a data set."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import Field, TypeAdapter, ValidationError

from air.config import BaseConfig, first_problem, read_toml, validate
from air.errors import ConfigError, MissingError
from air.tasks.sources.harbor.folder import HarborFolder, read
from air.tasks.sources.harbor.schema import Author


@dataclass(frozen=True)
class TaskPath:
    """The name and path of one Harbor task. The task's files are read only when `read` is called."""

    name: str
    """The task's name in its data set, or its folder's name."""
    path: Path
    """The task's folder."""
    digest: str = ""
    """The digest of the task's files that the data set states, as `sha256:…`; empty if it states none."""

    def read(self) -> HarborFolder:
        """Reads the task's folder. Raises MissingError if it has no `task.toml`, and ConfigError if the task
        is invalid or its files have another digest than the data set states."""
        folder = read(self.path)
        if self.digest and (self.path / ".gitignore").is_file():
            raise ConfigError(
                "a .gitignore decides which files the digest counts, and is not read",
                where=str(self.path),
                remedy="remove it, or name the task's folder instead of the data set",
            )
        if self.digest and folder.digest != self.digest:
            raise ConfigError(
                f"its files have the digest {folder.digest}, but the data set states {self.digest}",
                where=str(self.path),
                remedy="fetch the task again, in the version that the data set names",
            )
        return folder


class _RegistryTask(BaseConfig):
    name: str
    git_url: str | None = None
    git_commit_id: str | None = None
    path: Path


class _RegistryDataset(BaseConfig):
    name: str
    version: str = ""
    description: str = ""
    tasks: tuple[_RegistryTask, ...]
    metrics: tuple[dict[str, Any], ...] = ()


class _DatasetTask(BaseConfig):
    name: str
    digest: str = Field(pattern=r"^sha256:[0-9a-f]{64}$")


class _DatasetFile(BaseConfig):
    path: str
    digest: str = ""


class _DatasetInfo(BaseConfig):
    name: str
    version: str | None = None
    description: str = ""
    authors: tuple[Author, ...] = ()
    keywords: tuple[str, ...] = ()


class _Dataset(BaseConfig):
    dataset: _DatasetInfo
    tasks: tuple[_DatasetTask, ...] = ()
    files: tuple[_DatasetFile, ...] = ()


def find(path: Path) -> list[TaskPath]:
    """Returns the tasks that `path` names, sorted by name. Does not read the tasks' files.

    `path` is a task's folder, a folder of such folders, a `dataset.toml` beside them, or a `registry.json`
    whose tasks have local paths. If the registry has several data sets, `registry.json#NAME` names one of
    them. Raises MissingError if no task is found, and ConfigError if a file is invalid."""
    path, _, dataset = _split(path.expanduser())
    if path.suffix in (".json", ".toml"):
        found = list(_of_file(path, dataset, _version(path)))
    elif (path / "task.toml").is_file():
        found = [TaskPath(path.resolve().name, path)]
    else:
        found = [TaskPath(file.parent.name, file.parent) for file in path.glob("*/task.toml")]
    if not found:
        raise MissingError(
            "holds no Harbor task",
            where=str(path),
            remedy="name a folder with task.toml, a folder of such folders, dataset.toml or registry.json",
        )
    return sorted(found, key=lambda task: task.name)


def _version(file: Path) -> tuple[int, ...]:
    """Returns three numbers from the status of a file (inode, size and modification time), which change if
    the file is written again or replaced. Returns an empty tuple if there is no such file."""
    if not file.is_file():
        return ()
    status = file.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


@lru_cache(maxsize=16)
def _of_file(file: Path, dataset: str, version: tuple[int, ...]) -> tuple[TaskPath, ...]:
    """Returns the tasks that a data set's file lists. `dataset` is the name of a data set in a registry;
    empty if there is only one. The result is cached, because a run can look up thousands of tasks in one
    file. `version` changes if the file changes; it is only a part of the cache's key, so that a changed file
    is read again."""
    return tuple(_of_registry(file, dataset) if file.suffix == ".json" else _of_dataset(file))


def _split(path: Path) -> tuple[Path, str, str]:
    before, mark, dataset = str(path).rpartition("#")
    return (Path(before), mark, dataset) if mark and not path.exists() else (path, "", "")


def _of_registry(file: Path, dataset: str) -> Iterator[TaskPath]:
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        raise MissingError("no such file", where=str(file), remedy="check the path") from None
    try:
        rows = TypeAdapter(tuple[_RegistryDataset, ...]).validate_json(data)
    except ValidationError as error:
        bad = first_problem(error, data)
        raise ConfigError(bad.message, where=str(file), remedy=bad.remedy) from None
    names = [row.name for row in rows]
    chosen = [row for row in rows if row.name == dataset or (not dataset and len(rows) == 1)]
    if not chosen:
        raise ConfigError(
            f"there is no data set {dataset!r}" if dataset else "there are several data sets",
            where=str(file),
            remedy=f"name one as {file.name}#NAME: {', '.join(names)}",
        )
    for task in chosen[-1].tasks:
        if task.git_url is not None:
            raise ConfigError(
                f"the task {task.name!r} lies in a git repository, which is not fetched",
                where=str(file),
                remedy=f"clone {task.git_url} and name its folder",
            )
        yield TaskPath(task.name, file.parent / task.path)


def _of_dataset(file: Path) -> Iterator[TaskPath]:
    data = validate(_Dataset, read_toml(file), where=str(file))
    for task in data.tasks:
        folder = file.parent / task.name.rpartition("/")[2]
        yield TaskPath(task.name, folder, task.digest)
