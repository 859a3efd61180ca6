"""From groups of played episodes to training samples with an advantage for every sampled token."""

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
"""A smaller advantage is rounding: nothing is learnt from it."""


@dataclass(frozen=True)
class Part:
    """Nodes of a trace that were rewarded together."""

    trace: Any
    nodes: frozenset[int]
    """Their indices."""
    reward: float


def parts_of(rollout: Rollout, *, by_turn: bool) -> list[Part]:
    """The parts of an episode that earned something of their own: its traces, or each of its turns."""
    if by_turn:
        return [part for trace in rollout.traces for part in turns(trace)]
    return [Part(t, frozenset(range(len(t.nodes))), float(t.reward)) for t in rollout.traces]


def turns(trace: Any) -> list[Part]:
    """One part for each reply, with what arose after it and before the next.

    What the trace's environment does not place (`info["air"]["paid"]`) is earned by the last reply.
    """
    said = [index for index, node in enumerate(trace.nodes) if node.sampled]
    if not said:
        return [Part(trace, frozenset(), float(trace.reward))]
    earned = dict.fromkeys(said, 0.0)
    placed = 0.0
    for payment in trace.info.get("air", {}).get("paid", []):
        value = sum(payment["terms"].values())
        earned[max((i for i in said if i < payment["nodes"]), default=said[0])] += value
        placed += value
    earned[said[-1]] += float(trace.reward) - placed
    return [Part(trace, frozenset([index]), reward) for index, reward in earned.items()]


def samples(
    groups: Sequence[Group],
    estimator: Estimator,
    temperature: float,
    *,
    by_turn: bool = False,
    shuffle: random.Random | None = None,
) -> list[Sample]:
    """One sample a branch; episodes that failed, and branches without advantage, give none.

    Args:
        temperature: at which the replies were drawn.
        by_turn: each turn is paid by its reward-to-go, instead of each trace by its reward.
        shuffle: a control experiment: the parts' rewards change places within their group.
    """
    found: list[Sample] = []
    for group in groups:
        played = [parts_of(r, by_turn=by_turn) if r.ok else None for r in group.rollouts]
        rewards = [None if parts is None else [p.reward for p in parts] for parts in played]
        if shuffle is not None:
            rewards = _shuffled(rewards, shuffle)
        advantages = (reward_to_go if by_turn else segments)(rewards, estimator)
        for rollout, parts, values in zip(group.rollouts, played, advantages, strict=True):
            rollout.advantage = fmean(values) if values else None
            found += _of_episode(parts or [], values, temperature)
    return found


def _shuffled(
    rewards: Sequence[list[float] | None], rng: random.Random
) -> list[list[float] | None]:
    pool = [reward for parts in rewards if parts is not None for reward in parts]
    left = iter(rng.sample(pool, len(pool)))
    return [None if parts is None else [next(left) for _ in parts] for parts in rewards]


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
    """A reply that several branches share is trained in the first, and context in the others."""
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
            yield Sample(branch.token_ids, mask, branch.logprobs, advantages, temperature)
