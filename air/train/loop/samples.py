"""Makes training samples (token sequences) from groups of episodes, with an advantage for each token."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from air.train.algorithms import Estimator
from air.train.algorithms.episode_baselines import reward_to_go, segments
from air.train.loop.rollout import Group, Rollout
from air.train.loop.trainer import Sample

NEGLIGIBLE = 1e-9
"""An advantage with a smaller absolute value counts as 0, because it is a rounding error."""


@dataclass(frozen=True)
class Part:
    """Part of an episode that gets one reward: messages of a trace (verifiers' record of a conversation)."""

    trace: Any
    nodes: frozenset[int]
    """The indices of the part's messages in `trace.nodes`."""
    reward: float


def parts_of(rollout: Rollout, *, by_turn: bool) -> list[Part]:
    """Returns the parts of an episode that have their own reward: the turns if `by_turn`, else the traces."""
    if by_turn:
        return [part for trace in rollout.traces for part in turns(trace)]
    return [Part(t, frozenset(range(len(t.nodes))), float(t.reward)) for t in rollout.traces]


def turns(trace: Any) -> list[Part]:
    """Returns a `Part` (reply, reward) for each reply of a trace. A reply earns all rewards that arise before
    the next reply; the trace's `info["air"]["paid"]` lists them. If their sum is not the trace's reward, the
    last reply gets the difference."""
    replies = [index for index, node in enumerate(trace.nodes) if node.sampled]
    if not replies:
        return [Part(trace, frozenset(), float(trace.reward))]
    earned = dict.fromkeys(replies, 0.0)
    total = 0.0
    for payment in trace.info.get("air", {}).get("paid", []):
        value = sum(payment["terms"].values())
        earned[max((i for i in replies if i < payment["nodes"]), default=replies[0])] += value
        total += value
    earned[replies[-1]] += float(trace.reward) - total
    return [Part(trace, frozenset([index]), reward) for index, reward in earned.items()]


def samples(
    groups: Sequence[Group],
    estimator: Estimator,
    temperature: float,
    *,
    by_turn: bool = False,
    shuffle: random.Random | None = None,
) -> list[Sample]:
    """Computes advantages, and returns one training sample for each branch of the episodes' traces.

    A branch is one linear conversation in a trace. Failed episodes, and branches whose advantages are all 0,
    give no sample. Also sets `advantage` of each rollout. `temperature` is the sampling temperature. With
    `by_turn` each turn has an advantage, from its own and all later rewards; otherwise each trace has one.
    `shuffle` shuffles the rewards within each group, for a control experiment.
    """
    result: list[Sample] = []
    for group in groups:
        played = [parts_of(r, by_turn=by_turn) if r.ok else None for r in group.rollouts]
        rewards = [None if parts is None else [p.reward for p in parts] for parts in played]
        if shuffle is not None:
            rewards = _shuffled(rewards, shuffle)
        advantages = (reward_to_go if by_turn else segments)(rewards, estimator)
        for rollout, parts, values in zip(group.rollouts, played, advantages, strict=True):
            rollout.advantage = fmean(values) if values else None
            result += _of_episode(parts or [], values, temperature)
    return result


def _shuffled(
    rewards: Sequence[list[float] | None], rng: random.Random
) -> list[list[float] | None]:
    pool = [reward for parts in rewards if parts is not None for reward in parts]
    shuffled = iter(rng.sample(pool, len(pool)))
    return [None if parts is None else [next(shuffled) for _ in parts] for parts in rewards]


def _of_episode(
    parts: Sequence[Part], advantages: Sequence[float], temperature: float
) -> Iterator[Sample]:
    traces = {id(part.trace): part.trace for part in parts}
    for trace in traces.values():
        by_node = {
            id(trace.nodes[index]): advantage
            for part, advantage in zip(parts, advantages, strict=True)
            if part.trace is trace and abs(advantage) >= NEGLIGIBLE
            for index in part.nodes
        }
        yield from _of_trace(trace, by_node, temperature)


def _of_trace(trace: Any, by_node: dict[int, float], temperature: float) -> Iterator[Sample]:
    """Yields one sample per branch of a trace that has a trained token with an advantage.
    A reply in several branches is trained only in the first. `by_node` maps a message's `id()` to its
    advantage."""
    trained: set[int] = set()
    for branch in trace.branches:
        mask: list[bool] = []
        advantages: list[float] = []
        for node in branch.nodes:
            first = id(node) not in trained
            mask += [sampled and first for sampled in node.mask]
            advantages += [by_node.get(id(node), 0.0)] * len(node.mask)
            trained.add(id(node))
        if any(value for value, sampled in zip(advantages, mask, strict=True) if sampled):
            ids, logprobs, nodes = branch.token_ids, branch.logprobs, tuple(branch.nodes)
            yield Sample(ids, mask, logprobs, advantages, temperature, nodes)
