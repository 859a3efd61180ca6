"""The algorithms that need more than rewards, on numbers worked by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from pydantic import TypeAdapter, ValidationError

from air.train.algorithms import AlgoConfig, Credit, ScoredGroup, ScoredPart
from air.train.algorithms.gae import GAE, GAEConfig
from air.train.algorithms.opd import OPD
from air.train.algorithms.remax import ReMax
from air.train.algorithms.sft import SFT


def advantages(credits: Sequence[Sequence[Credit]], counts: Sequence[int]) -> list[list[float]]:
    """The advantages of the first episode's parts."""
    return [c.per_token(n) for c, n in zip(credits[0], counts, strict=True)]


def test_gae_keeps_the_rewards_at_their_turns() -> None:
    # One stream of 3 tokens: r = 0, 1 and 2; V = .5, 1 and 1.5. With γ = λ = 1, A_t = rewards to go − V_t.
    turns = [ScoredPart(1.0, 2, values=[0.5, 1.0]), ScoredPart(2.0, 1, values=[1.5])]
    credits = GAE(1.0, 1.0)(ScoredGroup([turns, None], reward_to_go=True))
    assert advantages(credits, [2, 1]) == [pytest.approx([2.5, 2.0]), pytest.approx([0.5])]
    assert [c.returns for c in credits[0]] == [pytest.approx([3.0, 3.0]), pytest.approx([2.0])]
    assert credits[1] == []
    # As segments, each part is a stream of its own.
    credits = GAE(1.0, 1.0)(ScoredGroup([turns]))
    assert advantages(credits, [2, 1]) == [pytest.approx([0.5, 0.0]), pytest.approx([0.5])]


def test_gae_discounts_over_sampled_tokens_only() -> None:
    # The turns are 2 tokens apart in the stream, whatever was observed in between.
    turns = [ScoredPart(0.0, 2, values=[0.0, 0.0]), ScoredPart(1.0, 1, values=[0.0])]
    credits = GAE(0.5, 1.0)(ScoredGroup([turns], reward_to_go=True))
    assert advantages(credits, [2, 1]) == [pytest.approx([0.25, 0.5]), pytest.approx([1.0])]


def test_gae_counts_penalties_and_the_rewards_of_parts_without_tokens() -> None:
    turns = [
        ScoredPart(1.0, 2, values=[0.0, 0.0], penalties=[0.1, 0.2]),
        ScoredPart(4.0, 0, values=[]),
    ]
    credits = GAE(1.0, 1.0)(ScoredGroup([turns], reward_to_go=True))
    assert advantages(credits, [2, 0]) == [pytest.approx([4.7, 4.8]), []]


def test_gae_whitens_over_all_groups_of_a_step() -> None:
    # AgentFly's example: .5 to .9 have the mean .7, and the variance .1 / 4, whose root is .158114.
    values = [[0.5, 0.4, 0.3], [0.2, 0.1]]
    groups = [
        ScoredGroup(
            [[ScoredPart(0.0, 3, values=values[0]), ScoredPart(1.0, 2, values=values[1])]], True
        ),
        ScoredGroup([None]),
    ]
    algorithm = GAE(1.0, 1.0)
    credits = algorithm.finish(groups, [algorithm(group) for group in groups])
    assert advantages(credits[0], [3, 2]) == [
        pytest.approx([-1.264911, -0.632456, 0.0], abs=1e-5),
        pytest.approx([0.632456, 1.264911], abs=1e-5),
    ]
    assert [c.returns for c in credits[0][0]] == [pytest.approx([1.0] * n) for n in (3, 2)]


def test_remax_subtracts_the_greedy_reward_from_rewards_to_go() -> None:
    whole = [ScoredPart(2.0, 3)]
    credits = ReMax()(ScoredGroup([whole, None], greedy=0.5))
    assert advantages(credits, [3]) == [[1.5, 1.5, 1.5]]
    assert credits[1] == []
    turns = [ScoredPart(1.0, 2), ScoredPart(2.0, 1, penalties=[0.25])]
    credits = ReMax()(ScoredGroup([turns], reward_to_go=True, greedy=0.5))
    assert advantages(credits, [2, 1]) == [[2.25, 2.25], [1.25]]
    segments = ReMax()(ScoredGroup([turns], greedy=0.5))
    assert advantages(segments, [2, 1]) == [[0.5, 0.5], [1.25]]


def test_remax_without_a_baseline_trains_nothing() -> None:
    credits = ReMax()(ScoredGroup([[ScoredPart(2.0, 3)]], greedy=None))
    assert advantages(credits, [3]) == [[0.0, 0.0, 0.0]]


def test_opd_is_the_teachers_log_probability_minus_the_policys() -> None:
    part = ScoredPart(7.0, 2, logprobs=[-1.0, -2.0], teacher=[-0.5, -2.25])
    credits = OPD()(ScoredGroup([[part], None]))
    assert advantages(credits, [2]) == [pytest.approx([0.5, -0.25])]


def test_keys_of_these_algorithms() -> None:
    config: TypeAdapter[AlgoConfig] = TypeAdapter(AlgoConfig)
    gae = config.validate_python({"type": "gae", "lam": 0.95})
    assert isinstance(gae, GAEConfig)
    assert (gae.gamma, gae.lam) == (1.0, 0.95)
    with pytest.raises(ValidationError, match="gamma"):
        config.validate_python({"type": "gae", "gamma": 1.5})
    with pytest.raises(ValidationError, match="teacher"):
        config.validate_python({"type": "opd"})
    with pytest.raises(ValidationError, match="lam"):
        config.validate_python({"type": "remax", "lam": 1.0})


def test_sft_gives_every_token_the_weight_1_whatever_the_rewards() -> None:
    segments = [ScoredPart(1.0, 2, logprobs=[-1.0, -2.0]), ScoredPart(-4.0, 1, logprobs=[-3.0])]
    credits = SFT()(ScoredGroup([segments, None]))
    assert advantages(credits, [2, 1]) == [[1.0, 1.0], [1.0]]
    assert credits[1] == []
