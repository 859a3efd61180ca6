"""Finds the folders of training runs on disk and reads their `config.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from air.errors import MissingError
from air.json_lines import parsed


@dataclass(frozen=True)
class Run:
    """The folder of a training run, and the name under which the viewer lists the run."""

    name: str
    """The run's name; unique among the runs that `discover` found together."""
    folder: Path

    def config(self) -> dict[str, Any]:
        """Returns the content of the run's `config.json`, or an empty dict if it cannot be read."""
        try:
            return parsed((self.folder / "config.json").read_bytes()) or {}
        except OSError:
            return {}

    def recorded(self) -> int:
        """Returns the number of the run's trajectory files."""
        folder = self.folder / "trajectories"
        return sum(1 for _ in (folder if folder.is_dir() else self.folder).glob("*.jsonl"))

    def changed(self) -> float:
        """Returns the time of the run's last change, in seconds since the epoch; 0 if its folder is gone."""
        times = [0.0]
        for name in ("metrics.jsonl", "config.json", "trajectories", "."):
            try:
                times.append((self.folder / name).stat().st_mtime)
            except OSError:
                continue  # absent, or just removed
        return max(times)


def is_run(folder: Path) -> bool:
    """Whether a folder is the folder of a training run, or holds trajectory files directly."""
    if (folder / "trajectories").is_dir() or (folder / "metrics.jsonl").is_file():
        return True
    return any(_begins_like_a_trajectory(path) for path in sorted(folder.glob("*.jsonl"))[:3])


def discover(paths: Sequence[Path]) -> list[Run]:
    """Returns the training runs in the folders `paths`, most recently changed first.

    Each path is a run's folder, or a folder that directly contains runs. Raises MissingError if a path does
    not exist or contains no run.
    """
    folders: list[Path] = []
    for path in paths:
        if not path.is_dir():
            raise MissingError("no such folder", where=str(path), remedy="name a run's folder")
        run_folders = (
            [path] if is_run(path) else [p for p in path.iterdir() if p.is_dir() and is_run(p)]
        )
        if not run_folders:
            raise MissingError(
                "there is no run in it", where=str(path), remedy="name outputs/ or a run's folder"
            )
        folders += run_folders
    unique = list(dict.fromkeys(folder.resolve() for folder in folders))
    short = [folder.name for folder in unique]
    runs = [
        Run(folder.name if short.count(folder.name) == 1 else str(folder), folder)
        for folder in unique
    ]
    return sorted(runs, key=Run.changed, reverse=True)


def look_up(config: Mapping[str, Any], *path: str) -> Any:
    """Returns the value `config[path[0]][path[1]]…` of a nested config, or None if a key is absent."""
    value: Any = config
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def flat(config: object, prefix: str = "") -> dict[str, str]:
    """Flattens a nested config to dotted keys (`model.name`, after `prefix`) with values as JSON text."""
    if isinstance(config, Mapping) and config:
        pairs = [(str(key), value) for key, value in config.items()]
    elif isinstance(config, list) and any(isinstance(one, Mapping) for one in config):
        pairs = [(str(number), value) for number, value in enumerate(config)]
    else:
        return {prefix: json.dumps(config, ensure_ascii=False)}
    values: dict[str, str] = {}
    for key, value in pairs:
        values |= flat(value, f"{prefix}.{key}" if prefix else key)
    return values


def _begins_like_a_trajectory(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            line = parsed(file.readline(1 << 20))
    except OSError:
        return False
    return line is not None and line.get("type") == "start" and "task" in line
