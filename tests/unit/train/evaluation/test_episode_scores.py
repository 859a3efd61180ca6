"""The arithmetic of scores by tries, on numbers worked by hand."""

from __future__ import annotations

import math

import pytest

from air.tasks.spec import RewardScale
from air.train.evaluation.episode_scores import (
    MEASURES,
    EpisodeScores,
    Estimate,
    estimate,
    gains,
    overall,
)

HIGHER = RewardScale(direction="higher", baseline=0.5, target=1.0)
LOWER = RewardScale(direction="lower", baseline=4, target=2)


def played(
    *scores: float | None,
    task: str = "a",
    test: float | None = None,
    scale: RewardScale = HIGHER,
    reward: float = 0.0,
) -> EpisodeScores:
    return EpisodeScores(task, scale, scores, test, reward, turns=4, format_errors=1)


def test_the_measures_of_one_episode() -> None:
    """φ of 0.75 is 0.5, of 1.0 is 1, of 0.25 is −0.5; the lowest is −1."""
    one = played(None, 0.75, 1.0, 0.25, test=0.75, reward=0.3)
    assert {name: measure(one) for name, measure in MEASURES.items()} == {
        "best": 1.0,
        "first": -1.0,
        "best of 2": 0.5,
        "last": -0.5,
        "test": 0.5,
        "tries": 4.0,
        "reward": 0.3,
    }


def test_lower_scores_can_be_better_and_one_try_is_the_best_of_two() -> None:
    one = played(3.5, 3.0, 6.0, scale=LOWER)
    assert (one.best(), one.best(1), one.last) == (3.0, 3.5, 6.0)
    assert MEASURES["best of 2"](played(3.0, scale=LOWER)) == 0.5
    assert MEASURES["best"](played()) == MEASURES["test"](played()) == -1.0


def test_a_mean_and_its_standard_error() -> None:
    """1, 2, 6: mean 3, variance 7."""
    mean = estimate([1.0, None, 2.0, 6.0])
    assert mean is not None
    assert (mean.mean, mean.stderr) == (3.0, pytest.approx(math.sqrt(7 / 3)))
    assert str(mean) == "3.000 ± 1.528"
    assert str(estimate([0.25])) == "0.250"
    assert estimate([None]) is None


def test_all_tasks_count_the_same() -> None:
    """Task a: φ 0 and 1, so 0.5 ± 0.5; task b: φ 0.5 twice, so 0.5 ± 0."""
    episodes = [played(0.5), played(1.0), *[played(3.0, task="b", scale=LOWER)] * 2]
    assert overall(episodes, MEASURES["best"]) == Estimate(0.5, 0.25)
    assert overall([*episodes, played(1.0, task="c")], MEASURES["best"]) == Estimate(2 / 3, None)
    assert overall([], MEASURES["best"]) is None


def test_more_tries_alone_are_a_gain_in_the_best_score_only() -> None:
    """The same first tries; after training a third one is made, which is better."""
    before = [played(0.5, 0.75, test=0.75)] * 2
    after = [played(0.5, 0.75, 1.0, 0.75, test=0.75)] * 2
    found = {name: gain for name, (_, _, gain) in gains(before, after).items()}
    assert found["best"] == Estimate(0.5, 0.0)
    assert found["tries"] == Estimate(2.0, 0.0)
    for name in ("first", "best of 2", "last", "test"):
        assert found[name] == Estimate(0.0, 0.0), name
