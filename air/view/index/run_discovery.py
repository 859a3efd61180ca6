"""Finds the folders of training runs on disk, and reads the runs' settings. The viewer uses it to list
runs."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from air import paths
from air.errors import MissingError
from air.json_lines import parsed
from air.train.coevolve import files as coevolve_files
from air.train.matrix import files as matrix_files
from air.trajectories.importers import import_verifiers

TRACES = "traces.jsonl"
"""The file in which `vf-eval`, the evaluation command of the library `verifiers`, records its episodes."""
LOGS = ("metrics", "groups")
NOT_TRAJECTORIES = (*LOGS, "demos", "traces")
"""Names (without `.jsonl`) of files that may be in the same folder as trajectories (recordings of episodes)
but are not trajectories."""
_PATHS = ("/", "~", "./", "../", "outputs/")
"""The beginnings by which a string in a run's settings is recognized as a path, and distinguished from a
model's hub id."""


@dataclass(frozen=True)
class Run:
    """The folder of a training run or an evaluation, and the name under which the viewer lists it."""

    name: str
    """The run's name, which is unique among the runs that one call of `discover` returns."""
    folder: Path

    def config(self) -> dict[str, Any]:
        """Returns the settings with which the training or evaluation ran; an empty dict if they cannot be
        read."""
        # The file `config.json` of a run of `sft` is that of the trained model.
        for name in ("sft.json", "config.json", "evaluation.json"):
            try:
                return parsed((self.folder / name).read_bytes()) or {}
            except OSError:
                continue
        return {}

    def recorded(self) -> int:
        """Returns the number of the run's trajectory files (recordings of episodes)."""
        inner = self.folder / "trajectories"
        if inner.is_dir():
            return sum(1 for _ in inner.glob("*.jsonl"))
        files = self.folder.glob("*.jsonl")
        return sum(1 for file in files if file.stem not in NOT_TRAJECTORIES)

    def changed(self) -> float:
        """Returns the time at which the run's files last changed, in seconds since the epoch; 0 if the folder
        is gone."""
        times = [0.0]
        for name in ("metrics.jsonl", "sft.json", "config.json", "trajectories", "."):
            try:
                times.append((self.folder / name).stat().st_mtime)
            except OSError:
                continue  # absent, or just removed
        return max(times)


def is_run(folder: Path) -> bool:
    """Returns whether `folder` is a run that the viewer can show: the folder of a training run, a folder that
    directly contains trajectory files (recordings of episodes), or an output folder of the library
    `verifiers`."""
    if (folder / "trajectories").is_dir() or (folder / "metrics.jsonl").is_file():
        return True
    return (folder / TRACES).is_file() or _has_trajectories(folder)


def discover(places: Sequence[Path]) -> list[Run]:
    """Finds the runs (trainings and evaluations) in the folders `places`. Returns them, most recently changed
    first.

    Each of `places` is the folder of a run, an output folder of `air matrix` or `air coevolve` (which consist
    of several runs), or a folder that directly contains such folders. Raises MissingError if a path does not
    exist or contains no run.
    """
    folders: list[Path] = []
    for path in places:
        if not path.is_dir():
            raise MissingError("no such folder", where=str(path), remedy="name a run's folder")
        run_folders = _runs(path) or [
            run for inner in path.iterdir() if inner.is_dir() for run in _runs(inner)
        ]
        if not run_folders:
            raise MissingError(
                "there is no run in it", where=str(path), remedy="name outputs/ or a run's folder"
            )
        folders += run_folders
    unique = list(dict.fromkeys(folder.resolve() for folder in folders))
    names = _names(unique)
    runs = [
        Run(name, _with_trajectories(folder)) for name, folder in zip(names, unique, strict=True)
    ]
    return sorted(runs, key=Run.changed, reverse=True)


def _runs(folder: Path) -> list[Path]:
    """Returns the folders of the runs in `folder`. If `folder` itself is a run, the list contains only
    `folder`. If it is the output folder of `air matrix` or `air coevolve`, the list contains the trainings
    and evaluations of which that output consists. Otherwise, the list is empty."""
    if is_run(folder):
        return [folder]
    inner: list[Path] = []
    if (folder / matrix_files.FILE).is_file():
        inner += (folder / matrix_files.RUNS).glob("*")
    if (folder / coevolve_files.FILE).is_file():
        names = (coevolve_files.PROPOSER, coevolve_files.EXECUTOR, coevolve_files.HELD_OUT)
        rounds = folder.glob(f"{coevolve_files.ROUND}*")
        inner += (one / name for one in rounds for name in names)
    return [path for path in inner if is_run(path)]


def matrices(runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """Reads the results of the matrices to which some of these runs belong. A matrix comes from `air matrix`,
    which trains a model on each of several lists of tasks, and evaluates it on each of several tasks. Returns
    a dict that maps the matrix's folder to the content of its `results.json`."""
    return _results(runs, matrix_files.FILE, matrix_files.JSON_FILE)


def coevolutions(runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """Reads the reports of the co-evolutions to which some of these runs belong. A co-evolution comes from
    `air coevolve`, which trains a model that proposes questions and one that answers them. Returns a dict
    that maps the co-evolution's folder to the content of its report."""
    return _results(runs, coevolve_files.FILE, coevolve_files.JSON_FILE)


def _results(runs: Sequence[Run], file: str, results: str) -> dict[str, dict[str, Any]]:
    """Reads the results of `air matrix` or `air coevolve`, each of which consists of several runs. Returns a
    dict that maps each output folder to the content of the file with its results, for those folders to which
    some of `runs` belong: such a folder is two levels above its runs. `file` is the name of a file by which
    the folder is recognized, and `results` that of the file with the results."""
    found = {}
    parents = [run.folder.parents for run in runs]
    for folder in dict.fromkeys(each[1] for each in parents if len(each) > 1):
        try:
            content = parsed((folder / results).read_bytes()) if (folder / file).is_file() else None
        except OSError:
            continue  # nothing is recorded yet
        if content is not None and content.get("v") == 1:
            found[str(folder)] = content
    return found


def _names(folders: Sequence[Path]) -> list[str]:
    """Returns a short unique name for each folder: as few of the last parts of its path as are needed to
    distinguish it from all others."""
    names = []
    for folder in folders:
        parts = folder.parts
        ends = ["/".join(parts[-count:]) for count in range(1, len(parts))]
        others = [f"/{other}" for other in map(str, folders) if other != str(folder)]
        free = (end for end in ends if not any(other.endswith(f"/{end}") for other in others))
        names.append(next(free, str(folder)))
    return names


def _with_trajectories(folder: Path) -> Path:
    """Returns the folder with the trajectories (recordings of episodes) of the run in `folder`. This is
    `folder` itself, unless it is an output folder of the library `verifiers`. Then its recordings are
    converted to trajectories in a cache folder, which is returned. Raises ConfigError if these recordings are
    invalid."""
    traces = folder / TRACES
    if (folder / "trajectories").is_dir() or not traces.is_file() or _has_trajectories(folder):
        return folder
    state = traces.stat()
    key = hashlib.sha256(f"{traces}\0{state.st_mtime_ns}\0{state.st_size}".encode()).hexdigest()
    target = paths.cache() / "verifiers" / key[:16] / folder.name
    with paths.locked(target.with_suffix(".lock")):
        if not target.is_dir():
            new = target.with_name(f".new-{os.getpid()}")
            shutil.rmtree(new, ignore_errors=True)
            import_verifiers(traces, new / "trajectories")
            new.rename(target)
    return target


def look_up(config: Mapping[str, Any], *path: str) -> Any:
    """Returns the value `config[path[0]][path[1]]…` in nested settings; None if a key is absent."""
    value: Any = config
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def flat(config: object, prefix: str = "") -> dict[str, str]:
    """Converts nested settings to a flat dict: the key is the dotted path of a value, such as `model.name`,
    and the value is JSON text. `prefix` is put before all keys, with a dot."""
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


def differences(one: Mapping[str, str], other: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Compares the settings of two runs, as flat dicts from dotted keys to JSON text. Returns two lists of
    keys whose values differ: first those that differ in substance, then those that differ only in a folder.

    Values differ only in a folder if the key is `output_dir` or `record_dir`, or if they are paths with the
    same last part, such as two copies of one model. A key without a value (null) equals a key that is
    missing. Differences of `run.name` are ignored.
    """
    pairs = {key: (one.get(key, "null"), other.get(key, "null")) for key in {**one, **other}}
    keys = [key for key, (a, b) in pairs.items() if a != b and key != "run.name"]
    paths = [key for key in keys if _same_but_folder(key, one.get(key), other.get(key))]
    return [key for key in keys if key not in paths], paths


def _same_but_folder(key: str, one: str | None, other: str | None) -> bool:
    if key.rpartition(".")[2] in ("output_dir", "record_dir"):
        return True
    first, second = (_last_names(json.loads(value or "null")) for value in (one, other))
    return first is not None and first == second


def _last_names(value: object) -> list[str] | None:
    """Returns the last part of each path in `value`, which is a path or a list of paths. Returns None if
    `value` is something else."""
    paths = value if isinstance(value, list) else [value]
    names = [Path(path).name for path in paths if isinstance(path, str) and path.startswith(_PATHS)]
    return names if names and len(names) == len(paths) else None


def _has_trajectories(folder: Path) -> bool:
    return any(_begins_like_a_trajectory(path) for path in sorted(folder.glob("*.jsonl"))[:3])


def _begins_like_a_trajectory(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            line = parsed(file.readline(1 << 20))
    except OSError:
        return False
    return line is not None and line.get("type") == "start" and "task" in line
