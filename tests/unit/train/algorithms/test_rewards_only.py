"""The algorithms that need nothing but rewards, on numbers worked by hand."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from air.train.algorithms import Credit, GRPOConfig, Part, ScoredGroup, grpo
from air.train.algorithms.rewards_only.rloo import rloo


def test_grpo_by_hand() -> None:
    assert grpo([1.0, 0.0, 0.5]) == [0.5, -0.5, 0.0]
    assert grpo([0.25, 0.25]) == [0.0, 0.0]
    assert grpo([3.0]) == [0.0]
    assert grpo([]) == []


def test_rloo_by_hand() -> None:
    """Of 1, 0, 0, 1 the others of a 1 have the mean 1/3, those of a 0 the mean 2/3."""
    assert rloo([1.0, 0.0, 0.0, 1.0]) == pytest.approx([2 / 3, -2 / 3, -2 / 3, 2 / 3])
    assert rloo([1.0, None, 0.0]) == [1.0, 0.0, -1.0]
    assert rloo([3.0]) == [0.0]


@pytest.mark.parametrize("estimator", [grpo, rloo])
def test_masked_episodes_do_not_count(estimator: Callable[..., list[float]]) -> None:
    with_it, without = estimator([1.0, None, 0.0]), estimator([1.0, 0.0])
    assert with_it == [without[0], 0.0, without[1]]
    assert estimator([None, None]) == [0.0, 0.0]
    with pytest.raises(ValueError, match="finite"):
        estimator([1.0, math.nan])


def test_a_penalty_lowers_a_parts_reward() -> None:
    """1 − (0.25 + 0.25) against 0: ± 0.25."""
    group = ScoredGroup([[Part(1.0, tokens=2, penalties=[0.25, 0.25])], [Part(0.0, tokens=1)]])
    assert GRPOConfig().build()(group) == [[Credit(0.25)], [Credit(-0.25)]]
