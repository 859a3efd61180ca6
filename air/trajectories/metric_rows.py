"""Reads `metrics.jsonl`, the file with the metrics of a run's training steps, of any version of air, and
defines the names of the metrics.

A run is trained by air's own engine or by the library prime-rl. If prime-rl has a metric, air uses prime-rl's
name for it, so that runs of both can share a dashboard. `current` translates the names of older versions of
air. Files that prime-rl wrote can be read, too. In such a file, a step has several lines, because prime-rl's
trainer and orchestrator each write their own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from air import json_lines
from air.errors import ConfigError

FILE = "metrics.jsonl"
Row = dict[str, Any]
"""One line of `metrics.jsonl`: the metrics of one training step."""
UPDATE = {
    "loss": "loss/mean",
    "entropy": "entropy/all/mean",
    "mismatch_kl": "mismatch_kl/all/mean",
    "is_masked": "is_masked/mean",
    "is_masked_high": "is_masked_high/mean",
    "is_masked_low": "is_masked_low/mean",
    "grad_norm": "optim/grad_norm",
    "lr": "optim/lr",
    "train_seconds": "time/forward_backward",
    "val_loss": "val/loss",
    "ref_kl": "ref_kl/mean",
}
"""Maps the short names that air's trainer has for the metrics of a weight update to the names in the library
prime-rl."""
_OLD = (
    UPDATE
    | {f"train/{short}": name for short, name in UPDATE.items()}
    | {
        "seconds": "time/step",
        "seconds_rollout": "time/wait_for_batch",
        "seconds_weights": "time/broadcast_weights",
        "seconds_train": "time/train",
    }
)
_AGENT = "train/agg/effective/agent"
"""The prefix of the names of those metrics of the library prime-rl that concern the episodes on which a step
trained."""


def of_update(metrics: Mapping[str, float]) -> Row:
    """Renames the metrics of an update of the weights for `metrics.jsonl`, where they have the names of the
    library prime-rl: `loss` becomes `loss/mean`. A metric that prime-rl does not have gets the prefix
    `train/`, unless its name contains a slash."""
    return {
        UPDATE.get(name, name if "/" in name else f"train/{name}"): value
        for name, value in metrics.items()
    }


def current(row: Mapping[str, Any]) -> Row:
    """Returns `row`, a line of a `metrics.jsonl` that any version of air wrote, with the metrics' old names
    replaced by those of this version. Other names are unchanged."""
    return {_OLD.get(name, name): value for name, value in row.items()}


def read(path: Path) -> list[Row]:
    """Returns one row (the metrics of one training step) for each step in a `metrics.jsonl`, in the order of
    the file. Metrics have the names that this version of air uses.

    If a step has several lines, they are merged; for each metric, the last value counts. A half-written last
    line is skipped. Returns an empty list if there is no file. Raises ConfigError, which names the line, if a
    line has no training step, or if its reward is neither null nor a finite number.
    """
    rows: dict[float, Row] = {}
    for place, row in json_lines.read(path) if path.is_file() else ():
        step = row.get("step") if isinstance(row, dict) else None
        reward = row.get("reward") if isinstance(row, dict) else None
        if not _finite(step) or not (reward is None or _finite(reward)):
            raise ConfigError("is no row of metrics", where=place)
        rows.setdefault(row["step"], {}).update(current(row))
    return [_of_prime_rl(row) if "progress/rollouts" in row else row for row in rows.values()]


def _of_prime_rl(row: Row) -> Row:
    """Returns a row (the metrics of one step) that the library prime-rl wrote, extended by those metrics of
    air that can be computed from it.

    `zero_spread_groups`, the number of groups (episodes of the same task) with equal rewards, includes only
    groups whose rewards are all 0 or all 1, because prime-rl does not count other groups with equal rewards.
    The metrics that count episodes count prime-rl's traces (records of conversations) instead.
    """

    def value(name: str) -> float:
        return number(row, name) or 0.0

    ending, inner = "/mean", f"{_AGENT}/metrics/"
    means = {
        name.removeprefix(inner).removesuffix(ending): value(name)
        for name in row
        if name.startswith(inner) and name.endswith(ending)
    }
    episodes, groups = value("progress/rollouts"), value("progress/tasks")
    solved = [f"train/agg/all/agent/solved_{which}" for which in ("none", "all")]
    derived = {
        **means,
        "reward": number(row, f"{_AGENT}/reward{ending}"),
        "episodes": episodes,
        "failed_episodes": episodes * value("train/agg/all/has_error/mean"),
        "groups": groups,
        "zero_spread_groups": groups * sum(map(value, solved)),
        "cut_replies": episodes * value(f"{_AGENT}/is_truncated{ending}"),
        "context_ends": 0.0,  # included in is_truncated
    }
    if means.get("turns"):
        derived["well_formed"] = 1.0 - means.get("format_errors", 0.0) / means["turns"]
    return {**{name: one for name, one in derived.items() if one is not None}, **row}


def number(row: Mapping[str, Any], name: str) -> float | None:
    """Returns the metric called `name` of `row` (the metrics of one training step); None if it is missing or
    not a finite number."""
    value = row.get(name)
    return float(value) if _finite(value) else None  # type: ignore[arg-type]


def _finite(value: object) -> bool:
    usable = isinstance(value, int | float) and not isinstance(value, bool)
    return usable and math.isfinite(value)  # type: ignore[arg-type]
