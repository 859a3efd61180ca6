"""The limits at which the checks of `air doctor RUN` report a problem of a training run. docs/doctor.md has
the same table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Limits of the checks of a training run. "Report" means that a check returns a finding, which
    `air doctor` shows. A "mean" is the mean of a metric over the last steps, and its "start" is the mean over
    the first steps. Both cover the number of steps that `window` returns. For entropy, well-formed replies,
    `mismatch_kl` and the distance to the reference model, the start is instead the value of the first step if
    this value is better than the mean over the first steps, so that a change in the first steps counts."""

    fewest_steps: int = 6
    """Smallest number of steps for which all checks run. In shorter runs, only the checks for failed or
    ungraded episodes and for the sampler's weights run."""
    no_spread: float = 0.6
    """Report if the mean share of groups with equal rewards is at least this number: the policy then learns
    from too few groups."""
    no_update: float = 0.6
    """Report if at least this share of the steps did not change the weights. Only steps in which some group
    has unequal rewards count."""
    entropy: float = 0.2
    """Report a collapse of the policy if the mean entropy is below this number times its start."""
    mismatch: float = 1e-2
    """Report if the mean `mismatch_kl` (the divergence between the sampler's and the trainer's probabilities
    of tokens) is above this number, in nats per token."""
    mismatch_growth: float = 20.0
    """Report also if the mean `mismatch_kl` is above this number times its start, and above
    `mismatch_floor`."""
    mismatch_floor: float = 1e-4
    """A mean `mismatch_kl` up to this number, in nats per token, counts as rounding and is never reported."""
    reference_kl: float = 0.5
    """Report if the mean distance between the policy and its reference model is above this number, in nats
    per token, and has grown by the factor `reference_kl_growth`."""
    reference_kl_growth: float = 5.0
    """The second condition of `reference_kl`: the policy's mean distance from its reference model must also
    be above this number times its start."""
    starving: float = 0.25
    """Report a source of tasks if few of its groups have unequal rewards: the source's share of all groups
    with unequal rewards is less than this number times the source's share of all groups."""
    starving_groups: int = 8
    """Report a source of tasks (see `starving`) only if it has at least this number of groups in the last
    steps."""
    task_failures: float = 0.25
    """Report a task if at least this share of its episodes ended with an infrastructure error (of air or the
    machine, not of the agent), and if the share over all other tasks together is less than half as large."""
    task_failed_episodes: int = 3
    """Report a task (see `task_failures`) only if at least this number of its episodes ended with an
    infrastructure error."""
    ungraded_episodes: int = 16
    """Report a task if its grader failed in at least this number of episodes in a row."""
    failures: float = 0.5
    """Report if the mean share of episodes with infrastructure errors is at least this number."""
    bottleneck: float = 0.5
    """Report a bottleneck if waiting for boxes (the agents' containers), running commands, or grading takes
    at least this share of the episodes' time."""
    sampling: float = 0.85
    """Report a bottleneck if sampling (the model's replies) takes at least this share of the episodes'
    time."""
    cut: float = 0.3
    """Report if the mean share of episodes that end at the context limit, or with a reply cut off at the
    token limit, is at least this number."""
    cut_growth: float = 2.0
    """Second condition of the report on cut-off episodes (see `cut`): the mean share must be at least this
    number times its start, or at least this number times the limit `cut`."""
    gradient_spike: float = 10.0
    """A gradient norm is a spike if it is more than this number times the median of the steps before it, and
    more than this number times the median of the steps after it."""
    gradient_spikes: int = 2
    """Report if a run has at least this number of gradient spikes."""
    gradient_growth: float = 10.0
    """Report if the median of the gradient norms of the last steps is above this number times that of the
    first steps."""
    test_gap: float = 0.1
    """Report if the normalised score φ on the validation split minus that on the test split has grown by more
    than this number, and the reward is rising."""
    reward_gain: float = 0.02
    """The reward counts as rising if its mean is at least this much above its start."""
    malformed: float = 0.5
    """Report if the mean share of well-formed replies is below this number times its start."""

    def window(self, rows: int) -> int:
        """Returns the number of steps over which means are taken in a run of `rows` steps: a quarter of the
        steps, but at least 3 and at most 10."""
        return min(10, max(3, rows // 4))


LIMITS = Limits()
