"""Converts groups of episodes to training samples: token sequences with an advantage for each token."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from statistics import fmean, stdev
from typing import Any

from air.train.algorithms import base
from air.train.algorithms.base import Algorithm, Credit, Need, ScoredGroup
from air.train.loop.rollout import Group, Rollout
from air.train.tree.sample import Sample

NEGLIGIBLE = 1e-9
"""The absolute value below which an advantage counts as 0, because it comes from rounding errors."""


@dataclass(frozen=True)
class TracePart:
    """A part of an episode to which an algorithm gives its own advantage: a turn, a segment or the whole
    episode. It consists of the reward of this part, and of some messages of `trace`, the library `verifiers`'
    record of a conversation."""

    trace: Any
    nodes: frozenset[int]
    """Which messages of the conversation belong to the part: their indices in `trace.nodes`."""
    reward: float

    @property
    def sampled_nodes(self) -> list[Any]:
        """The part's messages (`verifiers`' nodes) that contain tokens sampled by the policy, in order."""
        return [n for i, n in enumerate(self.trace.nodes) if i in self.nodes and any(n.mask)]

    @property
    def replies(self) -> list[base.ScoredReply]:
        """For each message in `sampled_nodes`, the number of its sampled tokens, and the seconds for which
        its action was executed. The environment records this time in `trace.info["air"]["exec_seconds"]`; it
        is None if not recorded."""
        recorded = self.trace.info.get("air", {}).get("exec_seconds", [])
        seconds = {one["node"]: float(one["seconds"]) for one in recorded}
        return [
            base.ScoredReply(sum(node.mask), seconds.get(index))
            for index, node in enumerate(self.trace.nodes)
            if index in self.nodes and any(node.mask)
        ]


def parts_of(rollout: Rollout, *, by_turn: bool) -> list[TracePart]:
    """Divides an episode into the parts that have a reward of their own: its turns if `by_turn`, otherwise
    its traces (one for the whole episode or, if the episode is divided into segments at its gradings, one for
    each segment)."""
    if by_turn:
        return [part for trace in rollout.traces for part in turns(trace)]
    return [TracePart(t, frozenset(range(len(t.nodes))), float(t.reward)) for t in rollout.traces]


def turns(trace: Any) -> list[TracePart]:
    """Divides a trace (`verifiers`' record of a conversation) into turns, and returns one `TracePart` for
    each reply of the model. The list `trace.info["air"]["paid"]` records when each reward was given; the
    reward of a turn is the sum of those given between its reply and the next reply. The first turn also gets
    the rewards before its reply. If these rewards do not add up to the trace's reward, the last turn gets the
    difference. A trace without replies is one part."""
    replies = [index for index, node in enumerate(trace.nodes) if node.sampled]
    if not replies:
        return [TracePart(trace, frozenset(), float(trace.reward))]
    earned = dict.fromkeys(replies, 0.0)
    total = 0.0
    for payment in trace.info.get("air", {}).get("paid", []):
        value = sum(payment["terms"].values())
        earned[max((i for i in replies if i < payment["nodes"]), default=replies[0])] += value
        total += value
    earned[replies[-1]] += float(trace.reward) - total
    return [TracePart(trace, frozenset([index]), reward) for index, reward in earned.items()]


@dataclass(frozen=True)
class AlgorithmInputs:
    """The numbers, other than rewards, that an algorithm needs for the groups of one training step, such as
    log-probabilities under the reference model. Algorithms get them in the fields of `ScoredPart` and
    `ScoredGroup` (in `air.train.algorithms.base`)."""

    tokens: Mapping[Need, Mapping[int, Sequence[float]]] = field(default_factory=dict)
    """Numbers per token, under the keys `reference`, `divergence`, `values` and `teacher`. Each is a mapping
    from the `id()` of a message (`verifiers`' node) to a list with one number per sampled token of this
    message."""
    penalties: Mapping[int, Sequence[float]] | None = None
    """A mapping from the `id()` of a message to a list with one number per sampled token. The number is
    subtracted from the token's reward. None: no penalties."""
    greedy: Sequence[float | None] | None = None
    """The reward of each group's greedy episode, sampled at temperature 0; an element is None if that episode
    failed. None: the algorithm needs no greedy episodes."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics of the step, by name, that were computed from these numbers, such as `ref_kl`, the mean
    difference between the teacher's and the policy's log-probabilities."""


def samples(
    groups: Sequence[Group],
    algorithm: Algorithm,
    temperature: float,
    *,
    by_turn: bool = False,
    shuffle: random.Random | None = None,
    inputs: AlgorithmInputs | None = None,
    keep_zeros: bool = False,
    top_share: float | None = None,
) -> list[Sample]:
    """Computes the advantages of a step's groups with `algorithm`, and returns one training sample for each
    branch (linear conversation) in the records of the episodes, called traces.

    There is no sample for failed episodes, nor for branches whose advantages are all 0, unless `keep_zeros`
    is set or the algorithm computes returns for a value model. This function sets the field `advantage` of
    each rollout in the groups that are trained.

    `temperature` is the sampling temperature. With `by_turn`, a turn's advantage depends on its own and all
    later rewards; otherwise a trace's advantage depends on the trace's own reward. `shuffle` is a random
    generator that permutes the rewards within each group, for a control experiment (with `by_turn`: as
    `_shuffled_returns` does); None: no permutation. `inputs` has the numbers that `algorithm.needs` names;
    None: the algorithm needs none. If `top_share` (0 to 1) is given, only the groups that `top_of_spread`
    selects with this share are trained; `algorithm` gets no other group.
    """
    inputs = inputs or AlgorithmInputs()
    greedy = inputs.greedy or [None] * len(groups)
    if top_share is not None:
        chosen = sorted(top_of_spread(groups, top_share))
        groups, greedy = [groups[n] for n in chosen], [greedy[n] for n in chosen]
    played = [
        [parts_of(r, by_turn=by_turn) if r.ok else None for r in group.rollouts] for group in groups
    ]
    if shuffle is not None:
        if by_turn:
            played = _shuffled_returns(played, shuffle)
        else:
            played = [_shuffled(parts, shuffle) for parts in played]
    scored = [
        ScoredGroup(
            [
                None if parts is None else [_scored_part(p, inputs) for p in parts]
                for parts in episodes
            ],
            reward_to_go=by_turn,
            source=group.rollouts[0].source if group.rollouts else "",
            task=group.rollouts[0].task if group.rollouts else "",
            metrics=_metrics(group),
            greedy=reward,
        )
        for group, episodes, reward in zip(groups, played, greedy, strict=True)
    ]
    credits = algorithm.finish(scored, [algorithm(group) for group in scored])
    result: list[Sample] = []
    for group, episodes, of_group in zip(groups, played, credits, strict=True):
        for rollout, parts, of_parts in zip(group.rollouts, episodes, of_group, strict=True):
            result += _of_episode(rollout, parts or [], of_parts, temperature, keep_zeros)
    return result


def top_of_spread(groups: Sequence[Group], share: float) -> set[int]:
    """Returns the indices of the groups whose rewards have the largest standard deviations. The number of
    indices is `share` (0 to 1) of the number of groups, rounded down, but at least 1. The training framework
    GRL selects the top 25 % in this way."""

    def spread(number: int) -> float:
        rewards = [r.reward for r in groups[number].rollouts if r.ok]
        return stdev(rewards) if len(rewards) > 1 else 0.0

    count = max(1, int(share * len(groups) + NEGLIGIBLE))
    return set(sorted(range(len(groups)), key=spread, reverse=True)[:count])


def _metrics(group: Group) -> dict[str, float]:
    """Returns the mean of each metric over the group's episodes that did not fail, by the metric's name.
    Episodes without the metric are left out."""
    each = [r.trace.metrics for r in group.rollouts if r.ok]
    names = {n for metrics in each for n, value in metrics.items() if value is not None}
    return {name: fmean(float(m[name]) for m in each if m.get(name) is not None) for name in names}


def _scored_part(part: TracePart, inputs: AlgorithmInputs) -> base.ScoredPart:
    """Converts a part of an episode to the type that algorithms take as input, with the numbers of `inputs`
    for its sampled tokens, such as reference log-probabilities."""
    nodes = part.sampled_nodes

    def gathered(by_node: Mapping[int, Sequence[float]] | None) -> list[float] | None:
        if by_node is None:
            return None
        return [value for node in nodes for value in by_node[id(node)]]

    return base.ScoredPart(
        reward=part.reward,
        tokens=sum(sum(node.mask) for node in nodes),
        agent=part.trace.agent.name,
        input_tokens=part.trace.num_total_tokens - part.trace.num_output_tokens,
        turns=part.trace.num_turns,
        replies=part.replies,
        logprobs=[logprob for node in nodes for logprob in node.logprobs],
        reference=gathered(inputs.tokens.get("reference")),
        divergence=gathered(inputs.tokens.get("divergence")),
        values=gathered(inputs.tokens.get("values")),
        teacher=gathered(inputs.tokens.get("teacher")),
        penalties=gathered(inputs.penalties),
    )


def _shuffled(
    episodes: Sequence[list[TracePart] | None], rng: random.Random
) -> list[list[TracePart] | None]:
    """Returns a copy of a group's episodes for a control experiment, in which rewards tell nothing about the
    replies: the rewards of all parts of all episodes are randomly permuted. `episodes` has, for each episode,
    the list of its parts, or None if the episode failed."""
    pool = [part.reward for parts in episodes if parts is not None for part in parts]
    rewards = iter(rng.sample(pool, len(pool)))
    return [
        None if parts is None else [replace(part, reward=next(rewards)) for part in parts]
        for parts in episodes
    ]


def _shuffled_returns(
    groups: Sequence[Sequence[list[TracePart] | None]], rng: random.Random
) -> list[list[list[TracePart] | None]]:
    """Returns a copy of the groups with shuffled rewards, for a control experiment: a turn's return then
    tells nothing about the quality of this turn. The return of a turn is the sum of its reward and all later
    ones. The returns of the first turns of a group's episodes are permuted, then those of the second turns,
    and so on. They are also shifted: their mean becomes the mean return of the same turn in the step's other
    groups, or 0 if there is none. An element of a group is an episode's list of turns, or None if the episode
    failed.

    Simpler methods would leave information in the advantages. If the rewards of all turns were permuted, an
    episode of two turns would get two of them, and a control would learn to make episodes longer or shorter.
    Without the shift, a return with which no other can be exchanged would stay unchanged: the baseline of a
    turn counts episodes that ended earlier as 0 (see `air.train.algorithms.episode_baselines`), so if only
    one of eight episodes has a second turn, the advantage of this turn would be 7/8 of its return.
    """
    returns = [[_returns(parts or []) for parts in episodes] for episodes in groups]
    for turn in range(max((len(one) for group in returns for one in group), default=0)):
        having = [[one for one in group if turn < len(one)] for group in returns]
        pools = [[one[turn] for one in group] for group in having]
        total, count = math.fsum(value for pool in pools for value in pool), sum(map(len, pools))
        for group, pool in zip(having, pools, strict=True):
            others = (total - math.fsum(pool)) / max(1, count - len(pool))
            change = others - math.fsum(pool) / max(1, len(pool))
            for one, value in zip(group, rng.sample(pool, len(pool)), strict=True):
                one[turn] = value + change
    return [
        [parts and _paid(parts, one) for parts, one in zip(episodes, group, strict=True)]
        for episodes, group in zip(groups, returns, strict=True)
    ]


def _paid(parts: Sequence[TracePart], returns: Sequence[float]) -> list[TracePart]:
    """Returns copies of an episode's turns, `parts`, with new rewards. They are chosen such that the return
    of turn i (the sum of its reward and all later rewards) is `returns[i]`."""
    ends = zip(returns, [*returns[1:], 0.0], strict=True)
    return [
        replace(part, reward=now - later) for part, (now, later) in zip(parts, ends, strict=True)
    ]


def _returns(parts: Sequence[TracePart]) -> list[float]:
    sums = list(accumulate(part.reward for part in reversed(parts)))
    return sums[::-1]


def _of_episode(
    rollout: Rollout,
    parts: Sequence[TracePart],
    credits: Sequence[Credit],
    temperature: float,
    keep_zeros: bool,
) -> Iterator[Sample]:
    """Yields the training samples of one episode, and sets the field `advantage` of `rollout`. `credits` has,
    for each of the `parts`, the algorithm's result: the advantages, and possibly returns and other arrays.
    With `keep_zeros`, also yields samples for branches whose advantages are all 0."""
    by_node: _ByNode = {}
    means = []
    for part, credit in zip(parts, credits, strict=True):
        nodes = part.sampled_nodes
        counts = [sum(node.mask) for node in nodes]
        advantages = credit.per_token(sum(counts))
        means.append(fmean(advantages) if advantages else 0.0)
        arrays = {"advantages": [0.0 if abs(a) < NEGLIGIBLE else a for a in advantages]}
        arrays |= {name: list(values) for name, values in credit.arrays.items()}
        if credit.returns is not None:
            arrays["returns"] = list(credit.returns)
        if credit.clip_high is not None:
            arrays["clip_high"] = [credit.clip_high] * sum(counts)
        start = 0
        for node, count in zip(nodes, counts, strict=True):
            by_node[id(node)] = {k: v[start : start + count] for k, v in arrays.items()}
            start += count
    rollout.advantage = fmean(means) if means else None
    for trace in {id(part.trace): part.trace for part in parts}.values():
        yield from _of_trace(trace, by_node, temperature, keep_zeros)


_ByNode = dict[int, dict[str, list[float]]]
"""A mapping from the `id()` of a message (`verifiers`' node) to named arrays, such as `advantages`. Each
array has one number per sampled token of the message."""


def _of_trace(
    trace: Any, by_node: _ByNode, temperature: float, keep_zeros: bool
) -> Iterator[Sample]:
    """Yields one training sample for each branch (linear conversation) of `trace`, `verifiers`' record of an
    episode. `by_node` has the algorithm's results, such as advantages, for the messages. `temperature` is the
    temperature at which the tokens were sampled.

    Skips a branch without sampled tokens. Unless `keep_zeros` is set or there are returns for a value model,
    also skips a branch whose advantages are all 0.
    """
    names = {name for arrays in by_node.values() for name in arrays} | {"advantages"}
    for branch, mask in branch_masks(trace):
        arrays: dict[str, list[float]] = {name: [] for name in names}
        for node in branch.nodes:
            of_node = by_node.get(id(node), {})
            for name, values in arrays.items():
                values += _spread(of_node.get(name), node.mask)
        advantages = arrays.pop("advantages")
        # A value model also learns from the returns of tokens whose advantages are 0.
        used = mask if keep_zeros or "returns" in arrays else advantages
        if any(value for value, sampled in zip(used, mask, strict=True) if sampled):
            ids, logprobs, nodes = branch.token_ids, branch.logprobs, tuple(branch.nodes)
            yield Sample(ids, mask, logprobs, advantages, temperature, nodes, arrays)


def branch_masks(trace: Any) -> Iterator[tuple[Any, list[bool]]]:
    """Yields each branch (linear conversation) of `trace`, `verifiers`' record of an episode, with a mask:
    true for the sampled tokens on which the policy is trained in this branch. For a reply that several
    branches contain, the mask is true only in the first of them."""
    trained: set[int] = set()
    for branch in trace.branches:
        mask: list[bool] = []
        for node in branch.nodes:
            first = id(node) not in trained
            mask += [sampled and first for sampled in node.mask]
            trained.add(id(node))
        yield branch, mask


def _spread(values: Sequence[float] | None, mask: Sequence[bool]) -> list[float]:
    """Expands `values`, which has one number for each true element of `mask`, to one number per element of
    `mask`, with 0 for false elements: [5, 6] and [false, true, true] give [0, 5, 6]. If `values` is None, all
    numbers are 0."""
    if values is None:
        return [0.0] * len(mask)
    remaining = iter(values)
    return [next(remaining) if sampled else 0.0 for sampled in mask]
