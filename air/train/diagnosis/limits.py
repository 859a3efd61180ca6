"""The limits at which `air doctor RUN` reports something, in one table (also in docs/doctor.md)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Limits of the checks. A mean is over the last steps (`window`), a start over as many first steps."""

    fewest_steps: int = 6
    """A shorter run is too short to judge: only its failures, its weights and its times are checked."""
    no_spread: float = 0.6
    """Mean share of groups without spread from which too little is learnt."""
    entropy: float = 0.2
    """Mean entropy, as a share of its start, below which the policy has collapsed."""
    mismatch: float = 1e-2
    """Mean `mismatch_kl` in nats from which the sampler is not the policy that is trained."""
    mismatch_growth: float = 20.0
    """Factor by which the mean `mismatch_kl` may grow from its start, once it is above `mismatch_floor`."""
    mismatch_floor: float = 1e-4
    """A mean `mismatch_kl` below this is rounding, however much it grew."""
    reference_kl: float = 0.5
    """Mean distance from the reference model, in nats per token, from which the policy has left it."""
    reference_kl_growth: float = 5.0
    """Factor by which this distance must have grown from its start to be reported."""
    starving: float = 0.25
    """A source starves if its share of the groups with spread is below this part of its share of groups."""
    starving_groups: int = 8
    """Number of a source's groups, in the last steps, from which it can be said to starve."""
    task_failures: float = 0.25
    """Share of failed episodes from which a task is reported, if others fail less than half as often."""
    task_failed_episodes: int = 3
    """Number of a task's failed episodes from which it is reported."""
    failures: float = 0.5
    """Mean share of failed episodes from which a run is reported."""
    bottleneck: float = 0.5
    """Share of the episodes' time in the queue, in commands or in grading from which it is a bottleneck."""
    sampling: float = 0.85
    """Share of the episodes' time in the model from which sampling is a bottleneck."""
    cut: float = 0.3
    """Mean share of episodes that end by the context or by a cut reply from which a run is reported."""
    cut_growth: float = 2.0
    """Factor by which this share must have grown from its start, unless it is above twice `cut`."""
    gradient_spike: float = 10.0
    """Gradient norm, as a multiple of the median of the steps before and of those after, that is a spike."""
    gradient_spikes: int = 2
    """Number of such steps from which a run is reported."""
    gradient_growth: float = 10.0
    """Factor by which the median gradient norm must have grown from its start to be reported."""
    test_gap: float = 0.1
    """Growth of the gap between φ on the validation and on the test split from which a run is reported."""
    reward_gain: float = 0.02
    """Growth of the mean reward from which it counts as rising."""
    malformed: float = 0.5
    """Mean share of well-formed replies, as a share of its start, below which the format is lost."""

    def window(self, rows: int) -> int:
        """Returns the number of steps that a mean is over, in a run of `rows` steps: a quarter, 3 to 10."""
        return min(10, max(3, rows // 4))


LIMITS = Limits()
