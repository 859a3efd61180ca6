"""Advantages weighted by the durations of actions, on numbers worked by hand."""

from __future__ import annotations

from statistics import fmean

import pytest

from air.train.algorithms import (
    Algorithm,
    Credit,
    GRPOConfig,
    ScoredGroup,
    ScoredPart,
    ScoredReply,
)
from air.train.algorithms.duration_weights import WithDurationWeights, duration_weights
from air.train.algorithms.kl_penalty import WithKL
from air.train.algorithms.rewards_only.rae import RAEConfig
from air.train.algorithms.rewards_only.reinforce_plus_plus import ReinforcePlusPlus
from air.train.config.loss_options import KLConfig


def part(reward: float, *replies: tuple[int, float | None]) -> ScoredPart:
    """A part with replies of these numbers of tokens and durations."""
    each = [ScoredReply(tokens, seconds) for tokens, seconds in replies]
    return ScoredPart(reward, sum(reply.tokens for reply in each), replies=each)


def advantages(algorithm: Algorithm, *groups: ScoredGroup) -> list[list[list[float]]]:
    """For each group and episode, the advantages of the tokens of all parts."""
    credits = algorithm.finish(groups, [algorithm(group) for group in groups])
    return [
        [
            [
                advantage
                for credit, one in zip(of_episode, episode or (), strict=True)
                for advantage in credit.per_token(one.tokens)
            ]
            for of_episode, episode in zip(of_group, group.episodes, strict=True)
        ]
        for of_group, group in zip(credits, groups, strict=True)
    ]


def grpo(cap: float) -> WithDurationWeights:
    return WithDurationWeights(GRPOConfig().build(), cap)


def test_without_a_bound_a_weight_is_the_duration_by_the_mean() -> None:
    """The mean of 1, 2 and 3 is 2."""
    assert duration_weights([1.0, 2.0, 3.0], 4.0) == pytest.approx([0.5, 1.0, 1.5])
    assert duration_weights([7.0], 4.0) == pytest.approx([1.0])
    assert duration_weights([], 4.0) == []


def test_an_hour_counts_as_the_cap_and_does_not_reduce_the_rest() -> None:
    """The mean is 91, so the others would have the weight 1/91. Instead 39 others share 40 − 4."""
    weights = duration_weights([3600.0] + [1.0] * 39, 4.0)
    assert weights[0] == 4.0
    assert weights[1:] == pytest.approx([36 / 39] * 39)


def test_fast_actions_keep_the_reciprocal_of_the_cap() -> None:
    """1 s of a mean near 100 s is bounded by 1/2; the other three share 4 − 1/2."""
    weights = duration_weights([1.0, 100.0, 100.0, 100.0], 2.0)
    assert weights == pytest.approx([0.5, 3.5 / 3, 3.5 / 3, 3.5 / 3])


def test_both_bounds_at_once() -> None:
    """Cap 2: the hour has 2, the shortest 1/2; 10 and 20 share 4 − 2.5 as 1 to 2: 0.5 and 1."""
    assert duration_weights([0.02, 10.0, 20.0, 3600.0], 2.0) == pytest.approx([0.5, 0.5, 1.0, 2.0])


def test_durations_that_measure_the_machine_count_alike() -> None:
    assert duration_weights([1e-5, 0.0, 9e-3], 4.0) == pytest.approx([1.0] * 3)


@pytest.mark.parametrize("cap", [1.001, 2.0, 1000.0])
def test_the_mean_is_1_whatever_is_bounded(cap: float) -> None:
    for seconds in ([0.0, 0.0, 0.0, 3600.0], [1e-3 * 3**n for n in range(14)], [5.0, 5.0]):
        weights = duration_weights(seconds, cap)
        assert fmean(weights) == pytest.approx(1.0)
        assert 1 / cap <= min(weights) <= max(weights) <= cap


def test_each_replys_tokens_are_weighted_also_if_the_credit_is_the_episodes() -> None:
    """Rewards 1 and 0: advantages ± 0.5. Durations 1, 3 and 2 of the mean 2: 0.5, 1.5 and 1."""
    group = ScoredGroup([[part(1.0, (2, 1.0), (1, 3.0))], [part(0.0, (1, 2.0), (2, None))], None])
    (found,) = advantages(grpo(4.0), group)
    assert found == [
        pytest.approx([0.25, 0.25, 0.75]),
        pytest.approx([-0.5, -0.5, -0.5]),  # without a known duration: 1
        [],
    ]


def test_turns_with_credits_of_their_own() -> None:
    """To go: 3 and 2 against 0 and 0, so ± 1.5 and ± 1; weights 0.5 and 1.5, 1.5 and 0.5."""
    turns = [
        [part(1.0, (1, 1.0)), part(2.0, (1, 3.0))],
        [part(0.0, (1, 3.0)), part(0.0, (1, 1.0))],
    ]
    (found,) = advantages(grpo(4.0), ScoredGroup(turns, reward_to_go=True))
    assert found == [pytest.approx([0.75, 1.5]), pytest.approx([-2.25, -0.5])]


def test_each_task_has_its_own_mean() -> None:
    """Durations of 1 and 3 beside those of 1000 and 3000: the weights are 0.5 and 1.5 in both tasks."""
    groups = [
        ScoredGroup([[part(1.0, (1, 1.0 * unit))], [part(0.0, (1, 3.0 * unit))]], task=task)
        for task, unit in (("fast", 1), ("slow", 1000))
    ]
    wanted = [pytest.approx([0.25]), pytest.approx([-0.75])]
    assert advantages(grpo(4.0), *groups) == [wanted, wanted]


def test_all_groups_of_a_task_share_one_mean() -> None:
    groups = [
        ScoredGroup([[part(1.0, (1, seconds))], [part(0.0, (1, seconds))]], source="s", task="t")
        for seconds in (1.0, 3.0)
    ]
    first, second = advantages(grpo(4.0), *groups)
    assert first == [pytest.approx([0.25]), pytest.approx([-0.25])]
    assert second == [pytest.approx([0.75]), pytest.approx([-0.75])]


def test_metrics_have_the_spread_of_the_weights() -> None:
    """Weights 0.5 and 1.5; one of three replies has no duration."""
    algorithm = grpo(4.0)
    advantages(algorithm, ScoredGroup([[part(1.0, (2, 1.0), (1, 3.0), (1, None))]]))
    assert algorithm.metrics() == pytest.approx(
        {
            "duration_weight/known": 2 / 3,
            "duration_weight/std": 0.5,
            "duration_weight/min": 0.5,
            "duration_weight/max": 1.5,
        }
    )
    advantages(algorithm, ScoredGroup([None]))
    assert algorithm.metrics() == {}


def test_other_parts_of_a_credit_stay() -> None:
    """The returns of a value model and the arrays of a penalty in the loss are not weighted."""

    class Fixed(Algorithm):
        def __call__(self, group: ScoredGroup) -> list[list[Credit]]:
            return [[Credit([1.0, 2.0], returns=[3.0, 4.0], clip_high=0.3, arrays={"a": [5, 6]})]]

    group = ScoredGroup([[part(1.0, (1, 1.0), (1, 3.0))]])
    algorithm = WithDurationWeights(Fixed(), 4.0)
    ((credit,),) = algorithm.finish([group], [algorithm(group)])[0]
    assert credit == Credit(
        pytest.approx([0.5, 3.0]),  # type: ignore[arg-type]
        returns=[3.0, 4.0],
        clip_high=0.3,
        arrays={"a": [5, 6]},
    )


def test_weights_come_after_whitening() -> None:
    """Whitened ± sqrt(1/2), then 0.5 and 1.5 times that."""
    group = ScoredGroup([[part(1.0, (1, 1.0))], [part(-1.0, (1, 3.0))]])
    (found,) = advantages(WithDurationWeights(ReinforcePlusPlus(1.0), 4.0), group)
    half = 0.5**0.5
    assert found == [pytest.approx([0.5 * half]), pytest.approx([-1.5 * half])]


def test_a_part_without_replies_is_not_weighted() -> None:
    (found,) = advantages(grpo(4.0), ScoredGroup([[ScoredPart(1.0, 2)], [ScoredPart(0.0, 1)]]))
    assert found == [[0.5, 0.5], [-0.5]]


def test_a_checkpoint_of_a_run_without_weights_continues_with_them() -> None:
    """And the other way round: the state is that of the wrapped algorithm."""
    plain, weighted = RAEConfig().build(), WithDurationWeights(RAEConfig().build(), 4.0)
    group = ScoredGroup([[part(1.0, (1, 1.0))]])
    plain(group)
    weighted.load_state_dict(plain.state_dict())
    assert weighted.state_dict() == plain.state_dict() != RAEConfig().build().state_dict()


def test_needs_are_those_of_the_wrapped_algorithm() -> None:
    penalized = WithKL(GRPOConfig().build(), KLConfig())
    assert WithDurationWeights(penalized, 4.0).needs == {"reference"}
    assert WithDurationWeights(penalized, 4.0).rewards_at_turns is False
