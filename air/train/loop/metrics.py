"""Computes the metrics of a training step, of an evaluation, or of a whole run from its episodes."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from air.train.loop.rollout import Group, Rollout
from air.trajectories import metric_rows

if TYPE_CHECKING:
    from air.train.tree.sample import Sample

logger = logging.getLogger(__name__)
_TIMES = ("model", "exec", "grading", "queue")
_LENGTHS = (
    "num_total_tokens",
    "num_input_tokens",
    "num_output_tokens",
    "num_turns",
    "num_branches",
)
"""The attributes of a trace (`verifiers`' record of a conversation) that measure its length, such as its
number of turns. The distribution of each over the episodes becomes metrics."""

COUNTS = ("context_ends", "cut_observations", "cut_replies", "refused_requests")
"""The names of the metrics that count events in episodes. Over several episodes or sources of tasks, these
metrics are added, not averaged."""


@dataclass(frozen=True)
class StepRow:
    """The results of one training step, which become a line of `metrics.jsonl`. docs/training.md explains the
    keys of such a line."""

    step: int
    groups: Sequence[Group]
    samples: Sequence[Sample]
    train: Mapping[str, float]
    """The metrics of the update: those of the algorithm, of `Trainer.step`, and of further models, such as a
    value model."""
    exactness: Mapping[str, Any]
    """The metrics that `Exactness` collected: how far trainer and sampler agree on the tokens'
    probabilities."""
    inference: Mapping[str, float]
    """The metrics of the inference server since the previous step, such as the number of prompt tokens."""
    seconds_weights: float
    """Seconds (wall time) that the inference server took to load the newest weights, before this step."""
    seconds_rollout: float
    """Seconds (wall time) for which the run waited for the step's episodes to end."""
    seconds_train: float
    """Seconds (wall time) for computing the advantages and updating the weights."""
    seconds_play: float
    """Seconds (wall time) during which the episodes were played. This is longer than `seconds_rollout` if the
    episodes began before the previous step's update had ended."""
    peak_memory_mb: float
    """The largest amount of main memory (resident set) that this process has used so far, in MiB."""

    def as_dict(self) -> dict[str, Any]:
        """Returns the line of `metrics.jsonl` for this training step."""
        rollouts = [r for g in self.groups for r in g.rollouts]
        row = {"step": self.step, "samples": len(self.samples), **of_step(self.groups)}
        row["selected_groups"] = sum(
            any(rollout.advantage is not None for rollout in group.rollouts)
            for group in self.groups
        )
        row |= metric_rows.of_update(self.train)
        row |= {**self.exactness, **of_samples(self.samples)}
        row |= {f"inference/{name}": value for name, value in self.inference.items()}
        row["time/step"] = self.seconds_weights + self.seconds_rollout + self.seconds_train
        row["time/broadcast_weights"] = self.seconds_weights
        row["time/wait_for_batch"] = self.seconds_rollout
        row["time/train"] = self.seconds_train
        row["tokens_per_second"] = row["sampled_tokens"] / max(self.seconds_play, 1e-9)
        row["peak_memory_mb"] = self.peak_memory_mb
        row |= distributions(self.groups)
        row["tasks"] = scores_by_task(rollouts)
        row["sources"] = {name: _source(groups) for name, groups in by_source(self.groups).items()}
        return row


def reproducible(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a copy of `row`, the metrics of a training step, without times, speeds and memory sizes. These
    differ even between two runs that are otherwise identical."""
    measured = ("seconds", "time/", "tokens_per_second", "peak_memory_mb")
    return {k: value for k, value in row.items() if not any(part in k for part in measured)}


def mean(values: Iterable[float | None]) -> float | None:
    """Returns the mean of the values that are not None, or None if there is no such value."""
    present = [v for v in values if v is not None]
    return fmean(present) if present else None


def of_step(groups: Sequence[Group]) -> dict[str, Any]:
    """Returns the metrics of one training step's groups, by name. Means, and sums of times, are over the
    episodes that did not fail; counts of episodes, groups and tokens are over all episodes."""
    rollouts = [r for g in groups for r in g.rollouts]
    good = [r for r in rollouts if r.ok]
    values: dict[str, Any] = {
        "episodes": len(rollouts),
        "failed_episodes": len(rollouts) - len(good),
        "groups": len(groups),
        "zero_spread_groups": sum(1 for g in groups if not g.has_spread),
        "group_replays": sum(g.replays for g in groups),
        "sampled_tokens": sum(r.sampled_tokens for r in rollouts),
        "multi_branch_episodes": sum(1 for r in good if r.trace.num_branches != 1),
        "reasoning_branches": reasoning_branches(good),
    }
    values |= of_rollouts(good)
    if greedy := [g.greedy for g in groups if g.greedy is not None]:
        values["greedy_reward"] = mean(r.reward for r in greedy if r.ok)
        values["failed_greedy_episodes"] = sum(1 for r in greedy if not r.ok)
    for name in _TIMES:
        values[f"seconds_{name}"] = sum(r.metric(f"seconds_{name}") or 0.0 for r in good)
    return values


def reasoning_branches(rollouts: Sequence[Rollout]) -> int:
    """Returns the number of episodes that contain reasoning and became more than one training sample each.
    The usual cause is a chat template that drops the reasoning of earlier replies from later prompts, so that
    later prompts do not continue the earlier tokens."""
    return sum(
        1
        for rollout in rollouts
        if rollout.trace.num_branches > 1
        and any(getattr(node.message, "reasoning_content", None) for node in rollout.trace.nodes)
    )


def warn_of_branches(row: Mapping[str, Any], earlier: Iterable[Mapping[str, Any]]) -> None:
    """Logs a warning, once in a run, that the conversation of an episode was split into several training
    samples (branches), because its later prompts leave out the reasoning of earlier replies. `row` has the
    metrics of this training step; the metric `reasoning_branches` counts such episodes. `earlier` has those
    of each earlier step: if one of them counts such an episode, nothing is logged."""
    if row["reasoning_branches"] and not any(one.get("reasoning_branches") for one in earlier):
        logger.warning(
            "%d episodes of step %d became several training samples each, because later prompts do not "
            "repeat the reasoning of earlier replies (metric `reasoning_branches`); if the renderer can keep "
            'it, set [orchestrator.renderer] thinking_retention = "all"',
            row["reasoning_branches"],
            row["step"],
        )


def of_rollouts(rollouts: Sequence[Rollout]) -> dict[str, Any]:
    """Returns metrics over the episodes, by name: means (such as the mean reward) and the four counts of
    `COUNTS`: of episodes that ended at the context limit, of truncated observations, of truncated replies,
    and of refused requests. (If an agent is a program in a container, its request to the model is refused
    unless it continues the program's earlier conversation.)"""
    turns = sum(r.metric("turns") or 0 for r in rollouts)
    errors = sum(r.metric("format_errors") or 0 for r in rollouts)
    values = {
        "reward": mean(r.reward for r in rollouts),
        "valid": mean(r.metric("valid") for r in rollouts),
        "submitted": mean(r.metric("submitted") for r in rollouts),
        "validates": mean(r.metric("validates") for r in rollouts),
        "turns": mean(r.metric("turns") for r in rollouts),
        "well_formed": 1.0 - errors / turns if turns else None,
        "phi": mean(final_phi(r) for r in rollouts),
        "validation_test_gap": mean(r.metric("validation_test_gap") for r in rollouts),
    }
    values |= {f"reward/{name}": value for name, value in mean_reward_terms(rollouts).items()}
    for name in COUNTS:
        values[name] = sum(r.metric(name) or 0 for r in rollouts)
    return values | world_metrics(rollouts)


def world_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Returns the means of the numbers that worlds (games, questions and other environments) report about an
    episode (`World.facts`). Each mean is over the episodes that have the number. A key is `world/` followed
    by the number's name."""
    each = [r.info.get("facts", {}) for r in rollouts]
    names = dict.fromkeys(name for facts in each for name in facts)
    return {f"world/{n}": fmean(facts[n] for facts in each if n in facts) for n in names}


def final_phi(rollout: Rollout) -> float | None:
    """Returns φ, the normalised score, of the episode's last grading on the validation split. Returns None if
    that grading gave no φ, or nothing was graded. In worlds other than research tasks, such as games, φ is
    the world's own score."""
    phis = rollout.info.get("phis", [])
    return phis[-1] if phis else None


def mean_reward_terms(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Returns the mean of each reward term over the episodes, by the term's name. A term that an episode
    lacks counts as 0, so the means add up to the mean reward."""
    each = [r.terms for r in rollouts]
    names = dict.fromkeys(name for terms in each for name in terms)
    return {name: fmean(terms.get(name, 0.0) for terms in each) for name in names}


def distribution(name: str, values: Sequence[float]) -> dict[str, float]:
    """Returns the mean, minimum, maximum, and 10th and 90th percentile of the values, under the keys
    `<name>/mean`, `/min`, `/max`, `/p10` and `/p90`, as in prime-rl (another trainer). The result is empty if
    there are no values."""
    if not len(values):
        return {}
    low, high = np.percentile(values, (10, 90))
    return {
        f"{name}/mean": float(np.mean(values)),
        f"{name}/max": float(max(values)),
        f"{name}/min": float(min(values)),
        f"{name}/p10": float(low),
        f"{name}/p90": float(high),
    }


def distributions(groups: Sequence[Group]) -> dict[str, float]:
    """Returns those metrics of a step's groups whose names prime-rl (another trainer) defines: distributions
    (as `distribution` returns them) of the lengths and the rewards of traces (`verifiers`' records of
    episodes), and the shares of truncated traces and of failed episodes. Each is computed over all training
    sources together (`train/agg/…`) and for each source (`train/<source>/…`). Also returns each source's
    share of the traces (`batch/<source>`), and the distribution of reply lengths (`reply_tokens/…`), which
    prime-rl does not have."""
    row: dict[str, float] = {}
    every = [r for g in groups for r in g.rollouts]
    traces = sum(len(r.traces) for r in every)
    parts = {
        name: [r for g in part for r in g.rollouts] for name, part in by_source(groups).items()
    }
    for name, rollouts in {"agg": every, **parts}.items():
        row |= _distributions(f"train/{name}", rollouts)
        if name in parts and traces:
            row[f"batch/{name}"] = sum(len(r.traces) for r in rollouts) / traces
    replies = [sum(n.mask) for r in every if r.ok for t in r.traces for n in t.nodes if any(n.mask)]
    return row | distribution("reply_tokens", replies)


def _distributions(prefix: str, rollouts: Sequence[Rollout]) -> dict[str, float]:
    good = [r for r in rollouts if r.ok]
    traces = [trace for r in good for trace in r.traces]
    row: dict[str, float] = {}
    for name in _LENGTHS:
        lengths = [sum(float(getattr(trace, name)) for trace in r.traces) for r in good]
        row |= distribution(f"{prefix}/effective/{name}", lengths)
    row |= distribution(f"{prefix}/effective/agent/reward", [float(t.reward) for t in traces])
    if traces:
        truncated = fmean(float(t.is_truncated) for t in traces)
        row[f"{prefix}/effective/agent/is_truncated/mean"] = truncated
    if rollouts:
        row[f"{prefix}/all/has_error/mean"] = 1.0 - len(good) / len(rollouts)
    return row


def of_samples(samples: Sequence[Sample]) -> dict[str, float]:
    """Returns the mean, standard deviation, minimum and maximum of the advantages over the sampled tokens, as
    `advantages/mean` and so on. If the algorithm computes returns, the result has the same four numbers of
    the returns, as `returns/…`."""
    arrays: dict[str, list[float]] = {}
    for sample in samples:
        for name in ("advantages", "returns"):
            values = sample.advantages() if name == "advantages" else sample.arrays.get(name, [])
            kept = (value for value, sampled in zip(values, sample.mask, strict=False) if sampled)
            arrays.setdefault(name, []).extend(kept)
    row: dict[str, float] = {}
    for name, each in arrays.items():
        if not each:
            continue
        row[f"{name}/mean"], row[f"{name}/std"] = float(np.mean(each)), float(np.std(each))
        row[f"{name}/min"], row[f"{name}/max"] = min(each), max(each)
    return row


def by_source(groups: Sequence[Group]) -> dict[str, list[Group]]:
    """Returns a dict from the name of each training source to its groups of episodes, in the order of
    `groups`."""
    sources: dict[str, list[Group]] = {}
    for group in groups:
        for name in dict.fromkeys(r.source for r in group.rollouts):
            sources.setdefault(name, []).append(group)
    return sources


def by_task(rollouts: Sequence[Rollout]) -> dict[str, list[Rollout]]:
    """Returns a dict from the id of each task to its episodes, in the order of `rollouts`."""
    tasks: dict[str, list[Rollout]] = {}
    for rollout in rollouts:
        tasks.setdefault(rollout.task, []).append(rollout)
    return tasks


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns one dict for each task, which compares the first quarter of a run's training steps with the
    last quarter. A quarter has at least one step.

    A dict has the task's id (`task`), its baseline score (`baseline`) and, for each quarter, the mean score,
    the best score and the mean reward (`first_mean`, `first_best`, `first_reward`, `last_mean` …). `rows` are
    the lines of the run's `metrics.jsonl`.
    """
    quarter = max(1, len(rows) // 4)
    parts = {"first": rows[:quarter], "last": rows[-quarter:]}
    table = []
    for task in sorted({t for row in rows for t in row["tasks"]}):
        baselines = [row["tasks"][task].get("baseline") for row in rows if task in row["tasks"]]
        baseline = next((one for one in baselines if one is not None), None)
        entry: dict[str, Any] = {"task": task, "baseline": baseline}
        for part, steps in parts.items():
            cells = [row["tasks"][task] for row in steps if task in row["tasks"]]
            scores = [score for cell in cells for score in cell["scores"]]
            best = min if any(cell["direction"] == "lower" for cell in cells) else max
            entry[f"{part}_mean"] = mean(scores)
            entry[f"{part}_best"] = best(scores) if scores else None
            entry[f"{part}_reward"] = mean(cell["reward"] for cell in cells)
        table.append(entry)
    return table


def _source(groups: Sequence[Group]) -> dict[str, Any]:
    rollouts = [r for g in groups for r in g.rollouts]
    return {
        "groups": len(groups),
        "zero_spread_groups": sum(1 for g in groups if not g.has_spread),
        "episodes": len(rollouts),
        "failed_episodes": sum(1 for r in rollouts if not r.ok),
        "reward": mean(r.reward for r in rollouts if r.ok),
        "sampled_tokens": sum(r.sampled_tokens for r in rollouts),
    }


def scores_by_task(rollouts: Sequence[Rollout]) -> dict[str, dict[str, Any]]:
    """Returns a dict from the id of each task to a dict of its results: the lists of the episodes' validation
    scores (`scores`) and test scores (`test_scores`); the task's `baseline` score; the `direction`, which
    says whether a `higher` or a `lower` score is better; the mean `reward`; and three counts: all `episodes`,
    `failed_episodes` (ended by an infrastructure error), and `ungraded_episodes` (whose artefact, the files
    to grade, made the grader fail)."""
    return {task: _scores(played) for task, played in by_task(rollouts).items()}


def _scores(rollouts: Sequence[Rollout]) -> dict[str, Any]:
    good = [r for r in rollouts if r.ok]
    return {
        "direction": good[0].info.get("direction", "higher") if good else "higher",
        "baseline": good[0].info.get("baseline") if good else None,
        "scores": [s for r in good if (s := r.metric("score")) is not None],
        "test_scores": [s for r in good if (s := r.metric("test_score")) is not None],
        "reward": mean(r.reward for r in good),
        "episodes": len(rollouts),
        "failed_episodes": len(rollouts) - len(good),
        "ungraded_episodes": sum(bool(r.metric("artefact_faults")) for r in good),
    }
