"""GAE on numbers worked by hand."""

from __future__ import annotations

import pytest

from air.train.algorithms.gae import gae


def test_without_discount_an_advantage_is_the_episodes_reward_minus_the_value() -> None:
    # AgentFly's example: V = [.5, .4, .3, an observation, .2, .1], the last reward is 1.
    advantages, returns = gae([0, 0, 0, 0, 1], [0.5, 0.4, 0.3, 0.2, 0.1], gamma=1.0, lam=1.0)
    assert advantages == pytest.approx([0.5, 0.6, 0.7, 0.8, 0.9])
    assert returns == pytest.approx([1.0] * 5)


def test_discount_and_lambda() -> None:
    # δ_3 = 1 − .2 = .8; δ_2 = .5·.2 − .4 = −.3; δ_1 = 2 + .5·.4 − .6 = 1.6; γλ = .25
    # A_3 = .8; A_2 = −.3 + .25·.8 = −.1; A_1 = 1.6 + .25·(−.1) = 1.575
    advantages, returns = gae([2, 0, 1], [0.6, 0.4, 0.2], gamma=0.5, lam=0.5)
    assert advantages == pytest.approx([1.575, -0.1, 0.8])
    assert returns == pytest.approx([2.175, 0.3, 1.0])


def test_a_turns_reward_counts_for_its_tokens_and_earlier_ones() -> None:
    advantages, _ = gae([0, 3, 0, -1], [0.0] * 4, gamma=1.0, lam=1.0)
    assert advantages == [2, 2, -1, -1]
    # With λ = 0, a token's advantage is only δ.
    advantages, _ = gae([0, 3, 0, -1], [1.0, 2.0, 3.0, 4.0], gamma=1.0, lam=0.0)
    assert advantages == [1, 4, 1, -5]


def test_lengths_must_agree() -> None:
    with pytest.raises(ValueError, match="2 rewards for 1 values"):
        gae([0, 1], [0.5], 1.0, 1.0)
    assert gae([], [], 1.0, 1.0) == ([], [])
