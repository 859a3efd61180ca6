"""Makes the table that `air eval` prints: the scores of one or more models, for each task and over all
tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rich.table import Table

from air.train.evaluation.episode_scores import (
    MEASURES,
    EpisodeScores,
    Estimate,
    by_task,
    estimate,
    overall,
)
from air.train.loop.progress import number, percent, plain_table

_TASK_COLUMNS: Mapping[str, Callable[[EpisodeScores], float | None]] = {
    "best attempt": lambda played: played.best(),
    "last submission": lambda played: played.last,
    "test score": lambda played: played.test,
    "tries": lambda played: float(len(played.scores)),
    "reward": lambda played: played.reward,
}
"""The columns of the table of `air eval`, for its lines about single tasks. Each name maps to a function that
computes the column's value for one episode; the table shows the mean over episodes, without episodes whose
value is None. Scores are not normalised."""
_OVERALL_MEASURES = {
    "best attempt": "best",
    "last submission": "last",
    "test score": "test",
    "tries": "tries",
    "reward": "reward",
}
"""Maps each column of the table of `air eval` to the measure (a key of `MEASURES`) that the column shows in
the lines over all tasks. There, scores are normalised, because tasks have different scales."""


def table(models: Mapping[str, Sequence[EpisodeScores]], episodes: int) -> Table:
    """Returns the table of scores. `models` has the episodes of each model by the model's name; the order of
    the models is the order of the rows. `episodes` is the number of episodes that each task should have."""
    result = plain_table(
        "mean ± standard error over episodes; a try is a validate\n"
        "φ: mean over tasks of normalised scores (0: baseline, 1: target; without a score: the lowest)"
    )
    result.add_column("task", no_wrap=True)
    for name in ("model", "baseline", *_TASK_COLUMNS, "scored", "format", "played"):
        result.add_column(name, justify="right", no_wrap=True)
    grouped = {model: by_task(played) for model, played in models.items()}
    for task in dict.fromkeys(task for tasks in grouped.values() for task in tasks):
        for model, tasks in grouped.items():
            played = tasks.get(task, [])
            means = [estimate(map(column, played)) for column in _TASK_COLUMNS.values()]
            baseline = number(played[0].scale.baseline) if played else "–"
            result.add_row(task, model, baseline, *map(_cell, means), *_counts(played, episodes))
    overalls = {
        model: [overall(played, MEASURES[name]) for name in _OVERALL_MEASURES.values()]
        for model, played in models.items()
    }
    for model, means in overalls.items():
        wanted = episodes * len(grouped[model])
        cells = [*map(_cell, means), *_counts(models[model], wanted)]
        result.add_row("φ, all tasks", model, "0.000", *cells)
    if len(overalls) == 2:
        before, after = overalls.values()
        gains = [
            None if then is None or now is None else now.minus(then)
            for then, now in zip(before, after, strict=True)
        ]
        result.add_row("φ, all tasks", "change", "", *map(_signed, gains), "", "", "")
    return result


def _cell(mean: Estimate | None) -> str:
    return "–" if mean is None else str(mean)


def _signed(mean: Estimate | None) -> str:
    return "–" if mean is None else f"{'+' if mean.mean >= 0 else ''}{mean}"


def _counts(played: Sequence[EpisodeScores], wanted: int) -> list[str]:
    """Returns the strings in the last three columns of the table: the share of episodes with a score, the
    share of well-formed replies, and the number of played and of wanted episodes, such as `9/10`."""
    turns, errors = sum(one.turns for one in played), sum(one.format_errors for one in played)
    return [
        percent(sum(one.best() is not None for one in played) / len(played) if played else None),
        percent(1 - errors / turns if turns else None),
        f"{len(played)}/{wanted}",
    ]
