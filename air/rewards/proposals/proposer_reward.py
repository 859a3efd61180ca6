"""The reward of a proposal (a question that one model, the proposer, wrote for another model, the executor),
by one of two definitions.

    as_coded     u + λ_tool · 0.05 · min(N, 4) − λ_rep · |c|/B, where u is −1 if the proposal is malformed,
                 else λ_unc · min(p̂, 1 − p̂)
    published    0 if the proposal is malformed, else
                 max(0, λ_unc · (1 − 2|p̂ − ½|) + λ_tool · 0.05 · min(N, 4) − λ_rep · |c|/B)

p̂ is the agreement of the executor's answers (see `agreement.py`), and |c|/B the share of the compared
proposals that are in this proposal's cluster (see `novelty.py`). The factors λ are `Weights`. N is a number
of tool calls: in `as_coded`, those of the proposer; in `published`, the executor's mean number per answer.
Only calls that a tool carried out without an error count, not text that looks like a call. Both definitions
are from Agent0 (arXiv 2511.16043; project aiming-lab/Agent0). The proposer of a task `proposal:…` has no
tools, so there N is 0 in `as_coded`.

A malformed proposal has no question. Agent0's code compares an empty text in its place, which is similar to
no other text, so |c| is 1: its reward with `as_coded` is −1 − λ_rep/B if it made no calls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from air.rewards.proposals.agreement import Definition

PER_CALL, MOST_CALLS = 0.05, 4


@dataclass(frozen=True)
class Proposal:
    """The data of a proposal (a question that a model wrote) from which its reward is computed. `well_formed`
    says whether the proposal is valid. `p_hat` is p̂, the agreement of the answers of another model, from 0
    to 1."""

    well_formed: bool
    p_hat: float = 0.0
    cluster_share: float = 0.0
    """|c|/B: the number of proposals in this proposal's cluster (the proposals similar to it, and itself),
    divided by the number of compared proposals."""
    proposer_calls: int = 0
    """The number of tool calls that the proposer made."""
    executor_calls: float = 0.0
    """The mean number of tool calls per answer of the executor."""


@dataclass(frozen=True)
class Weights:
    """The factors of the three terms in the reward of a proposal: `uncertainty` (the executor's answers
    disagree), `tool` (tool calls) and `repetition` (similar proposals; this term is subtracted). All are 1 by
    default. Agent0's code has no factor for uncertainty."""

    uncertainty: float = 1.0
    tool: float = 1.0
    repetition: float = 1.0


def as_coded(proposal: Proposal, weights: Weights = Weights()) -> float:
    """Returns a proposal's reward as Agent0's code defines it: u + `weights.tool` · 0.05 · min(the proposer's
    tool calls, 4) − `weights.repetition` · (the share of similar proposals). u is −1 if the proposal is
    malformed, else `weights.uncertainty` · min(p̂, 1 − p̂). p̂ is the agreement of the executor's answers."""
    uncertainty = weights.uncertainty * min(proposal.p_hat, 1 - proposal.p_hat)
    calls = weights.tool * PER_CALL * min(proposal.proposer_calls, MOST_CALLS)
    repetition = weights.repetition * proposal.cluster_share
    return (uncertainty if proposal.well_formed else -1.0) + calls - repetition


def malformed_reward(definition: Definition, window: int, weights: Weights = Weights()) -> float:
    """Returns the reward of a malformed proposal without tool calls, by a definition (a key of `REWARDS`).
    `window` is B, the number of compared proposals: a malformed one is alone in its cluster."""
    return REWARDS[definition](Proposal(False, cluster_share=1 / window), weights)


def published(proposal: Proposal, weights: Weights = Weights()) -> float:
    """Returns a proposal's reward as Agent0's paper defines it: 0 if the proposal is malformed, else max(0,
    `weights.uncertainty` · (1 − 2|p̂ − ½|) + `weights.tool` · 0.05 · min(the executor's tool calls, 4) −
    `weights.repetition` · (the share of similar proposals)). p̂ is the agreement of the executor's
    answers."""
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
"""The function that computes a proposal's reward, by the name of its definition."""
