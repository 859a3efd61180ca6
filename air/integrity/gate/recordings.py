"""Makes hacks of Harbor tasks out of files with recorded trajectories of agents, in ATIF (Agent Trajectory
Interchange Format)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from air import json_lines
from air.errors import ConfigError, MissingError
from air.integrity.gate.hacks import Hack
from air.trajectories.atif.reading import read_recording
from air.trajectories.atif.rules import Object

PREFIX = "trajectory:"
"""The names of hacks that replay a trajectory begin with this text; the name of the file follows."""
LARGEST_FILE = 64 << 20
"""The maximum size of a file with a trajectory, in bytes."""
_FLAW = "the commands of a recorded trajectory earn a reward, and are not the solution"


@dataclass(frozen=True)
class RecordedHacks:
    """The hacks that replay the trajectories in a file or folder."""

    by_task: Mapping[str, list[Hack]]
    """The hacks of each task that has some, by the task's id."""
    skipped: tuple[Path, ...] = ()
    """The files of a folder that contain nothing to replay: trajectories without shell commands, files that
    are no JSON, or are too large. Other JSON files are not listed."""


def read_recorded_hacks(source: Path, folders: Mapping[str, Path]) -> RecordedHacks:
    """Reads trajectories, and returns hacks that replay them, by the id of the task to which they belong.

    `folders` are the folders of the tasks, by id. `source` is a file with one trajectory, which belongs to
    the only task; or a folder. Trajectories in `source/NAME` belong to the task whose folder is `NAME`. If
    there is only one task, and no such folder, all trajectories in `source` belong to it.

    Raises MissingError if `source` does not exist. Raises ConfigError if a trajectory has a wrong structure,
    if no trajectory belongs to a task, or if one belongs to several tasks.
    """
    if not source.exists():
        raise MissingError("does not exist", where=str(source), remedy="check --trajectories")
    if not source.is_dir():
        return RecordedHacks(_read_file(source, folders))
    by_task: dict[str, list[Hack]] = {}
    skipped: list[Path] = []
    for task, folder in _folders_of_tasks(source, folders).items():
        hacks = list(_read_folder(folder, source, skipped))
        if hacks:
            by_task[task] = hacks
    if not by_task:
        raise ConfigError(
            "contains no ATIF trajectory with shell commands of a task that is checked",
            where=str(source),
            remedy=f"put the trajectories into {source}/NAME, where NAME is the task's folder",
        )
    return RecordedHacks(by_task, tuple(skipped))


def _folders_of_tasks(source: Path, folders: Mapping[str, Path]) -> dict[str, Path]:
    """Returns the folders with the trajectories of each task that has one, by the task's id."""
    counts = Counter(folder.name for folder in folders.values())
    found = {}
    for task, folder in folders.items():
        if (source / folder.name).is_dir():
            if counts[folder.name] > 1:
                raise ConfigError(
                    f"{counts[folder.name]} tasks have a folder of this name",
                    where=str(source / folder.name),
                    remedy="check these tasks one by one",
                )
            found[task] = source / folder.name
        elif len(folders) == 1:
            found[task] = source
    return found


def _read_folder(folder: Path, source: Path, skipped: list[Path]) -> Iterator[Hack]:
    """Yields a hack for each trajectory below `folder`, a folder in `source`. Adds the files that contain
    nothing to replay to `skipped`."""
    root = source.resolve()
    for file in sorted(folder.rglob("*.json")):
        if not file.is_file() or not file.resolve().is_relative_to(root):
            continue  # a pipe, or a link out of the folder
        try:
            document = _document(file)
        except ConfigError:
            skipped.append(file)
            continue
        if _is_atif(document):
            hack = _hack(file.relative_to(folder).as_posix(), file, document)
            if hack is None:
                skipped.append(file)
            else:
                yield hack


def _read_file(file: Path, folders: Mapping[str, Path]) -> dict[str, list[Hack]]:
    if len(folders) != 1:
        raise ConfigError(
            f"is one trajectory, and {len(folders)} tasks are checked",
            where=str(file),
            remedy="check one task, or name a folder with a subfolder for each task",
        )
    document = _document(file)
    if not _is_atif(document):
        raise ConfigError(
            "is no trajectory in ATIF: schema_version must begin with `ATIF-v`",
            where=f"{file}: schema_version",
            remedy="name a file such as agent/trajectory.json of a trial of Harbor",
        )
    hack = _hack(file.name, file, document)
    if hack is None:
        raise ConfigError(
            "no tool call contains a shell command or keystrokes",
            where=f"{file}: steps",
            remedy="name a trajectory of an agent that uses a shell",
        )
    return {next(iter(folders)): [hack]}


def _document(file: Path) -> Object:
    """Returns the JSON object in a file; an empty one if the file contains another JSON value."""
    try:
        if file.is_file() and file.stat().st_size > LARGEST_FILE:
            raise ValueError(f"larger than {LARGEST_FILE >> 20} MiB")
        document = json_lines.decode(file.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"is no readable JSON: {error}", where=str(file), remedy="repair or remove this file"
        ) from None
    return document if isinstance(document, dict) else {}


def _is_atif(document: Object) -> bool:
    return str(document.get("schema_version", "")).startswith("ATIF-v")


def _hack(name: str, file: Path, document: Object) -> Hack | None:
    """Returns the hack that replays a trajectory, or None if the trajectory contains nothing to replay."""
    recording = read_recording(document, str(file))
    return Hack(f"{PREFIX}{name}", _FLAW, "", recording=recording) if recording.inputs else None
