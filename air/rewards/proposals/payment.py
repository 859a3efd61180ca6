"""What a proposal is paid, by the name of a definition.

With p̂ of `agreement`, |c|/B the share of the proposal's cluster (`novelty`), and N tool calls:

    as_coded     (min(p̂, 1 − p̂), or −1 without a question) − |c|/B + 0.05 · min(N, 4)
    published    format · max(0, λ_unc · (1 − 2|p̂ − ½|) + λ_tool · 0.05 · min(N, 4) − λ_rep · |c|/B)

`as_coded` counts the calls that the proposer made, `published` the mean of those that the executor made.
N counts calls that a world carried out, never text that looks like a call. `as_coded` pays a proposal without
a question −1 and nothing else: it has no cluster. From Agent0 (arXiv 2511.16043; project aiming-lab/Agent0).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from air.rewards.proposals.agreement import Definition

PER_CALL, MOST_CALLS = 0.05, 4


@dataclass(frozen=True)
class Proposal:
    """What is known about a proposal when it is paid."""

    well_formed: bool
    p_hat: float = 0.0
    cluster_share: float = 0.0
    """|c|/B, between 0 and 1."""
    own_calls: int = 0
    """The number of tool calls that the proposer made."""
    executor_calls: float = 0.0
    """The mean number of tool calls in an answer of the executor."""


@dataclass(frozen=True)
class Weights:
    """The factors of the terms. In `as_coded` that of uncertainty is 1, as in the original."""

    uncertainty: float = 1.0
    tool: float = 1.0
    repetition: float = 1.0


def as_coded(proposal: Proposal, weights: Weights = Weights()) -> float:
    """Returns the reward as Agent0's code has it."""
    if not proposal.well_formed:
        return -1.0
    calls = PER_CALL * min(proposal.own_calls, MOST_CALLS)
    return (
        weights.uncertainty * min(proposal.p_hat, 1 - proposal.p_hat)
        - weights.repetition * proposal.cluster_share
        + weights.tool * calls
    )


def published(proposal: Proposal, weights: Weights = Weights()) -> float:
    """Returns the reward as Agent0's paper has it."""
    if not proposal.well_formed:
        return 0.0
    uncertainty = 1 - 2 * abs(proposal.p_hat - 0.5)
    calls = PER_CALL * min(proposal.executor_calls, MOST_CALLS)
    repetition = weights.repetition * proposal.cluster_share
    return max(0.0, weights.uncertainty * uncertainty + weights.tool * calls - repetition)


REWARDS: dict[Definition, Callable[[Proposal, Weights], float]] = {
    "as_coded": as_coded,
    "published": published,
}
"""The rewards of proposals by name."""
