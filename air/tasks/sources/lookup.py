"""Finds a task by its id and reads it. A task lies in a folder of tasks in air's own format, in a checkout of
MLGym (a public collection of research tasks), or in a folder in the format of the framework Harbor."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from air import paths
from air.config import read_toml, validate
from air.errors import ConfigError, MissingError
from air.tasks.files import folder_hash
from air.tasks.sources.harbor.settings import HarborSettings
from air.tasks.spec import TaskSpec

if TYPE_CHECKING:
    from air.tasks.sources.mlgym import Checkout

_MLGYM, _HARBOR = "mlgym:", "harbor:"
PREFIXES = ("mlgym", "harbor")
"""The prefixes, before a colon, of the ids of research tasks that are not in air's own format. An id with any
other prefix does not name a research task."""
_SHARED = "_shared"


def load(
    task_id: str,
    roots: Sequence[Path] = (),
    *,
    mlgym_root: Path | None = None,
    harbor: HarborSettings | None = None,
) -> TaskSpec:
    """Finds a task by its id, reads its settings, and returns them.

    `roots` are the folders of tasks in air's own format, in order of search; the default is the folder of
    shipped tasks. An id `mlgym:NAME` is looked up in the MLGym checkout `mlgym_root`, by default the folder
    that the environment variable `AIR_MLGYM_ROOT` names. An id `harbor:PATH` names a Harbor task, for which
    `harbor` holds the settings. Raises MissingError if there is no such task or checkout, and ConfigError,
    which names file and key, if the task's settings are invalid.
    """
    if task_id.startswith(_HARBOR):
        from air.tasks.sources.harbor import source

        return source.load(task_id, harbor or HarborSettings())
    if task_id.startswith(_MLGYM):
        if (checkout := mlgym(mlgym_root)) is None:
            raise MissingError(
                "no checkout of MLGym is named",
                where=f"task {task_id}",
                remedy="set mlgym_root in the run file, --mlgym-root, or AIR_MLGYM_ROOT",
            )
        return checkout.load(task_id.removeprefix(_MLGYM))
    for root in _roots(roots):
        file = root / task_id / "task.toml"
        if _is_name(task_id) and file.is_file():
            return _read(file)
    raise unknown(task_id, available(roots))


def expanded(ids: Sequence[str], harbor: HarborSettings | None = None) -> list[str]:
    """Returns a list like `ids`, in which each id that names a folder or file of Harbor tasks is replaced by
    the ids of these tasks. `harbor` are the settings for Harbor tasks. Does not read the tasks' files. Raises
    MissingError if an id names no task, and ConfigError if a file is invalid."""
    if not any(name.startswith(_HARBOR) for name in ids):
        return list(ids)
    from air.tasks.sources.harbor.ids import expanded

    return expanded(ids, (harbor or HarborSettings()).folder)


def unknown(task_id: str, known: Sequence[str]) -> MissingError:
    """Returns a MissingError for the id `task_id`, which is not among the ids `known`; its text suggests a
    similar id or, if there is none, lists all known ids."""
    if similar := difflib.get_close_matches(task_id, known, n=1):
        return MissingError(f"there is no task {task_id!r}", remedy=f"did you mean {similar[0]!r}?")
    names = ", ".join(known) or "none"
    return MissingError(
        f"there is no task {task_id!r}; known: {names}", remedy="`air tasks` lists them"
    )


def available(roots: Sequence[Path] = ()) -> list[str]:
    """Returns the sorted ids of all tasks in air's own format that lie directly in the folders `roots`, by
    default of those that ship with air. Raises MissingError if a folder does not exist."""
    folders = _roots(roots)
    for folder in folders:
        if not folder.is_dir():
            raise MissingError(
                "no such folder of tasks",
                where=str(folder),
                remedy="correct --task-root, or task_roots in the run file",
            )
    return sorted({file.parent.name for root in folders for file in root.glob("*/task.toml")})


def mlgym(root: Path | None = None) -> Checkout | None:
    """Returns the checkout of MLGym in the folder `root`, by default the folder that the environment variable
    `AIR_MLGYM_ROOT` names. Returns None if there is no `root` and the variable is not set. Raises
    MissingError if the folder is not a checkout of MLGym."""
    from air.tasks.sources.mlgym import find_checkout

    return find_checkout(root)


def _roots(roots: Sequence[Path]) -> list[Path]:
    return [Path(root).expanduser() for root in roots] or [paths.shipped("tasks")]


def _is_name(task_id: str) -> bool:
    return bool(task_id) and Path(task_id).name == task_id and task_id not in (".", "..")


def _read(file: Path) -> TaskSpec:
    folder = file.parent.resolve()
    task = validate(TaskSpec, read_toml(file), where=str(file))
    if task.id != folder.name:
        raise ConfigError(
            f"`id`: is {task.id!r}, but the folder is {folder.name!r}",
            where=str(file),
            remedy="give both the same name",
        )
    script = folder / "grader" / task.grader.script
    if not script.is_file():
        raise ConfigError(f"`grader.script`: there is no {script}", where=str(file))
    shared = _shared_files(task, file)
    return task.set_origin(folder, _task_hash(folder, shared), shared=shared)


def _shared_files(task: TaskSpec, file: Path) -> tuple[Path, ...]:
    """Finds the files that the task's setting `grader.shared` names; they are copied beside the grader's
    program. Returns their paths. `file` is the path of the task's `task.toml`. Raises ConfigError if such a
    file does not exist, or would replace another file of the grader."""
    files: list[Path] = []
    for entry in task.grader.shared:
        folder, _, name = entry.rpartition("/")
        if folder == "starter":
            places = [file.parent / "starter"]
        elif folder == _SHARED:
            places = [file.parent.parent / _SHARED, paths.shipped("tasks") / _SHARED]
        else:
            places = []
        path = next((place / name for place in places if (place / name).is_file()), None)
        if path is None:
            raise ConfigError(
                f"`grader.shared`: there is no file {entry!r}",
                where=str(file),
                remedy=f"name a file as starter/NAME or {_SHARED}/NAME{_choices(places)}",
            )
        if name in [other.name for other in files] or (file.parent / "grader" / name).exists():
            raise ConfigError(
                f"`grader.shared`: {entry!r} would overwrite another {name} of the grader",
                where=str(file),
                remedy="rename one of them",
            )
        files.append(path)
    return tuple(files)


def _choices(places: Sequence[Path]) -> str:
    names = sorted({path.name for place in places if place.is_dir() for path in place.iterdir()})
    return f"; known: {', '.join(names)}" if names else ""


def _task_hash(folder: Path, shared: Sequence[Path]) -> str:
    """Returns the SHA-256, in hex, of the files of a task: all files in its folder `folder`, and those of the
    files `shared` (copied beside its grader) that lie outside it, in a folder `_shared`."""
    own_hash = folder_hash(folder)
    others = [path for path in shared if path.parent.name == _SHARED]
    if not others:
        return own_hash
    digest = hashlib.sha256(own_hash.encode())
    for path in others:
        digest.update(f"\n{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}".encode())
    return digest.hexdigest()
