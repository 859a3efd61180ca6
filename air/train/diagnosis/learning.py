"""Checks of what a training run learns: equal rewards, collapse of the policy, large gradients, and replies
that no longer follow the action format. All checks are called by `examine`."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from air.train.diagnosis.finding import Finding
from air.train.diagnosis.series import (
    Row,
    Series,
    of_updates,
    percent,
    ratio,
    rows_that_need_spread,
    series,
)
from air.train.diagnosis.thresholds import LIMITS
from air.trajectories import metric_rows

_FEWEST_BEFORE_SPIKE = 5


def no_spread(rows: Sequence[Row], window: int) -> Finding | None:
    """Returns a finding if most groups (episodes of one task that are compared) have equal rewards, so that
    the policy learns nothing from them, else None. `rows` are the lines of `metrics.jsonl`; means are over
    `window` steps."""
    shares = series(rows_that_need_spread(rows), ratio("zero_spread_groups", "groups"), window)
    step = shares.began(lambda mean: mean >= LIMITS.no_spread) if shares else None
    if shares is None or step is None:
        return None
    return Finding(
        "no spread",
        "fail",
        step,
        f"{percent(shares.last)} of the groups of the last {window} steps have equal rewards "
        f"(limit {percent(LIMITS.no_spread)})",
        "play tasks that the model solves sometimes (tasks of [[orchestrator.train.source]]), or raise "
        "orchestrator.group_size or orchestrator.train.sampling.temperature",
    )


def no_update(rows: Sequence[Row], window: int) -> Finding | None:
    """Returns a finding if many steps do not change the weights, although groups have unequal rewards, else
    None. The cause is that the algorithm gives all tokens the advantage 0. `rows` are the lines of
    `metrics.jsonl`; means are over `window` steps."""
    shares = series(rows, _lacks_update, window)
    step = shares.began(lambda mean: mean >= LIMITS.no_update) if shares else None
    if shares is None or step is None:
        return None
    return Finding(
        "no update",
        "fail",
        step,
        f"{percent(shares.last)} of the last {window} such steps, with unequal rewards in a group, did not "
        f"change the weights (limit {percent(LIMITS.no_update)})",
        'orchestrator.algo.type = "max_rl" skips groups whose mean reward is not above 0: give rewards from '
        "0 on, or take another algorithm; with [embedded.estimator], check the advantages it returns",
    )


def _lacks_update(row: Row) -> float | None:
    """Returns 1 if a training step did not change the weights, and 0 if it did. `row` is the step's line of
    `metrics.jsonl`. Returns None if the policy had nothing to learn in this step: no group had unequal
    rewards, or the step trained only the value model (a warm-up step)."""
    updated, groups, equal = (
        metric_rows.number(row, name) for name in ("train/updated", "groups", "zero_spread_groups")
    )
    if updated is None or groups is None or equal is None or equal >= groups:
        return None
    return None if not updated and "train/value_loss" in row else 1.0 - updated


def entropy_collapse(rows: Sequence[Row], window: int) -> Finding | None:
    """Returns a finding if the policy's mean entropy over the last `window` steps has fallen so far that its
    replies hardly vary any more, else None. `rows` are the lines of `metrics.jsonl`."""
    entropy = series(rows, of_updates("entropy/all/mean"), window)
    limit = LIMITS.entropy * entropy.high_start if entropy else 0.0
    step = entropy.began(lambda mean: mean < limit) if entropy else None
    if entropy is None or step is None:
        return None
    return Finding(
        "entropy collapse",
        "fail",
        step,
        f"entropy {entropy.high_start:.3g} → {entropy.last:.3g} nats per token (limit {limit:.3g})",
        "go back to a checkpoint before it (--resume.step), lower trainer.optim.lr, or raise "
        "orchestrator.train.sampling.temperature",
    )


def growing_kl(rows: Sequence[Row], window: int) -> Finding | None:
    """Returns a finding if the policy has moved far away from its reference model (large KL divergence), else
    None. `rows` are the lines of `metrics.jsonl`; means are over `window` steps."""
    kl = series(rows, "train/reference_kl", window)
    growth = LIMITS.reference_kl_growth * kl.low_start if kl else 0.0
    limit = max(LIMITS.reference_kl, growth)
    step = kl.began(lambda mean: mean > limit) if kl else None
    if kl is None or step is None:
        return None
    return Finding(
        "growing kl",
        "fail",
        step,
        f"penalty for the distance {kl.low_start:.3g} → {kl.last:.3g} nats per token (limit {limit:.3g})",
        "raise coefficient under [embedded.kl], or lower trainer.optim.lr",
    )


def gradient_spikes(rows: Sequence[Row], window: int) -> Finding | None:
    """Returns a finding if several steps have a gradient norm that is many times the median of the `window`
    steps before and of those after, else None. A rise that lasts is not a spike; `gradient_growth` reports
    it. `rows` are the lines of `metrics.jsonl`."""
    norms = series(rows, of_updates("optim/grad_norm"), window)
    values = list(norms.values) if norms else []
    spikes = [
        (number, value / middle)
        for number, value in enumerate(values)
        if number >= _FEWEST_BEFORE_SPIKE
        and (middle := median(values[max(0, number - window) : number])) > 0
        and value > LIMITS.gradient_spike * middle
        and not _stays(values[number : number + window + 1])
    ]
    if norms is None or len(spikes) < LIMITS.gradient_spikes:
        return None
    return Finding(
        "gradient spikes",
        "fail",
        norms.steps[spikes[0][0]],
        f"{len(spikes)} of {len(values)} steps, up to {max(ratio for _, ratio in spikes):.3g} times the "
        f"median of the steps before (limit {LIMITS.gradient_spike:g})",
        "lower trainer.optim.lr, or trainer.optim.max_norm, which clips the gradient; look at the episodes "
        "of that step",
    )


def _stays(values: Sequence[float]) -> bool:
    """Whether a high gradient norm begins a lasting rise and is not a spike. `values` has this norm, followed
    by the norms of later steps. The rise lasts if this norm is not many times the median of the later ones.
    Returns False if there are no later norms."""
    return len(values) > 1 and values[0] <= LIMITS.gradient_spike * median(values[1:])


def gradient_growth(rows: Sequence[Row], window: int) -> Finding | None:
    """Returns a finding if the gradient norm has risen to many times the norm at the start of the run, and
    has not fallen again, else None. Compares medians over `window` steps, because single spikes hardly change
    them. `rows` are the lines of `metrics.jsonl`."""
    norms = series(rows, of_updates("optim/grad_norm"), window)
    if norms is None:
        return None
    medians = [
        median(norms.values[end - window : end]) for end in range(window, len(norms.values) + 1)
    ]
    first, last = medians[0], medians[-1]
    limit = LIMITS.gradient_growth * first
    # Index of the first median from which on all medians are above the limit. A median's index is that of its
    # first step.
    start = Series(range(len(medians)), medians, 1).began(lambda middle: middle > limit)
    if not first or start is None:
        return None
    step = next(
        s for s, v in zip(norms.steps[start:], norms.values[start:], strict=True) if v > limit
    )
    return Finding(
        "gradient growth",
        "fail",
        step,
        f"gradient norm {first:.3g} → {last:.3g} (median of {window} steps; limit {limit:.3g})",
        "go back to a checkpoint before it (--resume.step), and lower trainer.optim.lr",
    )


def lost_format(rows: Sequence[Row], window: int) -> Finding | None:
    """Returns a finding if the share of replies that contain a well-formed action has fallen far below its
    value at the start of the run, else None. `rows` are the lines of `metrics.jsonl`; means are over `window`
    steps."""
    formed = series(rows, "well_formed", window)
    limit = LIMITS.malformed * formed.high_start if formed else 0.0
    step = formed.began(lambda mean: mean < limit) if formed else None
    if formed is None or step is None:
        return None
    return Finding(
        "lost format",
        "fail",
        step,
        f"well-formed replies {percent(formed.high_start)} → {percent(formed.last)} (limit {percent(limit)})",
        "lower trainer.optim.lr, or raise format_penalty under [orchestrator.train.source.env]",
    )


def validation_leaves_test(rows: Sequence[Row], window: int) -> Finding | None:
    """Returns a finding if the reward rises while the gap between the validation score and the test score
    grows (the policy overfits the validation data), else None. `rows` are the lines of `metrics.jsonl`; means
    are over `window` steps."""
    gap, reward = (series(rows, name, window) for name in ("validation_test_gap", "reward"))
    if gap is None or reward is None or reward.last - reward.first < LIMITS.reward_gain:
        return None
    step = gap.began(lambda mean: mean - gap.first > LIMITS.test_gap)
    if step is None:
        return None
    return Finding(
        "validation leaves test",
        "fail",
        step,
        f"reward {reward.first:+z.3f} → {reward.last:+z.3f}, gap of φ to the test split {gap.first:+z.3f} → "
        f"{gap.last:+z.3f} (limit +{LIMITS.test_gap:g})",
        "read the artefacts (air view RUN), raise validate_penalty under [orchestrator.train.source.env], or "
        "give the task a larger validation split",
    )
