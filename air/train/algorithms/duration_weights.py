"""Weights the advantages of any algorithm by the execution times of actions, if the setting
`embedded.duration_weight_cap` of a run file (TOML) asks for it.

Δt_t is the execution time of action t, and k is the cap (the setting). The advantages of the model's reply
that contains the action are multiplied by w_t:

    A_t ← w_t A_t          w_t = clip(Δt_t / c, 1/k, k)          c: such that the mean of w over the task is 1

If no weight is clipped, c is the mean of Δt, and w is the weight of Yang et al. 2025 (arXiv 2509.01684): Δt
divided by the mean of the batch. Their batch has one task; here the mean is over the actions of one task in
the step, so that a task with slow commands does not displace a task with fast ones.

The clip is not in the paper. With the clip, an action of an hour counts at most k times as much as an average
action. Without the clip, such an action would raise the mean of Δt, and so lower the weights of all other
actions. Commands that fail fast keep at least the weight 1/k. An agent that sleeps in a good episode raises
the weight of that action, up to k; this is inherent in the method.

A reply has the weight 1 if no execution time is known for it (see `ScoredReply.seconds`), for example because
it contains only a `validate`, the action that has the agent's work graded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, pstdev
from typing import Any

from air.train.algorithms.base import Algorithm, Credit, GroupCredits, ScoredGroup, ScoredPart

SHORTEST = 0.01
"""The smallest execution time of an action, in seconds, from which a weight is computed. Shorter times count
as this number, because they depend more on the machine than on the action."""
_HALVINGS = 60
"""The number of bisection steps in the search for the divisor of the durations with which the weights have
the mean 1. After these steps, the error of the divisor is as small as a rounding error."""


class WithDurationWeights(Algorithm):
    """An algorithm that wraps another one, `algorithm`, and multiplies the advantages of each model reply by
    a weight. The weight is proportional to the execution time of the action in the reply, and clipped to the
    range from 1 / `cap` to `cap`."""

    def __init__(self, algorithm: Algorithm, cap: float) -> None:
        self.algorithm, self.cap = algorithm, cap
        self.needs = algorithm.needs
        self.rewards_at_turns = algorithm.rewards_at_turns
        self._metrics: dict[str, float] = {}

    def __call__(self, group: ScoredGroup) -> GroupCredits:
        """Returns the wrapped algorithm's results for a group (the episodes of one prompt), unchanged. The
        weights are applied later, by `finish`."""
        return self.algorithm(group)

    def finish(
        self, groups: Sequence[ScoredGroup], credits: Sequence[GroupCredits]
    ) -> Sequence[GroupCredits]:
        """Calls `finish` of the wrapped algorithm, and multiplies each reply's advantages in the result by
        the reply's weight. The weight grows with the execution time of the action in the reply. `groups` are
        the groups of a training step, and `credits` the results of `__call__` for them. Returns the final
        results."""
        finished = self.algorithm.finish(groups, credits)
        weights = _by_reply(groups, self.cap)
        replies = sum(len(part.replies) for part in _parts(groups))
        self._metrics = _metrics_of_weights(list(weights.values()), replies)
        return [
            [
                [_weighted(c, part, weights) for c, part in zip(of_episode, e or (), strict=True)]
                for of_episode, e in zip(of_group, group.episodes, strict=True)
            ]
            for of_group, group in zip(finished, groups, strict=True)
        ]

    def metrics(self) -> dict[str, float]:
        """Returns the wrapped algorithm's metrics and those of the weights in the last step:
        `duration_weight/std`, `duration_weight/min` and `duration_weight/max` over the replies whose
        execution time is known, and `duration_weight/known`, the share of these replies among all replies."""
        return {**self.algorithm.metrics(), **self._metrics}

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the wrapped algorithm, for a checkpoint. The weights have no state, so a run
        can be resumed with or without weights."""
        return self.algorithm.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the state of the wrapped algorithm from `state`, a result of `state_dict`."""
        self.algorithm.load_state_dict(state)


def duration_weights(seconds: Sequence[float], cap: float) -> list[float]:
    """Returns a list with one weight for each action of a task. `seconds` has the execution time of each
    action, in the same order. The weights are proportional to these times, are clipped to the range from 1 /
    `cap` to `cap`, and have the mean 1. Times below `SHORTEST` count as `SHORTEST`. For an empty `seconds`,
    returns an empty list."""
    durations = [max(duration, SHORTEST) for duration in seconds]
    if not durations:
        return []

    def at(scale: float) -> list[float]:
        return [min(max(duration / scale, 1 / cap), cap) for duration in durations]

    # At `low` every weight is `cap`, at `high` every weight is 1 / `cap`.
    low, high = min(durations) / cap, max(durations) * cap
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if fmean(at(middle)) > 1 else (low, middle)
    return at(math.sqrt(low * high))


def _by_reply(groups: Sequence[ScoredGroup], cap: float) -> dict[tuple[int, int], float]:
    """Returns the weights, by execution time, of all replies in `groups` whose execution time is known:
    numbers from 1 / `cap` to `cap`, with the mean 1 over the replies to each task. The key of a weight is a
    pair: the `id()` of the `ScoredPart`, and the index of the reply in this part."""
    tasks: dict[tuple[str, str], dict[tuple[int, int], float]] = {}
    for group in groups:
        known = tasks.setdefault((group.source, group.task), {})
        for part in _parts([group]):
            for number, reply in enumerate(part.replies):
                if reply.seconds is not None:
                    known[id(part), number] = reply.seconds
    weights: dict[tuple[int, int], float] = {}
    for known in tasks.values():
        each = duration_weights(list(known.values()), cap)
        weights |= dict(zip(known, each, strict=True))
    return weights


def _parts(groups: Sequence[ScoredGroup]) -> Iterator[ScoredPart]:
    for group in groups:
        for episode in group.episodes:
            yield from episode or ()


def _weighted(credit: Credit, part: ScoredPart, weights: Mapping[tuple[int, int], float]) -> Credit:
    """Returns a copy of `credit` with the advantage of each token multiplied by the weight of the reply to
    which the token belongs. `credit` has the advantages of `part` (an episode, a segment or a turn). The keys
    of `weights` are pairs: the `id()` of a part, and the index of a reply in it. A reply without a weight
    keeps its advantages, and so does a part whose field `replies` is empty."""
    if not part.replies:
        return credit
    each: list[float] = []
    for number, reply in enumerate(part.replies):
        each += [weights.get((id(part), number), 1.0)] * reply.tokens
    advantages = credit.per_token(part.tokens)
    weighted = [w * a for w, a in zip(each, advantages, strict=True)]
    return replace(credit, advantage=weighted)


def _metrics_of_weights(weights: Sequence[float], replies: int) -> dict[str, float]:
    """Returns metrics of `weights`, the weights of the replies in a training step, by name:
    `duration_weight/std`, `duration_weight/min`, `duration_weight/max`, and `duration_weight/known`, the
    number of weights divided by `replies`, the number of all replies in the step. A metric is left out if
    there is no weight or reply to compute it from."""
    row = {"duration_weight/known": len(weights) / replies} if replies else {}
    if weights:
        row |= {
            "duration_weight/std": pstdev(weights),
            "duration_weight/min": min(weights),
            "duration_weight/max": max(weights),
        }
    return row
