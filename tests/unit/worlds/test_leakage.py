"""What validates tell about the hidden data: few of them, and roughly."""

from __future__ import annotations

import pytest

from air import tasks
from air.actions import Action
from air.worlds.research.observations import NONE_LEFT
from air.worlds.research.score_rounding import OLD_STEP, score_text, step_of
from tests.unit.worlds.conftest import MakeWorld


@pytest.mark.parametrize(
    ("score", "step", "text"),
    [
        (0.81666, OLD_STEP, "0.8167"),
        (0.81666, 0.01, "0.82"),
        (0.81666, 0.005, "0.815"),
        (25_412.7, 100.0, "25400"),
        (2.5, 1.0, "2"),
        (-0.004, 0.01, "-0.00"),
    ],
)
def test_told_scores_are_rounded(score: float, step: float, text: str) -> None:
    assert score_text(score, step) == text


def test_the_largest_score_is_told_at_the_smallest_step() -> None:
    assert score_text(1.7e308, 0.003) == f"{1.7e308:.3f}"


def test_the_usual_step_follows_the_scale_and_a_task_can_declare_another() -> None:
    titanic, cheaper = tasks.load("titanic"), tasks.load("cheaper")
    assert (step_of(titanic), step_of(cheaper)) == (0.01, 10.0)
    assert step_of(titanic.model_copy(update={"told_step": 0.005})) == 0.005


@pytest.mark.parametrize("name", tasks.available())
def test_a_shipped_task_declares_its_step(name: str) -> None:
    """So it stays the same on a secret split, on which baseline and target are measured again."""
    task = tasks.load(name)
    assert task.told_step == step_of(task.model_copy(update={"told_step": None}))


@pytest.mark.slow
async def test_validates_beyond_the_limit_tell_nothing_and_the_end_is_scored(
    make_world: MakeWorld,
) -> None:
    world = await make_world()
    world.max_validates, world.told_step = 2, 0.01
    first = await world.step(Action("python3 solve.py", "validate"))
    assert first.observation.text.endswith("[accuracy] 0.69 (best 0.69, baseline 0.69)")
    assert first.validation is not None
    assert first.validation.score == 0.6933333333333334
    await world.step(Action("rm submission.csv", "validate"))
    reward = world.reward
    better = 'echo "method=4 level=2" > config; python3 solve.py'
    for number in (1, 2):
        more = await world.step(Action(better, "validate"))
        assert (more.observation.text, more.validation) == (NONE_LEFT, None)
        assert (world.refused_validates, world.reward) == (number, reward)
    last = await world.step(Action("", "submit"))
    assert last.validation is not None
    assert last.validation.score == world.score == 0.8166666666666667
    await world.finish()
    assert (len(world.validations), world.test_score) == (3, 0.7933333333333333)
