"""Maps ids `harbor:PATH` to Harbor's task folders, and sets of tasks to the ids of their members.

A member of a folder is `harbor:FOLDER/NAME`; one of a data set's file is `harbor:dataset.toml#NAME`,
`harbor:registry.json##NAME`, or `harbor:registry.json#DATASET#NAME`. Relative paths begin at a root that the
settings name, so an id holds no more of a machine's folders than the user wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from air.errors import ConfigError, MissingError
from air.tasks.sources.harbor.datasets import TaskPath, find

PREFIX = "harbor:"
_FILES = (".json", ".toml")


def expanded(ids: Iterable[str], root: Path) -> list[str]:
    """Returns the ids with each one that names a set of Harbor tasks replaced by those of its members."""
    return [member for name in ids for member in members(name, root)]


def members(task_id: str, root: Path) -> Iterator[str]:
    """Yields the ids of the tasks that an id names: itself, unless it names a set of Harbor tasks. Reads no
    task. Raises MissingError if there is none, and ConfigError if a data set's file is invalid."""
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


def locate(task_id: str, root: Path) -> TaskPath:
    """Returns where the one task of an id lies. Raises MissingError if there is none, and ConfigError if the
    id names several."""
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
    """Returns the data set's file and the task's name, if `text` names a member of a data set's file."""
    file, mark, name = text.rpartition("#")
    head = file.partition("#")[0]
    if not mark or not head.endswith(_FILES) or (head.endswith(".json") and "#" not in file):
        return None
    return file.removesuffix("#"), name
