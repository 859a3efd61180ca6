"""The rules of gridMaze, on mazes worked out by hand."""

from __future__ import annotations

import random
import runpy
from typing import Any

import pytest

from air import tasks

RULES = runpy.run_path(str(tasks.load("gridMaze").folder / "starter" / "maze.py"))


class SureFooted(random.Random):
    """Luck with which no step fails."""

    def random(self) -> float:
        return 1.0


def corridor(*, mud: int = 0) -> Any:
    """A corridor of eight cells eastwards from (1, 1), mud first, where no step fails."""
    maze = RULES["Maze"](0)
    maze.cells = {(x, 1): "~" if 1 < x < 2 + mud else "." for x in range(1, 9)} | {(8, 1): "G"}
    maze.here, maze.goal = (1, 1), (8, 1)
    maze.luck = SureFooted()
    return maze


def test_a_walk_to_the_goal_scores_by_its_time() -> None:
    maze = corridor(mud=2)
    maze.step(0)  # into a wall: one unit, no way
    assert (maze.here, maze.moved, maze.time) == ((1, 1), False, 1)
    for _ in range(7):
        assert not maze.over
        maze.step(1)
    assert maze.over
    assert maze.time == 1 + 2 * 3 + 5
    assert maze.score == pytest.approx(1 - 0.9 * 12 / 120)


def test_time_runs_out() -> None:
    maze = corridor()
    for _ in range(120):
        assert not maze.over
        maze.step(3)
    assert maze.over
    assert maze.score == 0.0
    late = corridor()
    late.time, late.here = 118, (7, 1)
    late.cells[8, 1] = "~"
    late.step(1)
    assert (late.over, late.score) == (True, 0.0)


def test_a_walker_sees_what_lies_near_and_no_more() -> None:
    maze = corridor(mud=1)
    assert maze.observe() == {
        "view": ["#####", "#####", "##.~.", "#####", "#####"],
        "compass": "E",
        "moved": False,
        "left": 120,
    }
    maze.here = (6, 1)
    assert maze.observe()["view"][2] == "....G"


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        ((4, 2), "E"),
        ((4, 3), "SE"),
        ((0, 5), "S"),
        ((-3, -3), "NW"),
        ((-9, 1), "W"),
        ((1, -2), "N"),
    ],
)
def test_the_compass(offset: tuple[int, int], expected: str) -> None:
    assert RULES["compass"](*offset) == expected


def test_every_maze_can_be_solved_and_is_the_same_again() -> None:
    for seed in range(40):
        maze, again = RULES["Maze"](seed), RULES["Maze"](seed)
        assert (maze.cells, maze.here, maze.goal) == (again.cells, again.here, again.goal)
        assert RULES["distances"](maze.cells, maze.goal)[maze.here] >= 10
        assert set(maze.cells.values()) == {".", "~", "G"}


def test_one_step_in_ten_fails() -> None:
    maze = RULES["Maze"](1)
    maze.cells = {(x, 1): "." for x in range(5000)}
    maze.here, moved = (1, 1), 0
    for _ in range(4000):
        maze.step(1)
        moved += maze.moved
    assert 0.88 < moved / 4000 < 0.92
