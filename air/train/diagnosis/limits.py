"""The limits from which `air doctor RUN` reports a problem, in one table (also in docs/doctor.md)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Limits of the checks. A "mean" is over the last steps (see `window`); a "start" is the mean over the
    same number of first steps."""

    fewest_steps: int = 6
    """Fewest steps for a full examination. In shorter runs, only failures and weights are checked."""
    no_spread: float = 0.6
    """Mean share of groups with equal rewards from which the run learns too little."""
    entropy: float = 0.2
    """Mean entropy, as a share of its start, below which the policy has collapsed."""
    mismatch: float = 1e-2
    """Mean `mismatch_kl`, in nats per token, above which the sampler differs from the trained policy."""
    mismatch_growth: float = 20.0
    """Factor by which the mean `mismatch_kl` may grow from its start, once it is above `mismatch_floor`."""
    mismatch_floor: float = 1e-4
    """A mean `mismatch_kl` below this number is rounding, however much it has grown."""
    reference_kl: float = 0.5
    """Mean distance from the reference model, in nats per token, from which the policy has left it."""
    reference_kl_growth: float = 5.0
    """Factor by which the distance from the reference model must have grown from its start to be reported."""
    starving: float = 0.25
    """A source of tasks starves if its share of all groups with unequal rewards is less than this part of its
    share of all groups."""
    starving_groups: int = 8
    """Fewest groups of a source in the last steps for which the source is judged."""
    task_failures: float = 0.25
    """Share of failed episodes from which a task is reported, if all others fail less than half as often."""
    task_failed_episodes: int = 3
    """Fewest failed episodes of a task from which the task is reported."""
    failures: float = 0.5
    """Mean share of failed episodes from which a run is reported."""
    bottleneck: float = 0.5
    """Share of the episodes' time from which the queue, commands or grading is a bottleneck."""
    sampling: float = 0.85
    """Share of the episodes' time from which sampling (the model's replies) is a bottleneck."""
    cut: float = 0.3
    """Mean share of episodes ending at the context limit or by a cut reply, from which a run is reported."""
    cut_growth: float = 2.0
    """Factor by which this share must have grown from its start, unless it is above twice `cut`."""
    gradient_spike: float = 10.0
    """A gradient norm is a spike if it is more than this number times the median of the steps before, and the
    same holds for the steps after."""
    gradient_spikes: int = 2
    """Fewest gradient spikes from which a run is reported."""
    gradient_growth: float = 10.0
    """Factor by which the median gradient norm must have grown from its start to be reported."""
    test_gap: float = 0.1
    """Growth of the gap between φ on the validation and on the test split from which a run is reported."""
    reward_gain: float = 0.02
    """Growth of the mean reward from which the reward counts as rising."""
    malformed: float = 0.5
    """Mean share of well-formed replies, as a share of its start, below which the format is lost."""

    def window(self, rows: int) -> int:
        """Returns the number of steps over which means are taken, in a run of `rows` steps: a quarter, 3 to
        10."""
        return min(10, max(3, rows // 4))


LIMITS = Limits()
