"""Translates task ids of the form `harbor:PATH` to the folders of Harbor tasks, and the id of a set of tasks
to the ids of its tasks.

The id of a task in a folder is `harbor:FOLDER/NAME`. The id of a task in a data set's file is
`harbor:dataset.toml#NAME`, `harbor:registry.json##NAME`, or `harbor:registry.json#DATASET#NAME`. Relative
paths start at the root folder that the settings name (the parameter `root` of the functions). Ids keep paths
as the user wrote them, so records do not reveal more of this machine's folders.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from air.errors import ConfigError, MissingError
from air.tasks.sources.harbor.datasets import TaskPath, find

PREFIX = "harbor:"
_FILES = (".json", ".toml")


def expanded(ids: Iterable[str], root: Path) -> list[str]:
    """Returns the list `ids` with each id that names a set of Harbor tasks, such as `harbor:FOLDER`, replaced
    by the ids of the tasks in this set, such as `harbor:FOLDER/NAME`. Relative paths start at `root`."""
    return [member for name in ids for member in members(name, root)]


def members(task_id: str, root: Path) -> Iterator[str]:
    """Yields the ids of all tasks in the set that an id names, such as `harbor:FOLDER/NAME` for each task in
    `harbor:FOLDER`. Yields the id itself if it names one task, or none of Harbor's format. Does not read the
    tasks' files. Raises MissingError if there is no task, and ConfigError if a data set's file is invalid."""
    text = task_id.removeprefix(PREFIX)
    if text == task_id or _member(text) is not None or (root / text / "task.toml").is_file():
        yield task_id
        return
    found = find(root / text)
    head = text.partition("#")[0]
    for task in found:
        if head.endswith(".json"):
            yield f"{PREFIX}{text}{'#' if '#' in text else '##'}{task.name}"
        elif head.endswith(".toml"):
            yield f"{PREFIX}{text}#{task.name}"
        else:
            yield f"{PREFIX}{text.rstrip('/')}/{task.name}"


def named(task_id: str, root: Path) -> list[TaskPath]:
    """Returns the name and the path of each task that an id names: one task, or all tasks in a set. Raises
    MissingError if there is no such task, and ConfigError if a data set's file is invalid."""
    text = task_id.removeprefix(PREFIX)
    return find(root / text) if _member(text) is None else [locate(task_id, root)]


def locate(task_id: str, root: Path) -> TaskPath:
    """Returns the name and the path of the one task that an id names. Raises MissingError if there is no such
    task, and ConfigError if the id names several tasks."""
    text = task_id.removeprefix(PREFIX)
    if (member := _member(text)) is not None:
        file, name = member
        for task in find(root / file):
            if task.name == name:
                return task
        raise MissingError(f"holds no task {name!r}", where=file, remedy="check the name")
    found = find(root / text)
    if len(found) > 1 or not (root / text / "task.toml").is_file():
        first = next(members(task_id, root))
        raise ConfigError(
            f"names {len(found)} tasks", where=task_id, remedy=f"name one, such as {first}"
        )
    return found[0]


def _member(text: str) -> tuple[str, str] | None:
    """Splits `text`, the part of an id after `harbor:`, into a data set's file and a task's name:
    `registry.json#DATASET#NAME` gives (`registry.json#DATASET`, NAME). Returns None if `text` does not name a
    task in such a file."""
    file, mark, name = text.rpartition("#")
    head = file.partition("#")[0]
    if not mark or not head.endswith(_FILES) or (head.endswith(".json") and "#" not in file):
        return None
    return file.removesuffix("#"), name
