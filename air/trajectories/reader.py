"""Finds and reads trajectory files, which contain the records of episodes, of all versions of the format."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from air import json_lines
from air.errors import ConfigError, MissingError
from air.trajectories.schema import VERSION, End, Start, Step, Trajectory, Validation, parse


def trajectory_files(path: Path) -> list[Path]:
    """Returns the trajectory files (records of episodes) at `path`, sorted by name.

    `path` is a trajectory file, a run's folder (with a subfolder `trajectories`), or a folder of
    trajectories, whose subfolders are not searched. Raises MissingError if there is no trajectory.
    """
    if path.is_file():
        return [path]
    inner = path / "trajectories"
    files = sorted((inner if inner.is_dir() else path).glob("*.jsonl"))
    if not files:
        raise MissingError(
            "has no trajectories", where=str(path), remedy="name a run's folder, or its record_dir"
        )
    return files


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yields each line of a trajectory file as a dictionary. A half-written last line is skipped.

    Raises ConfigError if the file cannot be read, a line is not a JSON object, or a line's version is newer
    than `VERSION`.
    """
    for place, line in json_lines.read(path):
        if not isinstance(line, dict) or not isinstance(line.get("v", 0), int):
            raise ConfigError("not a line of a trajectory", where=place)
        if line.get("v", 0) > VERSION:
            raise ConfigError(
                f"trajectory version {line['v']} is newer than this air reads ({VERSION})",
                where=place,
                remedy="update air",
            )
        yield line


def load(path: Path | str) -> Trajectory:
    """Reads a trajectory file. A half-written last line is skipped.

    Raises ConfigError if the file cannot be read or is not a trajectory.
    """
    path = Path(path)
    start: Start | None = None
    end: End | None = None
    steps: list[Step] = []
    validations: list[Validation] = []
    version = 0
    for number, raw in enumerate(read(path), start=1):
        version = version or int(raw.get("v", 0))
        line = parse(raw, where=f"{path}:{number}")
        if isinstance(line, Start):
            start = line
        elif isinstance(line, Step):
            steps.append(line)
        elif isinstance(line, Validation):
            validations.append(line)
        elif isinstance(line, End):
            end = line
    return Trajectory(path, version, start, tuple(steps), tuple(validations), end)
