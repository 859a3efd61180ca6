"""Recorded runs compared: best attempts and last submissions per task and method, profiles and AUP.

A method is one model in one run. Its score on a task is the best over its episodes, as published tables
have it (best of four), once of each episode's best attempt, once of its last submission; so methods are
only comparable at equal numbers of episodes, which the rows show.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from air.errors import ConfigError, MissingError, boundary
from air.trajectories.outcome import Outcome, Start, outcome
from air.trajectories.performance_profile import BASELINE, Profiles, TaskScores, profiles
from air.trajectories.record import trajectory_files

VIEWS: dict[str, Callable[[Outcome], float | None]] = {
    "best_attempt": lambda one: one.best,
    "last_submission": lambda one: one.last,
}
"""Which of an episode's scores counts."""


@dataclass(frozen=True)
class Run:
    """What one run recorded."""

    path: Path
    outcomes: tuple[Outcome, ...]
    """Its episodes, oldest first; those without an end come last."""
    steps: tuple[dict[str, Any], ...]
    """The rows of its `metrics.jsonl`; none where it was no training run."""

    def counts(self) -> dict[str, int]:
        """Episodes by how they ended."""
        return {
            how: sum(1 for one in self.outcomes if one.how == how)
            for how in ("well", "failed", "unfinished")
        }

    def terms(self) -> dict[str, float]:
        """The mean of each term of the reward; they add up to the mean reward."""
        well = [one for one in self.outcomes if one.how == "well"]
        names = dict.fromkeys(name for one in well for name in one.terms)
        return {name: fmean(one.terms.get(name, 0.0) for one in well) for name in names}

    def rewards(self) -> tuple[float | None, float | None]:
        """The mean reward of the first and the last quarter of its steps."""
        quarter = max(1, len(self.steps) // 4)
        parts = (self.steps[:quarter], self.steps[-quarter:])
        means = [[r for row in part if (r := row.get("reward")) is not None] for part in parts]
        first, last = (fmean(values) if values else None for values in means)
        return first, last


@dataclass(frozen=True)
class Row:
    """One method on one task."""

    task: str
    method: str
    n: int
    """Episodes that ended well."""
    scored: int
    """Those of them with a score; mean, best and standard error are over these."""
    mean: float | None
    best: float | None
    stderr: float | None
    """Of the mean, s/√n; None of fewer than two."""
    test: float | None
    """The mean test score of the last artefacts."""


@dataclass(frozen=True)
class Report:
    """All that is reported of some runs."""

    tasks: dict[str, Start]
    """What was played, by id."""
    methods: dict[str, str]
    """The model of each method."""
    rows: dict[str, list[Row]]
    """By view; sorted by task, then in the order of the runs."""
    profiles: dict[str, Profiles]
    """By view."""
    notes: list[str]
    """What must be known to read it."""


def read_run(path: Path, *, last: int | None = None) -> Run:
    """Reads a run's folder: `trajectories/`, or a folder of trajectories itself, and `metrics.jsonl`.

    Args:
        last: take only so many of the latest episodes of each task and model that ended well.

    Raises:
        MissingError: there is no such folder, or it has no trajectory.
        ConfigError: a file in it is not what it should be.
    """
    if not path.is_dir():
        raise MissingError("no such run", where=str(path), remedy="name a folder of outputs/")
    inner, files = path / "trajectories", trajectory_files(path)
    found = sorted(map(outcome, files), key=lambda one: one.ended or math.inf)
    steps = _steps(path / "metrics.jsonl") if inner.is_dir() else ()
    return Run(path, tuple(found if last is None else _latest(found, last)), steps)


def _latest(outcomes: Sequence[Outcome], count: int) -> list[Outcome]:
    """The last `count` of each task and model that ended well, and all that did not."""
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for one in outcomes:
        if one.how == "well" and one.start is not None:
            groups.setdefault((one.start.task, one.start.model), []).append(one)
    others = [one for one in outcomes if one.how != "well"]
    return [one for group in groups.values() for one in group[-count:]] + others


def _steps(path: Path) -> tuple[dict[str, Any], ...]:
    """The rows of `metrics.jsonl`; a half-written last one is skipped."""
    if not path.is_file():
        return ()
    with boundary(ConfigError, f"cannot read {path}", OSError):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    rows = []
    for number, line in enumerate(lines, start=1):
        where = f"{path}:{number}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            if number == len(lines):
                break
            raise ConfigError("not JSON", where=where) from None
        reward = row.get("reward") if isinstance(row, dict) else ""
        if reward is not None and not (isinstance(reward, int | float) and math.isfinite(reward)):
            raise ConfigError("is no row of metrics", where=where)
        rows.append(row)
    return tuple(rows)


def compare(runs: Sequence[Run]) -> Report:
    """The report of these runs.

    Raises:
        ConfigError: a task was recorded with two metrics, directions or baselines, so that its scores
            cannot be compared; or no episode ended well.
    """
    notes: list[str] = []
    played = _by_method(runs)
    if not played:
        raise ConfigError(
            "no episode of them ended well", where="runs", remedy="their log.txt says why"
        )
    tasks = _tasks(runs, notes)
    methods = {method: group[0][1] for method, group in played.items()}
    _note_methods(played, tasks, notes)
    views = {
        view: _rows(played, sorted(tasks), tasks, score, last=view == "last_submission")
        for view, score in VIEWS.items()
    }
    found = {view: profiles(_scores(tasks, rows), list(methods)) for view, rows in views.items()}
    for task in next(iter(found.values())).left_out:
        notes.append(f"{task}: no score is feasible, so it is left out of the profiles")
    return Report(tasks, methods, views, found, notes)


Played = dict[str, list[tuple[Outcome, str]]]
"""Episodes that ended well, each with its model, by method."""


def _by_method(runs: Sequence[Run]) -> Played:
    names = _names(runs)
    played: Played = {}
    for run, name in zip(runs, names, strict=True):
        well = [(one, one.start.model) for one in run.outcomes if one.how == "well" and one.start]
        several = len({model for _, model in well}) > 1
        for one, model in well:
            played.setdefault(f"{name} {model}" if several else name, []).append((one, model))
    return played


def _names(runs: Sequence[Run]) -> list[str]:
    """What to call each run: its folder's name, or its path where another one is called so."""
    short = [run.path.resolve().name for run in runs]
    return [
        str(run.path.resolve()) if short.count(name) > 1 or name == BASELINE else name
        for run, name in zip(runs, short, strict=True)
    ]


def _tasks(runs: Sequence[Run], notes: list[str]) -> dict[str, Start]:
    """What was played; each task must have been the same everywhere."""
    tasks: dict[str, Start] = {}
    versions: dict[str, set[str]] = {}
    for run in runs:
        for one in run.outcomes:
            if one.how != "well" or one.start is None:
                continue
            first, now = tasks.setdefault(one.start.task, one.start), one.start
            versions.setdefault(now.task, set()).add(now.task_hash)
            for key in ("metric", "direction", "baseline"):
                then, here = getattr(first, key), getattr(now, key)
                if then != here:
                    raise ConfigError(
                        f"task {now.task} has {key} {here!r} here and {then!r} in another episode",
                        where=str(run.path),
                        remedy="report these runs apart",
                    )
    for task, hashes in sorted(versions.items()):
        if len(hashes) > 1:
            notes.append(f"{task}: recorded with {len(hashes)} versions of the task's files")
    return tasks


def _note_methods(played: Played, tasks: Iterable[str], notes: list[str]) -> None:
    counts: set[int] = set()
    for method, group in played.items():
        ids = [one.start.task for one, _ in group if one.start]
        counts |= {ids.count(task) for task in ids}
        if lacking := sorted(set(tasks) - set(ids)):
            notes.append(f"{method}: has no episode of {', '.join(lacking)}: infeasible there")
        plain = sum(1 for one, _ in group if one.start and one.start.isolation == "process")
        if plain:
            notes.append(f"{method}: {plain} of {len(group)} episodes in process boxes")
    if len(counts) > 1:
        notes.append(
            f"methods have from {min(counts)} to {max(counts)} episodes of a task, and the best of more "
            "is better: --last N takes equally many"
        )


def _rows(
    played: Played,
    ids: Sequence[str],
    tasks: dict[str, Start],
    score: Callable[[Outcome], float | None],
    *,
    last: bool,
) -> list[Row]:
    rows = []
    for task in ids:
        for method, group in played.items():
            mine = [one for one, _ in group if one.start and one.start.task == task]
            scores = [value for one in mine if (value := score(one)) is not None]
            tests = [one.test for one in mine if one.test is not None] if last else []
            better = max if tasks[task].direction == "higher" else min
            rows.append(
                Row(
                    task=task,
                    method=method,
                    n=len(mine),
                    scored=len(scores),
                    mean=fmean(scores) if scores else None,
                    best=better(scores) if scores else None,
                    stderr=stdev(scores) / math.sqrt(len(scores)) if len(scores) > 1 else None,
                    test=fmean(tests) if tests else None,
                )
            )
    return rows


def _scores(tasks: dict[str, Start], rows: Sequence[Row]) -> dict[str, TaskScores]:
    return {
        name: TaskScores(
            direction=tasks[name].direction,
            baseline=tasks[name].baseline,
            scores={row.method: row.best for row in rows if row.task == name},
        )
        for name in sorted(tasks)
    }
