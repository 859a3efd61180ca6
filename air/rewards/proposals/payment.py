"""The reward of a proposal, by one of two definitions.

With p̂ of `agreement`, |c|/B the share of the proposal's cluster (`novelty`), and N tool calls:

    as_coded     (min(p̂, 1 − p̂), or −1 without a question) − |c|/B + 0.05 · min(N, 4)
    published    format · max(0, λ_unc · (1 − 2|p̂ − ½|) + λ_tool · 0.05 · min(N, 4) − λ_rep · |c|/B)

In `as_coded`, N is the number of the proposer's calls; in `published`, it is the executor's mean number of
calls. N counts calls that a world carried out, not text that looks like a call. Without a well-formed
question there is no cluster, so `as_coded` pays exactly −1. From Agent0 (arXiv 2511.16043; project
aiming-lab/Agent0).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from air.rewards.proposals.agreement import Definition

PER_CALL, MOST_CALLS = 0.05, 4


@dataclass(frozen=True)
class Proposal:
    """The data of a proposal from which its reward is computed."""

    well_formed: bool
    p_hat: float = 0.0
    cluster_share: float = 0.0
    """|c|/B, the share of the proposal's cluster, from 0 to 1."""
    own_calls: int = 0
    """The number of tool calls that the proposer made."""
    executor_calls: float = 0.0
    """The mean number of tool calls in one of the executor's answers."""


@dataclass(frozen=True)
class Weights:
    """The factors of the reward's terms, for both definitions. All are 1 by default; Agent0's code has no
    factor for uncertainty."""

    uncertainty: float = 1.0
    tool: float = 1.0
    repetition: float = 1.0


def as_coded(proposal: Proposal, weights: Weights = Weights()) -> float:
    """Returns the reward by the definition in Agent0's code."""
    if not proposal.well_formed:
        return -1.0
    calls = PER_CALL * min(proposal.own_calls, MOST_CALLS)
    return (
        weights.uncertainty * min(proposal.p_hat, 1 - proposal.p_hat)
        - weights.repetition * proposal.cluster_share
        + weights.tool * calls
    )


def published(proposal: Proposal, weights: Weights = Weights()) -> float:
    """Returns the reward by the definition in Agent0's paper."""
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
"""The function that computes the reward, by the name of the definition."""
