"""Whitens advantages: shifts and scales them so that over all tokens that the model generated in a training
step, their mean is 0 and their variance 1.

    A_t ← (A_t − mean(A)) / sqrt(var(A) + 1e-8)          var: n − 1 in the denominator

A_t is the advantage of token t. This is the same computation as the function `masked_whiten` in AgentFly and
verl. If a step has fewer than two tokens, its advantages are not changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from air.train.algorithms.base import Credit, GroupCredits, ScoredGroup

SMALLEST_VARIANCE = 1e-8
"""The number that is added to the variance, so that equal advantages cause no division by 0."""


def whitened(
    groups: Sequence[ScoredGroup], credits: Sequence[GroupCredits]
) -> Sequence[GroupCredits]:
    """Returns `credits`, the results of an algorithm for all `groups` of a step, with whitened advantages:
    shifted and scaled so that their mean over all sampled tokens of the step is 0 and their variance 1. An
    advantage that applies to a whole part counts once for each of the part's tokens."""
    each: list[tuple[float, int]] = []  # an advantage, and the number of tokens that have it
    for group, of_group in zip(groups, credits, strict=True):
        for episode, of_episode in zip(group.episodes, of_group, strict=True):
            for part, credit in zip(episode or (), of_episode, strict=True):
                if isinstance(credit.advantage, float | int):
                    each.append((credit.advantage, part.tokens))
                else:
                    each += [(a, 1) for a in credit.advantage]
    count = sum(tokens for _, tokens in each)
    if count < 2:
        return credits
    mean = math.fsum(a * tokens for a, tokens in each) / count
    variance = math.fsum((a - mean) ** 2 * tokens for a, tokens in each) / (count - 1)
    scale = 1 / math.sqrt(variance + SMALLEST_VARIANCE)
    return [
        [[_mapped(credit, lambda a: (a - mean) * scale) for credit in e] for e in of_group]
        for of_group in credits
    ]


def _mapped(credit: Credit, function: Callable[[float], float]) -> Credit:
    if isinstance(credit.advantage, float | int):
        return replace(credit, advantage=function(credit.advantage))
    return replace(credit, advantage=[function(a) for a in credit.advantage])
