"""Compares recorded runs: by the scores of each method on each task, and by performance profiles (the share
of tasks on which a method's score is close to the best one).

A method is one model in one run. Its best score on a task is the best score of its episodes, so methods are
comparable only if they have equal numbers of episodes. An episode's score is computed in two ways, called
views: as its best score (`best_attempt`), or as its last score (`last_submission`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from air import json_lines
from air.errors import ConfigError, MissingError
from air.trajectories import evaluations, metric_rows
from air.trajectories.outcome import FORGEABLE, EpisodeOutcome, Start, read_outcome
from air.trajectories.performance_profile import BASELINE, Profiles, TaskScores, profiles
from air.trajectories.reader import trajectory_files

VIEWS: dict[str, Callable[[EpisodeOutcome], float | None]] = {
    "best_attempt": lambda one: one.best,
    "last_submission": lambda one: one.last,
}
"""The two ways (views) to compute an episode's score, as functions by name: its best score, or its last one.
They return None if there is no such score."""


@dataclass(frozen=True)
class TaskFailures:
    """How many of one task's episodes failed, that is, were ended by an infrastructure error. Failed episodes
    are not trained on, so an agent that could cause such errors would avoid bad rewards; these counts help to
    notice this."""

    failed: int
    """The number of failed episodes (those that an infrastructure error ended)."""
    episodes: int
    """The number of all episodes that ended, failed or not."""
    at_actions: int
    """The number of failed episodes whose infrastructure error occurred while an action of the agent was
    carried out."""
    last_action: str | None
    """The text of the action that was carried out when the infrastructure error occurred, in the latest
    episode with such an action; None if there is none."""


def _failures(episodes: Sequence[EpisodeOutcome]) -> TaskFailures:
    actions = [one.failed_action for one in episodes if one.failed_action is not None]
    failed = sum(one.how == "failed" for one in episodes)
    return TaskFailures(failed, len(episodes), len(actions), actions[-1] if actions else None)


@dataclass(frozen=True)
class Run:
    """The records of one run: the outcomes of its episodes, and the metrics of its training and
    evaluations."""

    path: Path
    """The run's folder, or the folder of its trajectories."""
    outcomes: tuple[EpisodeOutcome, ...]
    """The outcomes of the run's episodes, by the time of their end; unfinished episodes come last."""
    steps: tuple[dict[str, Any], ...]
    """The metrics of the training steps, from `metrics.jsonl`. Empty if the run did not train a model."""
    evaluations: tuple[Mapping[str, Any], ...] = ()
    """The evaluations during the run: the lines of `evaluations.jsonl`."""

    def counts(self) -> dict[str, int]:
        """Returns three counts of the run's episodes, by name: `well` (ended without an infrastructure
        error), `failed` (ended by such an error), and `unfinished`."""
        return {
            how: sum(1 for one in self.outcomes if one.how == how)
            for how in ("well", "failed", "unfinished")
        }

    def failures(self) -> dict[str, TaskFailures]:
        """Returns, for each task with at least one failed episode, by task id, the counts of failed episodes
        and of all ended ones. An episode failed if an infrastructure error ended it."""
        tasks: dict[str, list[EpisodeOutcome]] = {}
        for one in self.outcomes:
            if one.start is not None and one.how != "unfinished":
                tasks.setdefault(one.start.task, []).append(one)
        return {
            task: _failures(episodes)
            for task, episodes in sorted(tasks.items())
            if any(one.how == "failed" for one in episodes)
        }

    def terms(self) -> dict[str, float]:
        """Returns, for each term of the reward, by the term's name, its mean over the episodes that ended
        without an infrastructure error. In an episode that lacks the term, it counts as 0."""
        well = [one for one in self.outcomes if one.how == "well"]
        names = dict.fromkeys(name for one in well for name in one.terms)
        return {name: fmean(one.terms.get(name, 0.0) for one in well) for name in names}

    def rewards(self) -> tuple[float | None, float | None]:
        """Returns the mean reward in the first quarter of the training steps, and the mean reward in the last
        quarter, which together show whether training raised the reward. A mean is None if no step in its
        quarter has a reward."""
        quarter = max(1, len(self.steps) // 4)
        parts = (self.steps[:quarter], self.steps[-quarter:])
        means = [[r for row in part if (r := row.get("reward")) is not None] for part in parts]
        first, last = (fmean(values) if values else None for values in means)
        return first, last


@dataclass(frozen=True)
class Row:
    """One row of a report: the scores of one method (one model in one run) on one task. The score of an
    episode is its best or its last one, depending on the view (see `VIEWS`)."""

    task: str
    method: str
    n: int
    """The number of the method's episodes on this task without an infrastructure error."""
    scored: int
    """The number of the method's episodes on this task that have a score and no infrastructure error. `mean`,
    `best` and `stderr` are computed from the scores of these episodes."""
    mean: float | None
    """The mean score; None if there is no score."""
    best: float | None
    """The best score; None if there is no score."""
    stderr: float | None
    """The standard error of the mean score: the standard deviation divided by the square root of `scored`.
    None for fewer than two scores."""
    test: float | None
    """The mean, over the episodes, of the score on the test split of the artefact (the agent's files) that
    each episode selected in the end (see `Start.counts`). None if no such score was recorded, and always in
    the view `best_attempt`."""


@dataclass(frozen=True)
class Report:
    """The comparison of several runs: the scores of their methods on each task, performance profiles, and
    notes."""

    tasks: dict[str, Start]
    """The data about each task (metric, direction, baseline, …), by the task's id: the first line of one of
    the task's trajectories."""
    methods: dict[str, str]
    """For each method (one model in one run), by its name: the name of its model."""
    rows: dict[str, list[Row]]
    """The rows of the report for each view (episodes' best or last scores; the keys of `VIEWS`), sorted by
    task, then in the order of the runs."""
    profiles: dict[str, Profiles]
    """The performance profiles for each view (episodes' best or last scores; the keys of `VIEWS`)."""
    notes: list[str]
    """Notes that matter for the interpretation, such as unequal numbers of episodes."""


def read_run(path: Path, *, last: int | None = None) -> Run:
    """Reads the outcomes of a run's episodes, and the metrics of its training steps and evaluations.

    `path` is a run's folder, or its folder of trajectories; in the second case, metrics and evaluations are
    left out. Greedy episodes (at temperature 0) are left out, too: a run uses them only as baselines of its
    groups (episodes of the same task), and lists them in `groups.jsonl` under `greedy`. For each task and
    model, only the `last` latest episodes without an infrastructure error are returned (None: all). Raises
    MissingError if the folder does not exist or contains no trajectory, and ConfigError if a file is invalid.
    """
    if not path.is_dir():
        raise MissingError("no such run", where=str(path), remedy="name a folder of outputs/")
    inner = path / "trajectories"
    run = path if inner.is_dir() else path.parent  # `path` may be a run's folder of trajectories
    baselines = _greedy(run / "groups.jsonl")
    files = [file for file in trajectory_files(path) if file.stem not in baselines]
    outcomes = sorted(map(read_outcome, files), key=lambda one: one.ended or math.inf)
    steps = tuple(metric_rows.read(path / metric_rows.FILE)) if inner.is_dir() else ()
    evaluated = tuple(evaluations.rows(path)) if inner.is_dir() else ()
    return Run(path, tuple(outcomes if last is None else _latest(outcomes, last)), steps, evaluated)


def _greedy(groups: Path) -> set[str]:
    """Returns the ids of the greedy episodes in the file `groups.jsonl`: episodes at temperature 0, which are
    only baselines for their groups (episodes of the same task). Returns an empty set if there is no file."""
    rows = [row for _, row in json_lines.read(groups)] if groups.is_file() else []
    each = [row.get("greedy") for row in rows if isinstance(row, dict)]
    return {one["episode"] for one in each if isinstance(one, dict) and one.get("episode")}


def _latest(outcomes: Sequence[EpisodeOutcome], count: int) -> list[EpisodeOutcome]:
    """Returns a selection of `outcomes`, which must be sorted by the time of their end: for each task and
    model, the last `count` of the episodes that ended without an infrastructure error; after these, all
    failed and unfinished episodes."""
    groups: dict[tuple[str, str], list[EpisodeOutcome]] = {}
    for one in outcomes:
        if one.how == "well" and one.start is not None:
            groups.setdefault((one.start.task, one.start.model), []).append(one)
    others = [one for one in outcomes if one.how != "well"]
    return [one for group in groups.values() for one in group[-count:]] + others


def compare(runs: Sequence[Run]) -> Report:
    """Compares the scores of several runs. Returns a report with the scores of each method (one model in one
    run) on each task, and with performance profiles.

    Raises ConfigError if episodes of one task recorded different metrics, directions or baselines, or if
    there is no episode without an infrastructure error.
    """
    notes: list[str] = []
    by_method = _by_method(runs)
    if not by_method:
        raise ConfigError(
            "no episode of them ended well", where="runs", remedy="their log.txt says why"
        )
    tasks = _tasks(runs, notes)
    methods = {method: group[0][1] for method, group in by_method.items()}
    _note_methods(by_method, tasks, notes)
    views = {
        view: _rows(by_method, sorted(tasks), tasks, score, last=view == "last_submission")
        for view, score in VIEWS.items()
    }
    by_view = {view: profiles(_scores(tasks, rows), list(methods)) for view, rows in views.items()}
    for task in next(iter(by_view.values())).left_out:
        notes.append(f"{task}: no score is feasible, so it is left out of the profiles")
    return Report(tasks, methods, views, by_view, notes)


EpisodesByMethod = dict[str, list[tuple[EpisodeOutcome, str]]]
"""Type of a dict of all episodes without an infrastructure error. A key is the name of a method (one model in
one run): the run's name and, if the run has several models, the model's name. A value is the list of the
method's episodes, each as a pair: its outcome, and the model's name."""


def _by_method(runs: Sequence[Run]) -> EpisodesByMethod:
    names = _names(runs)
    by_method: EpisodesByMethod = {}
    for run, name in zip(runs, names, strict=True):
        well = [(one, one.start.model) for one in run.outcomes if one.how == "well" and one.start]
        several = len({model for _, model in well}) > 1
        for one, model in well:
            by_method.setdefault(f"{name} {model}" if several else name, []).append((one, model))
    return by_method


def _names(runs: Sequence[Run]) -> list[str]:
    """Returns a list with one name for each run, in the same order: the name of its folder, or the folder's
    path if several runs have this name or the name is `baseline`, which has another meaning in performance
    profiles."""
    short = [run.path.resolve().name for run in runs]
    return [
        str(run.path.resolve()) if short.count(name) > 1 or name == BASELINE else name
        for run, name in zip(runs, short, strict=True)
    ]


def _tasks(runs: Sequence[Run], notes: list[str]) -> dict[str, Start]:
    """Returns the facts about each task (metric, direction, baseline, …), by task id: the first line of the
    trajectory of the task's first episode without an infrastructure error. Adds a note to `notes` for each
    task whose files differed between episodes.

    Raises ConfigError if episodes of one task recorded different metrics, directions or baselines.
    """
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


def _note_methods(by_method: EpisodesByMethod, tasks: Iterable[str], notes: list[str]) -> None:
    counts: set[int] = set()
    for method, group in by_method.items():
        ids = [one.start.task for one, _ in group if one.start]
        counts |= {ids.count(task) for task in ids}
        if absent := sorted(set(tasks) - set(ids)):
            notes.append(f"{method}: has no episode of {', '.join(absent)}: infeasible there")
        plain = sum(1 for one, _ in group if one.start and one.start.isolation == "process")
        if plain:
            notes.append(f"{method}: {plain} of {len(group)} episodes in process boxes")
        forged = sorted(
            {one.start.task for one, _ in group if one.start and one.start.trust in FORGEABLE}
        )
        if forged:
            notes.append(f"{method}: an artefact can print any score of {', '.join(forged)}")
    if len(counts) > 1:
        notes.append(
            f"methods have from {min(counts)} to {max(counts)} episodes of a task, and the best of more "
            "is better: --last N takes equally many"
        )


def _rows(
    by_method: EpisodesByMethod,
    ids: Sequence[str],
    tasks: dict[str, Start],
    score: Callable[[EpisodeOutcome], float | None],
    *,
    last: bool,
) -> list[Row]:
    rows = []
    for task in ids:
        for method, group in by_method.items():
            outcomes = [one for one, _ in group if one.start and one.start.task == task]
            scores = [value for one in outcomes if (value := score(one)) is not None]
            tests = [one.test for one in outcomes if one.test is not None] if last else []
            better = max if tasks[task].direction == "higher" else min
            rows.append(
                Row(
                    task=task,
                    method=method,
                    n=len(outcomes),
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
