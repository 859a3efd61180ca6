"""From groups of episodes to samples: masks, advantages, and numbers that do not depend on the credit."""

from __future__ import annotations

import random
from typing import Any

import pytest

from air.env.credit import split
from air.train.algorithms import Algorithm, Credit, GRPOConfig, ScoredGroup
from air.train.algorithms.base import Need
from air.train.algorithms.duration_weights import WithDurationWeights
from air.train.loop import metrics
from air.train.loop.rollout import Group, Rollout
from air.train.loop.samples import AlgorithmInputs, parts_of, samples, top_of_spread
from air.train.tree.sample import Sample
from tests.rollouts import chain, made, payment, recorded

GRPO = GRPOConfig().build()


def group(*traces: Any, by_segment: bool = False) -> Group:
    """These episodes as one group; failed ones as such."""
    return Group(
        [
            Rollout("s", "t", split(t) if by_segment else [t], error="" if t.ok else "failed")
            for t in traces
        ]
    )


def made_of(sample: Sample) -> list[float]:
    """The distinct advantages of a sample, in turn."""
    return list(dict.fromkeys(a for a in sample.advantages() if a))


def four_and_one() -> tuple[Any, Any]:
    """The example of docs/training.md."""
    paid = [payment(3 + 2 * n, delta=delta) for n, delta in enumerate([0.3, 0.1, 0.0, 0.0])]
    return chain(4, paid), chain(1, [payment(3, delta=0.6)])


def test_the_readmes_example() -> None:
    whole = samples([group(*four_and_one())], GRPO, 1.0)
    assert [made_of(s) for s in whole] == [[pytest.approx(-0.1)], [pytest.approx(0.1)]]
    parts = samples([group(*four_and_one(), by_segment=True)], GRPO, 1.0)
    wanted = [-0.05, -0.25, -0.35, -0.35, 0.25]
    assert [made_of(s) for s in parts] == [[pytest.approx(value)] for value in wanted]
    first, second = samples([group(*four_and_one())], GRPO, 1.0, by_turn=True)
    # One trace an episode; the turns to which nothing more came have no advantage.
    assert made_of(first) == pytest.approx([-0.1, 0.05])
    assert made_of(second) == pytest.approx([0.1])
    assert sum(map(bool, first.mask)) > sum(a != 0 for a in first.advantages())


def test_reward_to_go_puts_each_turns_return_on_its_own_tokens() -> None:
    """Worked out by hand: turns earn 0, .5, −.25 (a format error) and 1; the other episode .5 at once."""
    paid = [
        payment(5, delta=0.5),
        payment(7, ends=False, format=-0.25),
        payment(9, delta=1.0),
    ]
    long, short = chain(4, paid), chain(1, [payment(3, delta=0.5)])
    assert [p.reward for p in parts_of(group(long).rollouts[0], by_turn=True)] == [
        0.0,
        0.5,
        -0.25,
        1.0,
    ]
    first, second = samples([group(long, short)], GRPO, 1.0, by_turn=True)
    # To go: 1.25 1.25 .75 1 against .5 0 0 0.
    wanted = {2: 0.375, 4: 0.625, 6: 0.375, 8: 0.5}
    at = 0
    for index, node in enumerate(long.nodes):
        own = first.advantages()[at : at + len(node.mask)]
        assert own == [wanted[index] if sampled else 0.0 for sampled in node.mask]
        at += len(node.mask)
    assert made_of(second) == [-0.375]


def test_what_an_environment_does_not_place_is_earned_by_the_last_turn() -> None:
    trace = chain(2, [])
    trace.record_reward("solved", 1.0)
    (rollout,) = group(trace).rollouts
    assert [p.reward for p in parts_of(rollout, by_turn=True)] == [0.0, 1.0]


def recorded_traces() -> list[Any]:
    return [one.traces[0] for one in recorded()]


@pytest.mark.parametrize("by_segment", [False, True])
@pytest.mark.parametrize("by_turn", [False, True])
def test_every_sampled_token_of_a_recorded_group_is_trained_once(
    by_segment: bool, by_turn: bool
) -> None:
    traces = recorded_traces()
    made_samples = samples([group(*traces, by_segment=by_segment)], GRPO, 1.0, by_turn=by_turn)
    trained = sum(sum(s.mask) for s in made_samples)
    assert trained == sum(sum(node.mask) for t in traces for node in t.nodes)
    known = {tuple(t.branches[0].token_ids) for t in traces}
    for sample in made_samples:
        assert any(sample.token_ids == list(ids[: len(sample.token_ids)]) for ids in known)
        assert all(x <= 0 for x, m in zip(sample.logprobs, sample.mask, strict=True) if m)
        assert not any(x for x, m in zip(sample.logprobs, sample.mask, strict=True) if not m)


def test_the_baseline_is_the_mean_over_episodes_in_both_credits() -> None:
    traces = recorded_traces()
    mean = sum(t.reward for t in traces) / len(traces)
    for sample, trace in zip(samples([group(*traces)], GRPO, 1.0), traces, strict=True):
        assert made_of(sample) == [pytest.approx(trace.reward - mean)]
    parts = [split(t) for t in traces]
    means = [sum(p.reward for p in of) / len(of) for of in parts]
    baseline = sum(means) / len(means)
    wanted = [part.reward - baseline for of in parts for part in of]
    found = samples([group(*traces, by_segment=True)], GRPO, 1.0)
    assert [made_of(s) for s in found] == [[pytest.approx(value)] for value in wanted]


def test_a_failed_episode_gives_no_sample_and_counts_in_no_mean() -> None:
    bad = chain(3, [payment(3, delta=9.0), payment(7, delta=9.0)], ok=False)
    good = four_and_one()
    for options in ({}, {"by_segment": True}):
        with_it, without = group(*good, bad, **options), group(*good, **options)
        assert samples([with_it], GRPO, 1.0) == samples([without], GRPO, 1.0)
    assert samples([group(*good, bad)], GRPO, 1.0, by_turn=True) == samples(
        [group(*good)], GRPO, 1.0, by_turn=True
    )


def test_a_reply_that_branches_share_is_trained_in_the_first_alone() -> None:
    #   0 ── 1* ── 2 ── 3*   and   1* ── 4 ── 5*
    forked = made([None, 0, 1, 2, 1, 4], [1, 3, 5], [payment(6, delta=1.0)])
    first, second = samples([group(forked, chain(1, [payment(3, delta=0.0)]))], GRPO, 1.0)[:2]
    shared = len(forked.nodes[0].mask) + len(forked.nodes[1].mask)
    assert any(first.mask[:shared])
    assert not any(second.mask[:shared])
    assert any(second.mask)
    assert sum(first.mask) + sum(second.mask) == sum(sum(n.mask) for n in forked.nodes)


def test_the_control_keeps_each_groups_rewards() -> None:
    shuffled = [
        samples([group(*four_and_one())], GRPO, 1.0, shuffle=random.Random(seed))
        for seed in range(8)
    ]
    seen = {tuple(round(made_of(s)[0], 6) for s in one) for one in shuffled}
    assert seen == {(-0.1, 0.1), (0.1, -0.1)}


def test_the_control_learns_nothing_from_the_number_of_turns() -> None:
    """Two games are won in one turn (+11), two are lost in two turns (−1 each)."""
    won = [chain(1, [payment(3, delta=11.0)]) for _ in range(2)]
    lost = [chain(2, [payment(3, delta=-1.0), payment(5, delta=-1.0)]) for _ in range(2)]
    of_first_winner, of_first_loser = set(), set()
    for seed in range(32):
        rng = random.Random(seed)
        control = samples([group(*won, *lost)], GRPO, 1.0, by_turn=True, shuffle=rng)
        first_turns = [made_of(sample)[0] for sample in control]
        # The returns 11, 11, −2 and −2 change places among the first turns. Their mean is 4.5.
        assert sorted(first_turns) == pytest.approx([-6.5, -6.5, 6.5, 6.5])
        of_first_winner.add(round(first_turns[0], 6))
        of_first_loser.add(round(first_turns[2], 6))
    assert of_first_winner == of_first_loser == {-6.5, 6.5}


def test_the_control_tells_nothing_of_a_turn_that_few_episodes_reach() -> None:
    """In each of two groups, three games are won in one turn (+11), and the fourth has a second turn."""

    def second_turns(first: float, second: float) -> list[float]:
        groups = [
            group(
                *(chain(1, [payment(3, delta=11.0)]) for _ in range(3)),
                chain(2, [payment(3, delta=-1.0), payment(5, delta=of_second_turn)]),
            )
            for of_second_turn in (first, second)
        ]
        rng = random.Random(0)
        control = samples(groups, GRPO, 1.0, by_turn=True, shuffle=rng, keep_zeros=True)
        return [made_of(sample)[1] for sample in control if len(made_of(sample)) == 2]

    # A lone second turn gets the other group's return, minus the baseline: a quarter of it.
    assert second_turns(8.0, -2.0) == pytest.approx([-1.5, 6.0])
    assert second_turns(4.0, -2.0) == pytest.approx([-1.5, 3.0])


def test_a_steps_numbers_count_an_episode_once_in_both_credits() -> None:
    traces = recorded_traces()
    whole = metrics.of_step([group(*traces)])
    parts = metrics.of_step([group(*traces, by_segment=True)])
    assert parts == pytest.approx(whole)
    assert whole["episodes"] == len(traces)
    assert whole["reward"] == pytest.approx(sum(t.reward for t in traces) / len(traces))
    shown = sum(value for name, value in parts.items() if name.startswith("reward/"))
    assert shown == pytest.approx(parts["reward"])


def test_segments_that_differ_are_something_to_learn_from() -> None:
    same = [chain(2, [payment(3, delta=0.5), payment(5, delta=0.1)]) for _ in range(2)]
    assert not group(*same).has_spread
    assert group(*same, by_segment=True).has_spread


class Distance(Algorithm):
    """Gives each token its distance from the reference, and halves all advantages at the end of the step."""

    needs = frozenset[Need]({"reference"})

    def __call__(self, group: ScoredGroup) -> list[list[Credit]]:
        return [
            [
                Credit([r - own for r, own in zip(p.reference or (), p.logprobs, strict=True)])
                for p in episode or []
            ]
            for episode in group.episodes
        ]

    def finish(self, groups: Any, credits: Any) -> list[list[list[Credit]]]:
        return [
            [
                [
                    Credit([a / 2 for a in c.advantage], returns=c.advantage, clip_high=0.3)
                    for c in e
                ]
                for e in group
            ]
            for group in credits
        ]


@pytest.mark.parametrize("by_turn", [False, True])
def test_arrays_reach_the_algorithm_and_its_numbers_their_tokens(by_turn: bool) -> None:
    trace = chain(2, [payment(3, delta=0.5)])
    reference = {
        id(node): [0.25 + 0.25 * n for n, _ in enumerate(node.logprobs)]
        for node in trace.nodes
        if node.sampled
    }
    (sample,) = samples(
        [group(trace)],
        Distance(),
        1.0,
        by_turn=by_turn,
        inputs=AlgorithmInputs({"reference": reference}),
    )
    wanted = [
        r - own
        for node in trace.nodes
        for r, own in zip(reference.get(id(node), ()), node.logprobs, strict=True)
    ]
    trained = [n for n, m in enumerate(sample.mask) if m]
    assert [sample.advantages()[n] for n in trained] == [value / 2 for value in wanted]
    assert [sample.arrays["returns"][n] for n in trained] == wanted
    assert {sample.arrays["clip_high"][n] for n in trained} == {0.3}
    assert not any(a for n, a in enumerate(sample.advantages()) if n not in trained)


def test_only_the_groups_with_the_largest_spread_are_trained() -> None:
    """Standard deviations 0, .707, .141 and .354 (the episode that failed does not count)."""
    failed = chain(1, [payment(3, delta=99.0)], ok=False)
    pairs = [(1.0, 1.0), (0.0, 1.0), (0.4, 0.6), (0.5, 1.0)]
    groups = [group(*(chain(1, [payment(3, delta=r)]) for r in pair), failed) for pair in pairs]
    assert [top_of_spread(groups, share) for share in (0.1, 0.25, 0.5, 1.0)] == [
        {1},
        {1},
        {1, 3},
        {0, 1, 2, 3},
    ]
    found = samples(groups, GRPO, 1.0, top_share=0.5)
    assert [made_of(s) for s in found] == [[-0.5], [0.5], [-0.25], [0.25]]
    assert [r.advantage for r in groups[2].rollouts] == [None, None, None]


class Recording(Algorithm):
    """An algorithm that records the groups it gets, and makes the advantages 1."""

    def __init__(self) -> None:
        self.groups: list[ScoredGroup] = []

    def __call__(self, group: ScoredGroup) -> list[list[Credit]]:
        self.groups.append(group)
        return [[Credit(1.0) for _ in episode or ()] for episode in group.episodes]


def test_a_group_that_is_left_out_does_not_reach_the_algorithm() -> None:
    """Of the standard deviations .141, 0 and .707, the first and the last are trained."""
    pairs = [(0.4, 0.6), (1.0, 1.0), (0.0, 1.0)]
    groups = [group(*(chain(1, [payment(3, delta=r)]) for r in pair)) for pair in pairs]
    algorithm = Recording()
    inputs = AlgorithmInputs(greedy=[0.1, 0.2, 0.3])
    found = samples(groups, algorithm, 1.0, inputs=inputs, top_share=0.7)
    rewards = [[[p.reward for p in e or ()] for e in one.episodes] for one in algorithm.groups]
    assert rewards == [[[0.4], [0.6]], [[0.0], [1.0]]]
    assert [one.greedy for one in algorithm.groups] == [0.1, 0.3]
    assert len(found) == 4
    assert [r.advantage for one in groups for r in one.rollouts] == [1.0, 1.0, None, None, 1.0, 1.0]


def by_reply(trace: Any, sample: Sample) -> list[list[float]]:
    """The distinct advantages of each reply of a chain, in turn, rounded."""
    each, advantages = [], iter(sample.advantages())
    for node in trace.nodes:
        own = {round(a, 9) for sampled, a in zip(node.mask, advantages, strict=False) if sampled}
        each += [sorted(own)] if own else []
    return each


def timed() -> tuple[Any, Any]:
    """Rewards 1 and 0. Actions of 1 s, 3 s and a validate without a command; and one of 2 s."""
    paid = [payment(5, delta=0.25), payment(7, delta=0.75)]
    return (
        chain(3, paid, took={2: 1.0, 4: 3.0}),
        chain(1, [payment(3, delta=0.0)], took={2: 2.0}),
    )


def test_each_turn_is_weighted_by_its_duration_also_with_the_credit_of_the_episode() -> None:
    """Advantages ± 0.5; the weights are 0.5, 1.5, 1 (not known) and 1."""
    long, short = timed()
    first, second = samples([group(long, short)], WithDurationWeights(GRPO, 4.0), 1.0)
    assert by_reply(long, first) == [[0.25], [0.75], [0.5]]
    assert by_reply(short, second) == [[-0.5]]


def test_a_turn_has_its_own_duration_whatever_the_credit() -> None:
    """A duration belongs to the same reply in an episode, in a segment, and in a turn."""
    long = timed()[0]
    whole, (first, second) = parts_of(group(long).rollouts[0], by_turn=False), split(long)
    assert [r.seconds for part in whole for r in part.replies] == [1.0, 3.0, None]
    in_turns = parts_of(group(long).rollouts[0], by_turn=True)
    assert [[r.seconds for r in part.replies] for part in in_turns] == [[1.0], [3.0], [None]]
    in_segments = parts_of(group(long, by_segment=True).rollouts[0], by_turn=False)
    assert [part.trace.id for part in in_segments] == [first.id, second.id]
    assert [[r.seconds for r in part.replies] for part in in_segments] == [[1.0, 3.0], [None]]


def test_episodes_recorded_without_durations_are_not_weighted() -> None:
    """Traces of an environment that is not air's, and of episodes that failed, have no durations."""
    traces = [*four_and_one(), chain(1, [], ok=False, took={2: 900.0})]
    for trace in traces[:2]:
        del trace.info["air"]["exec_seconds"]
    weighted = samples([group(*traces)], WithDurationWeights(GRPO, 4.0), 1.0)
    assert weighted == samples([group(*traces)], GRPO, 1.0)
