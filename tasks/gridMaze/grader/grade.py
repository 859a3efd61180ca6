"""Walks policy.py through hidden mazes and grades it by its mean score."""

import json
import sys
from pathlib import Path

from grading import DATA, BadArtefact, described, run
from maze import MOVES, Maze
from runner import Limits, Runner

ACTIONS = len(MOVES)
LIMITS = Limits(cpu_per_load=True, source_bytes=1_000_000)


def grade(artefact: Path, split: str, seed: int) -> dict[str, float]:
    seeds = json.loads((DATA / "mazes.json").read_text())[split]
    policy = artefact / "policy.py"
    with Runner(policy, "act", seed=seed, limits=LIMITS, modules=("numpy",)) as runner:
        scores = [walk(runner, Maze(one + seed)) for one in seeds]
    return {
        "mean_return": sum(scores) / len(scores),
        "solved": sum(score > 0 for score in scores) / len(scores),
    }


def walk(runner: Runner, maze: Maze) -> float:
    """One episode; its score."""
    runner.load()
    while not maze.over:
        action = runner.call(maze.observe())
        if not isinstance(action, int) or not 0 <= action < ACTIONS:
            expected = f"expected 0 to {ACTIONS - 1}"
            raise BadArtefact(f"act returned {described(action)}, {expected}")
        maze.step(action)
    return maze.score


if __name__ == "__main__":
    sys.exit(run(grade))
