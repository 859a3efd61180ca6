"""Checks of a training run's episodes: infrastructure errors, sources of tasks whose groups have equal
rewards, replies that are cut off at the token limit, and bottlenecks. All checks are called by `examine`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from air.train.diagnosis.finding import Finding
from air.train.diagnosis.series import Metric, Row, percent, ratio, rows_that_need_spread, series
from air.train.diagnosis.thresholds import LIMITS
from air.trajectories import metric_rows

ACTIVITIES = ("model", "exec", "grading", "queue")
_NAMES = {"model": "sampling", "exec": "commands", "grading": "grading", "queue": "boxes"}
_REMEDIES = {
    "model": "lower orchestrator.train.sampling.max_completion_tokens or seq_len, take a smaller model, or "
    "sample with vLLM (--inference vllm)",
    "exec": "lower the time limits of the tasks (task.toml), or give boxes more processors",
    "grading": "raise grader_boxes under [orchestrator.train.source.env], or set max_validates there",
    "queue": "raise max_boxes or slots_per_gpu under [orchestrator.train.source.env], or lower "
    "orchestrator.batch_size",
}


def failed_episodes(rows: Sequence[Row], window: int) -> Finding | None:
    """Returns a finding if a large share of the episodes in the last `window` steps ended with infrastructure
    errors (air or the machine failed, not the agent), else None. `rows` are the lines of `metrics.jsonl`."""
    window = max(1, min(window, len(rows)))  # a run may have failed before it has that many steps
    shares = series(rows, ratio("failed_episodes", "episodes"), window)
    step = shares.began(lambda mean: mean >= LIMITS.failures) if shares else None
    if shares is None or step is None:
        return None
    return Finding(
        "failed episodes",
        "fail",
        step,
        f"{percent(shares.last)} of the episodes of the last {window} steps failed (limit "
        f"{percent(LIMITS.failures)})",
        "log.txt in the run's folder has the errors; air doctor checks this machine",
    )


def failures_on_one_task(rows: Sequence[Row], _: int) -> Finding | None:
    """Returns a finding if the episodes of one task end with infrastructure errors (of air or the machine,
    not of the agent) far more often than those of the other tasks, else None. Such episodes are not trained
    on, so the policy would learn too little from this task. `rows` are the lines of `metrics.jsonl`; the
    second argument, which all checks get, is not used."""
    played, failed, first = Counter[str](), Counter[str](), dict[str, int]()
    for row in rows:
        for task, cell in _cells(row, "tasks"):
            played[task] += int(cell.get("episodes") or 0)
            if lost := int(cell.get("failed_episodes") or 0):
                failed[task] += lost
                first.setdefault(task, int(row["step"]))
    rates = {
        task: failed[task] / played[task]
        for task in played
        if failed[task] >= LIMITS.task_failed_episodes and played[task]
    }
    if len(played) < 2 or not rates:
        return None
    worst = max(rates, key=lambda task: rates[task])
    others = played.total() - played[worst]
    rate = (failed.total() - failed[worst]) / others if others else 0.0
    if rates[worst] < LIMITS.task_failures or rate >= rates[worst] / 2:
        return None
    return Finding(
        "failures on one task",
        "fail",
        first[worst],
        f"{worst}: {failed[worst]} of {played[worst]} episodes failed; all other tasks: {percent(rate)} "
        f"(limit {percent(LIMITS.task_failures)})",
        f"air tasks check {worst}; log.txt has the errors; until then leave it out of tasks of "
        "[[orchestrator.train.source]]",
    )


def ungraded_task(rows: Sequence[Row], _: int) -> Finding | None:
    """Returns a finding if the grader of a task failed in every one of the task's latest episodes, else None.
    The agents' work in these episodes gets the lowest score, although the grader or the tests of the task may
    be broken. `rows` are the lines of `metrics.jsonl`; the second argument, which all checks get, is not
    used."""
    count, since = Counter[str](), dict[str, int]()
    for row in rows:
        for task, cell in _cells(row, "tasks"):
            good = int(cell.get("episodes") or 0) - int(cell.get("failed_episodes") or 0)
            if good > int(cell.get("ungraded_episodes") or 0):
                count.pop(task, None)
                since.pop(task, None)
            elif good > 0:
                count[task] += good
                since.setdefault(task, int(row["step"]))
    if not count or count.most_common(1)[0][1] < LIMITS.ungraded_episodes:
        return None
    worst, episodes = count.most_common(1)[0]
    return Finding(
        "ungraded task",
        "fail",
        since[worst],
        f"{worst}: the grader failed in all of the last {episodes} episodes (limit "
        f"{LIMITS.ungraded_episodes})",
        f"air tasks check {worst}; if its tests work, the agents' work breaks them: read an episode",
    )


def starving_source(rows: Sequence[Row], window: int) -> Finding | None:
    """Returns a finding if the policy learns almost nothing from one source of tasks, because the episodes of
    nearly every group (episodes of one task that are compared) have equal rewards, else None. `rows` are the
    lines of `metrics.jsonl`, of which the last `2 * window` count."""
    rows = rows_that_need_spread(rows)
    recent = rows[-2 * window :]
    groups, useful = Counter[str](), Counter[str]()
    since: dict[str, int] = {}
    for row in rows:
        for source, cell in _cells(row, "sources"):
            spread = int(cell.get("groups") or 0) - int(cell.get("zero_spread_groups") or 0)
            if spread:
                since.pop(source, None)
            else:
                since.setdefault(source, int(row["step"]))
            if row in recent:
                groups[source] += int(cell.get("groups") or 0)
                useful[source] += max(0, spread)
    if len(groups) < 2 or not useful.total():
        return None
    parts = {
        source: (useful[source] / useful.total()) / (count / groups.total())
        for source, count in groups.items()
        if count >= LIMITS.starving_groups
    }
    if not parts:
        return None
    worst = min(parts, key=lambda source: parts[source])
    if parts[worst] >= LIMITS.starving:
        return None
    return Finding(
        "starving source",
        "fail",
        since.get(worst, int(recent[0]["step"])),
        f"{worst}: {useful[worst]} of {groups[worst]} groups of the last {len(recent)} steps have spread; "
        f"all sources: {useful.total()} of {groups.total()}",
        "give it tasks that the model solves sometimes, or lower ratio in its [[orchestrator.train.source]]",
    )


def cut_episodes(rows: Sequence[Row], window: int) -> Finding | None:
    """Returns a finding if many episodes end because the context limit is reached or a reply is cut off at
    the token limit, else None. The mean share of such episodes over the last `window` steps must be large and
    have grown, or be very large. `rows` are the lines of `metrics.jsonl`."""

    def value(row: Row) -> float | None:
        count = metric_rows.number(row, "episodes")
        ends = [metric_rows.number(row, name) for name in ("context_ends", "cut_replies")]
        known = [end for end in ends if end is not None]
        return min(1.0, sum(known) / count) if known and count else None

    cut = series(rows, value, window)
    if cut is None or cut.last < LIMITS.cut_growth * min(cut.first, LIMITS.cut):
        return None
    step = cut.began(lambda mean: mean >= LIMITS.cut)
    if step is None:
        return None
    return Finding(
        "cut episodes",
        "fail",
        step,
        f"episodes with a cut reply or at the context's end {percent(cut.first)} → {percent(cut.last)} "
        f"(limit {percent(LIMITS.cut)})",
        "raise seq_len and orchestrator.train.sampling.max_completion_tokens, or lower the harness's "
        "max_observation_tokens",
    )


def bottleneck(rows: Sequence[Row], window: int) -> Finding | None:
    """Returns a finding if the episodes spend most of their time on one activity (sampling, commands,
    grading, or waiting for boxes, the agents' containers), else None. `rows` are the lines of
    `metrics.jsonl`; shares of time are means over `window` steps."""
    for name in ACTIVITIES:
        part = series(rows, _part(name), window)
        limit = LIMITS.sampling if name == "model" else LIMITS.bottleneck
        if part is not None and (step := part.began(lambda mean: mean >= limit)) is not None:  # noqa: B023  called at once
            return Finding(
                "bottleneck",
                "warn",
                step,
                f"{_NAMES[name]}: seconds_{name} is {percent(part.last)} of the episodes' time (limit "
                f"{percent(limit)})",
                _REMEDIES[name],
            )
    return None


def _part(name: str) -> Metric:
    def value(row: Row) -> float | None:
        times = {one: metric_rows.number(row, f"seconds_{one}") or 0.0 for one in ACTIVITIES}
        whole = sum(times.values())
        return times[name] / whole if whole else None

    return value


def _cells(row: Row, key: str) -> list[tuple[str, Mapping[str, Any]]]:
    """Returns the metrics that a line of `metrics.jsonl` has for each task (if `key` is `tasks`) or for each
    source of prompts (`sources`), as pairs (name of the task or source, metrics)."""
    cells = row.get(key)
    return list(cells.items()) if isinstance(cells, Mapping) else []
