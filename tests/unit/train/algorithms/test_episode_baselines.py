"""Advantages of segments and turns, against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest

from air.train.algorithms import grpo
from air.train.algorithms.episode_baselines import reward_to_go, segments

A, B = [0.3, 0.1, 0.0, 0.0], [0.6]
"""The example of docs/training.md: one episode validates four times, the other once."""


def test_the_readmes_example() -> None:
    # credit = "episode", both engines: rewards .4 and .6, mean .5.
    assert grpo([0.4, 0.6]) == pytest.approx([-0.1, 0.1])
    # credit = "segment", prime-rl: one mean over all five traces, 1.0 / 5 = .2.
    traces = grpo([*A, *B])
    assert traces == pytest.approx([0.1, -0.1, -0.2, -0.2, 0.4])
    # credit = "segment", embedded: means per episode .1 and .6, their mean .35.
    first, second = segments([A, B], grpo)
    assert first == pytest.approx([-0.05, -0.25, -0.35, -0.35])
    assert second == pytest.approx([0.25])
    # embedded.reward_to_go: to go .4 .1 0 0 and .6 (0 0 0), means .5 .05 0 0.
    first, second = reward_to_go([A, B], grpo)
    assert first == pytest.approx([-0.1, 0.05, 0.0, 0.0])
    assert second == pytest.approx([0.1])


def test_one_part_an_episode_is_the_estimators_own_advantage() -> None:
    rewards = [0.2, None, 1.0, -0.5]
    parts = [None if r is None else [r] for r in rewards]
    wanted = [[] if r is None else [a] for r, a in zip(rewards, grpo(rewards), strict=True)]
    assert segments(parts, grpo) == wanted
    assert reward_to_go(parts, grpo) == wanted


def test_masked_episodes_count_in_no_mean() -> None:
    assert segments([[1.0, 3.0], None, [4.0]], grpo) == [[-2.0, 0.0], [], [1.0]]
    assert reward_to_go([[1.0, 3.0], None, [4.0]], grpo) == [[0.0, 1.5], [], [0.0]]
    assert segments([None, None], grpo) == [[], []]
    assert reward_to_go([None, None], grpo) == [[], []]


def test_more_segments_of_the_same_mean_weigh_no_more() -> None:
    few, many = segments([[0.1], [0.6]], grpo), segments([[0.1] * 9, [0.6]], grpo)
    assert many[1] == pytest.approx(few[1])
    assert many[0] == pytest.approx(few[0] * 9)


def test_rewards_before_a_turn_do_not_belong_to_it() -> None:
    before = reward_to_go([[0.0, 0.2, 0.5], [0.1, 0.1]], grpo)
    after = reward_to_go([[9.0, 0.2, 0.5], [0.1, 0.1]], grpo)
    assert after[0][1:] == before[0][1:]
    assert after[0][0] == pytest.approx(before[0][0] + 4.5)


@pytest.mark.parametrize("of", [segments, reward_to_go])
def test_what_is_no_reward_is_refused(of: object) -> None:
    with pytest.raises(ValueError, match="finite"):
        of([[0.1, math.nan], [0.2]], grpo)  # type: ignore[operator]
    with pytest.raises(ValueError, match="at least one part"):
        segments([[]], grpo)
