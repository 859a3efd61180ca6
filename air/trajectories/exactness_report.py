"""Summarises, for a training run, how exactly the trainer computes the log-probabilities that the sampler
(the inference server) computed for the same tokens. The differences are reported for all training steps
together, and by the version of the weights that sampled the tokens."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from air.trajectories import metric_rows


@dataclass(frozen=True)
class Agreement:
    """The differences, in nats, between the trainer's and the sampler's log-probabilities of the same trained
    tokens. `tokens` is how many tokens were compared. `mismatch_kl` of a token is ρ − log ρ − 1, where ρ is
    the trainer's probability divided by the sampler's. Its mean estimates KL(sampler ‖ trainer)."""

    tokens: int = 0
    mismatch_kl_mean: float = 0.0
    mismatch_kl_max: float = 0.0
    logprob_diff_mean: float = 0.0
    """The mean absolute difference between the trainer's and the sampler's log-probability of a token, in
    nats."""
    logprob_diff_max: float = 0.0


@dataclass(frozen=True)
class ExactnessReport:
    """A report on a training run: how much the log-probabilities of the trained tokens differ between the
    trainer and the sampler (the inference server)."""

    versions: Mapping[int, Agreement]
    """The differences by the version of the weights that sampled the tokens. A version is the number of the
    training step that made the weights; 0 for the weights at the start of the run."""
    total: Agreement
    off_policy_tokens: int
    """The number of off-policy tokens: trained tokens that were sampled by older weights than those that the
    training step updated."""
    off_policy_max: int
    """The largest age of the weights that sampled an episode: the number of updates between sampling and
    training."""
    branches_mean: float | None
    """The mean number of training samples (branches) per episode; None if unknown. It is above 1 if later
    prompts of an episode changed earlier tokens, so that the episode is not one token sequence."""
    branches_max: int


def exactness(rows: Sequence[Mapping[str, Any]]) -> ExactnessReport | None:
    """Computes how much the log-probabilities of the trained tokens differ between the trainer and the
    sampler of a run. `rows` are the lines of the run's `metrics.jsonl`. Returns None if no line contains such
    differences, as in older runs."""
    parts: dict[int, list[Agreement]] = {}
    for row in rows:
        for version, cell in (row.get("versions") or {}).items():
            parts.setdefault(int(version), []).append(Agreement(**cell))
    if not parts:
        return None
    versions = {version: together(part) for version, part in sorted(parts.items())}
    prefix = "train/agg/effective/num_branches"
    means = [
        (metric_rows.number(row, f"{prefix}/mean"), row["episodes"] - row["failed_episodes"])
        for row in rows
    ]
    known = [(mean, count) for mean, count in means if mean is not None]
    episodes = sum(count for _, count in known)
    return ExactnessReport(
        versions=versions,
        total=together(versions.values()),
        off_policy_tokens=int(_sum(rows, "off_policy/tokens")),
        off_policy_max=int(_largest(rows, "off_policy/max")),
        branches_mean=sum(mean * n for mean, n in known) / episodes if episodes else None,
        branches_max=int(_largest(rows, f"{prefix}/max")),
    )


def together(parts: Iterable[Agreement]) -> Agreement:
    """Combines the log-probability differences of several sets of tokens into those of all these tokens
    together: the mean of the means, weighted by the number of tokens in each set, and the largest of the
    maxima."""
    each = [part for part in parts if part.tokens]
    tokens = sum(part.tokens for part in each)
    if not tokens:
        return Agreement()
    return Agreement(
        tokens=tokens,
        mismatch_kl_mean=math.fsum(p.mismatch_kl_mean * p.tokens for p in each) / tokens,
        mismatch_kl_max=max(p.mismatch_kl_max for p in each),
        logprob_diff_mean=math.fsum(p.logprob_diff_mean * p.tokens for p in each) / tokens,
        logprob_diff_max=max(p.logprob_diff_max for p in each),
    )


def _sum(rows: Sequence[Mapping[str, Any]], name: str) -> float:
    return sum(metric_rows.number(row, name) or 0.0 for row in rows)


def _largest(rows: Sequence[Mapping[str, Any]], name: str) -> float:
    return max((metric_rows.number(row, name) or 0.0 for row in rows), default=0.0)
