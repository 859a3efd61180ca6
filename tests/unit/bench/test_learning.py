"""The arithmetic of `make learning`: gains by tries, and the verdict on seeds."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from air.tasks.spec import RewardScale
from air.train.evaluation.episode_scores import EpisodeScores

SCALE = RewardScale(direction="higher", baseline=0.5, target=1.0)


@pytest.fixture
def learning() -> ModuleType:
    return importlib.import_module("bench.learning.__main__")


def played(task: str, *scores: float, test: float) -> EpisodeScores:
    return EpisodeScores(task, SCALE, scores, test, reward=0.0, turns=4, format_errors=0)


def test_scores_at_equal_numbers_of_tries(learning: ModuleType) -> None:
    """φ of 0.5, 0.75 and 1.0 is 0, 0.5 and 1; both tasks count the same."""
    episodes = [
        played("a", 0.5, 0.75, 1.0, 0.75, test=0.75),
        played("b", 0.75, test=0.5),
        played("b", 0.5, test=0.5),
    ]
    assert learning.by_tries(episodes) == {
        "φ first try": 0.125,
        "φ best of two tries": 0.375,
        "φ last submission": 0.375,
        "φ test score": 0.25,
        "φ best of all tries": 0.625,
        "tries": 2.5,
    }
    assert learning.by_tries([])["φ test score"] is None


def test_recipes_change_only_what_is_trained(learning: ModuleType, tmp_path: Path) -> None:
    """Each of them fits the quickstart's run file, and the measurement's settings stay."""
    usual = argparse.Namespace(out=tmp_path, runtime="subprocess", recipe=[])
    training, measured = (
        of(usual, "x", []) for of in (learning.training_config, learning.run_config)
    )
    for name in learning.RECIPES:
        args = argparse.Namespace(**{**vars(usual), "recipe": [name]})
        assert learning.training_config(args, "x", []) != training, name
    assert learning.run_config(args, "x", []) == measured


def result(learning: ModuleType, gain: float, **more: float) -> dict[str, Any]:
    before = dict.fromkeys(learning.MEASURES, 0.5)
    return {
        "before": before,
        "trained": dict.fromkeys(before, 0.5 + gain) | more,
        "control": before,
    }


def test_a_gain_by_more_tries_alone_is_said(
    learning: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    same = dict.fromkeys(learning.EQUAL_TRIES, 0.5)
    results = [result(learning, gain, **same) for gain in (0.1, 0.11, 0.12)]
    assert learning.gains(results, "trained")["tries"] == pytest.approx([0.1, 0.11, 0.12])
    assert learning.verdict(results) == 1
    said = capsys.readouterr().out.splitlines()
    for name in learning.EQUAL_TRIES:
        assert f"trained {name}: +0.0000 ± 0.0000: does NOT rise" in said
    assert "trained reward: +0.1100 ± 0.0058: rises" in said
    assert learning.verdict([result(learning, gain) for gain in (0.1, 0.11, 0.12)]) == 0
    test_score = [result(learning, g, **{"φ test score": 0.5}) for g in (0.1, 0.11, 0.12)]
    assert learning.verdict(test_score) == 1
    capsys.readouterr()
    learning.report(results, 60.0)
    assert "φ best of two tries" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("trained", "control", "code"),
    [
        ([2.0, 3.0, 2.5], [-1.0, 1.0, -0.5], 0),
        ([2.0, 3.0, 2.5], [0.04, 0.05, 0.06], 0),  # the control rises, but by little
        ([2.0, 3.0, 2.5], [1.0, 3.2, 1.1], 1),  # the difference: 0.73 with a standard error of 0.48
        ([-2.0, 3.0, 2.5], [-1.0, 1.0, -0.5], 1),  # 1.17 with a standard error of 1.59
    ],
)
def test_a_world_is_learnt_if_its_reward_rises_and_more_than_the_controls(
    learning: ModuleType, trained: list[float], control: list[float], code: int
) -> None:
    results = [
        {
            "game": "tetris1",
            "before": {"reward": 1.0},
            "trained": {"reward": 1.0 + gain},
            "control": {"reward": 1.0 + other},
        }
        for gain, other in zip(trained, control, strict=True)
    ]
    assert learning.worlds.verdict(results) == code
