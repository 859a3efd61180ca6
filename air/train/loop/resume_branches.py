"""Preserves a run's results when the run resumes from an earlier step: moves the later results into a folder,
called a branch.

If a run resumes from step N, its results after step N move into the folder `branches/after_step_N/` of the
run's folder: checkpoints, trajectories, evaluations, recorded tokens, and lines of `metrics.jsonl`,
`groups.jsonl` and `evaluations.jsonl`. If it repeats steps, its id on Weights & Biases moves, too, so that it
continues there under a new one. A branch is itself the folder of a run, with a `config.json`, so
commands can read and resume it. Nothing is deleted. If a process is killed while it moves results into a
branch, the next resume moves the rest.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from air import json_lines, paths
from air.errors import UsageError
from air.train.loop.run_folder import (
    CHECKPOINTS,
    EVALUATIONS,
    METRICS_FILE,
    TRAJECTORIES,
    evaluation_folder,
    read_config,
    step_folder,
    steps,
    write_config,
)
from air.train.loop.step_logs import group_log
from air.train.monitors import wandb_file
from air.trajectories import evaluations, metric_rows, trained_tokens
from air.trajectories.artefacts import copy_artefact

FOLDER = "branches"
Line = dict[str, Any]


@dataclass(frozen=True)
class _Lines:
    """The lines of a JSON-lines file of a run, divided at the step from which the run resumes: the field
    `kept` has the lines up to this step, the field `later` those after it."""

    kept: list[Line] = field(default_factory=list)
    later: list[Line] = field(default_factory=list)


def move_later_results(folder: Path, step: int) -> Path | None:
    """Moves the results that the run in `folder` made after training step `step` into a new folder under
    `branches/` in the run's folder, so that a resumed run does not overwrite them.

    Returns the new folder, or None if there is nothing to move. If `step` is 0, moves all results. Raises
    UsageError if a line of `metrics.jsonl`, `groups.jsonl` or `evaluations.jsonl` has no step; the error
    names the line.
    """
    # An evaluation before the first step is moved only if the whole run is moved (step 0).
    last = step or -1
    names = (METRICS_FILE, group_log.FILE, evaluations.FILE)
    files = {name: _split_at_step(folder / name, last) for name in names}
    evaluated = _later_evaluations(folder, files[evaluations.FILE])
    checkpoints = [number for number in steps(folder / CHECKPOINTS) if number > step]
    episodes = _later_episodes(folder / TRAJECTORIES, step, files[group_log.FILE])
    tokens = [number for number in trained_tokens.recorded_steps(folder) if number > step]
    moved = [checkpoints, episodes, tokens, evaluated, *(lines.later for lines in files.values())]
    if not any(moved):
        return None
    branch = _new_branch(folder, step)
    # Checkpoints first: a resume takes the newest checkpoint, so no later one may remain behind.
    for number in reversed(checkpoints):
        source = step_folder(folder / CHECKPOINTS, number)
        _move(source, step_folder(branch / CHECKPOINTS, number))
    for number in tokens:
        _move(trained_tokens.file_of(folder, number), trained_tokens.file_of(branch, number))
    for path in episodes:
        _move_episode(path, branch / TRAJECTORIES)
    for path in evaluated:
        _move(path, branch / EVALUATIONS / path.name)
    # Before the lines: if the process is killed between the two, they still say that steps are repeated.
    if files[METRICS_FILE].later and wandb_file(folder).is_file():
        _move(wandb_file(folder), wandb_file(branch))
    for name, lines in files.items():
        if lines.later:
            _write(branch / name, lines.later)
            _write(folder / name, lines.kept)
    return branch


def metrics(folder: Path) -> list[Line]:
    """Returns the lines of the run's `metrics.jsonl`; an empty list if there is no such file."""
    return metric_rows.read(folder / METRICS_FILE)


def _split_at_step(path: Path, step: int) -> _Lines:
    """Reads the JSON-lines file `path` and divides its lines at training step `step`. If the last line is
    incomplete, rewrites the file without this line. Raises UsageError if a line has no step."""
    lines = _Lines()
    if not path.is_file():
        return lines
    for place, row in json_lines.read(path):
        number = row.get("step") if isinstance(row, dict) else None
        if not isinstance(number, int | float):
            raise UsageError("the line has no number `step`", where=place, remedy="delete the line")
        (lines.kept if number <= step else lines.later).append(row)
    if not path.read_bytes().endswith(b"\n"):  # a killed process wrote half a line
        _write(path, lines.kept + lines.later)
    return lines


def _write(path: Path, lines: list[Line]) -> None:
    paths.write_whole(path, "".join(json.dumps(line) + "\n" for line in lines).encode())


def _new_branch(folder: Path, step: int) -> Path:
    """Creates and returns a new folder under `branches/` in the run's folder, into which the results after
    training step `step` are moved. Writes the run's config into this folder, changed so that it describes a
    run of its own with the new folder's path and name."""
    for number in itertools.count(1):
        branch = folder / FOLDER / (f"after_step_{step}" + (f"-{number}" if number > 1 else ""))
        try:
            branch.mkdir(parents=True)
            break
        except FileExistsError:
            continue
    if config := read_config(folder):
        config |= {"output_dir": str(branch.parent), "run": {"name": branch.name}, "resume": None}
        write_config(branch, json.dumps(config, indent=2))
    return branch


def _later_episodes(folder: Path, step: int, groups: _Lines) -> list[Path]:
    """Returns the paths of the trajectory files in `folder` whose episodes were played after training step
    `step`.

    `groups` has the lines of `groups.jsonl`, which list most episodes. An episode is missing there if it was
    repeated after a failure, or if its step was interrupted. Then the training step is read from its
    trajectory file. A trajectory file of an older version of air does not state the step; such an episode
    counts as later if it began after the last listed episode of step `step` ended, because older versions
    never ran episodes of two steps at the same time.
    """
    if not folder.is_dir() or (step and not groups.kept):  # older versions of air wrote no groups
        return []
    kept, later = set(_members(groups.kept)), set(_members(groups.later))
    last = groups.kept[-1]["step"] if groups.kept else 0
    played = [folder / f"{name}.jsonl" for name in _members(groups.kept, last)]
    ended = max((_end_time(path) for path in played if path.is_file()), default=0.0)
    return [
        path
        for path in sorted(folder.glob("*.jsonl"))
        if path.stem not in kept and (path.stem in later or _is_later(path, step, ended))
    ]


def _later_evaluations(folder: Path, lines: _Lines) -> list[Path]:
    """Returns the folders of the evaluations that must be moved when the run in `folder` resumes from an
    earlier step. These are all evaluations without a line in `lines.kept`: they were made after that step, or
    are not finished. `lines` are the lines of `evaluations.jsonl`, divided at that step."""
    kept = {evaluation_folder(folder, line["step"]) for line in lines.kept}
    root = folder / EVALUATIONS
    return sorted(path for path in root.glob("step_*") if path not in kept)


def _members(groups: list[Line], step: int | None = None) -> Iterator[str]:
    """Yields the names of the episodes in `groups`, which are lines of `groups.jsonl`. An episode has the
    name of its trajectory file, without `.jsonl`. If `step` is given, yields only the episodes of this
    training step."""
    for group in groups:
        if step is None or group["step"] == step:
            played = [*group.get("episodes", []), group.get("greedy") or {}]
            yield from (one["episode"] for one in played if one.get("episode"))


def _lines(path: Path) -> Iterator[Line]:
    """Yields the lines of a trajectory file as dicts. Skips a line that a killed process wrote
    incompletely."""
    with path.open("rb") as file:
        yield from (line for text in file if (line := json_lines.parsed(text)) is not None)


def _move(source: Path, target: Path) -> None:
    target.parent.mkdir(exist_ok=True)
    source.rename(target)


def _is_later(path: Path, step: int, ended: float) -> bool:
    """Returns whether the episode of the trajectory file `path`, which no line of `groups.jsonl` lists, was
    played after training step `step`. `ended` is the time (seconds since the epoch) at which the last episode
    of that step ended. A file without a complete line counts as later."""
    first = next(_lines(path), None)
    if first is None:
        return True
    training_step = first.get("training_step")
    if isinstance(training_step, int):
        return training_step > step
    return float(first.get("t") or 0) > ended


def _end_time(path: Path) -> float:
    return max((float(line.get("t") or 0) for line in _lines(path)), default=0.0)


def _move_episode(path: Path, target: Path) -> None:
    """Moves the trajectory file `path` and its trace file (the same episode as the library `verifiers`
    recorded it) into the folder `target`. The episode's artefacts (graded files) are copied to `target` and
    also remain in the old folder, because other episodes may use the same artefacts."""
    target.mkdir(exist_ok=True)
    for line in _lines(path):
        tested = line.get("test")
        for record in (line, tested if isinstance(tested, dict) else {}):
            if kept := record.get("kept"):
                copy_artefact(path.parent, str(kept), target)
        if (trace := line.get("trace_file")) and (source := path.parent / trace).is_file():
            _move(source, target / trace)
    _move(path, target / path.name)
