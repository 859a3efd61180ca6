"""Checks of a training run's sampler (the model server that writes the replies): whether it has the weights
that the trainer trains, and computes the same probabilities as the trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from air.train.diagnosis.finding import Finding
from air.train.diagnosis.series import Row, series
from air.train.diagnosis.thresholds import LIMITS
from air.trajectories import metric_rows

CAUSES = (
    "the server has other weights than the trainer, another precision (dtype), or an attention that does not "
    "see the same tokens (a sliding window, eager attention)"
)
"""The likely causes of a mismatch (different probabilities) between sampler and trainer, as text for the
user."""
_FEWEST_STALE = 2


def stale_weights(rows: Sequence[Row], _: int) -> Finding | None:
    """Returns a finding if the episodes of several consecutive steps were sampled with the same weights,
    although the trainer had changed the weights in between, else None. `rows` are the lines of
    `metrics.jsonl`; the second argument, which all checks get, is not used."""
    behind: list[tuple[int, float]] = []
    last, served = None, None
    for row in rows:
        version = metric_rows.number(row, "weights_version")
        if version is None:
            continue
        changed = last is not None and last.get("train/updated") == 1
        same = version == served and changed
        behind = [*behind, (int(row["step"]), version)] if same else []
        last, served = row, version
    if len(behind) < _FEWEST_STALE:
        return None
    return Finding(
        "stale weights",
        "fail",
        behind[0][0],
        f"{len(behind)} steps in a row were played by the weights of step {behind[-1][1]:g}, while the "
        "trainer changed its own",
        "stop the run and resume it (--resume); if it happens again, use --inference transformers",
    )


def on_policy(row: Row) -> Mapping[str, Any] | None:
    """Returns the recorded differences between the trainer's and the sampler's log-probabilities in one step,
    for tokens that were sampled with the weights being trained: numbers by name, such as `mismatch_kl_mean`.
    `row` is the step's line of `metrics.jsonl`. Returns None if the step has no such tokens."""
    version: Mapping[str, Any] | None = (row.get("versions") or {}).get(str(row["step"] - 1))
    return version


def _mismatch_kl(row: Row) -> float | None:
    if row.get("train/updated") == 0:
        return None
    if not row.get("versions"):  # the row does not say which weights sampled
        return metric_rows.number(row, "mismatch_kl/all/mean")
    return metric_rows.number(on_policy(row) or {}, "mismatch_kl_mean")


def mismatch(rows: Sequence[Row], window: int) -> Finding | None:
    """Returns a finding if the trainer and the sampler, with the same weights, compute different
    probabilities of the sampled tokens, else None. `rows` are the lines of `metrics.jsonl`; means are over
    `window` steps."""
    kl = series(rows, _mismatch_kl, window)
    if kl is None:
        return None
    growth = max(LIMITS.mismatch_floor, LIMITS.mismatch_growth * max(0.0, kl.low_start))
    limit = min(LIMITS.mismatch, growth)
    step = kl.began(lambda mean: mean > limit)
    if step is None:
        return None
    return Finding(
        "mismatch",
        "fail",
        step,
        f"mismatch_kl {kl.low_start:.2g} → {kl.last:.2g} nats per token (limit {limit:.2g})",
        f"likely causes: {CAUSES}; compare with --inference transformers",
    )
