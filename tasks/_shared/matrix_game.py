"""Grades a strategy of a repeated game of two players with two moves each, 0 and 1, by its mean payoff."""

import json
from collections.abc import Callable
from pathlib import Path

from grading import DATA, BadArtefact, Grade, described
from runner import Runner

ROUNDS = 100
Opponent = Callable[[list[int], list[int]], int]
Payoff = tuple[tuple[int, int], tuple[int, int]]
"""Ours by (our move, the other's move)."""


def grade_with(payoff: Payoff, league: Callable[[int], list[Opponent]]) -> Grade:
    """The grade of strategy.py: one match against each opponent that `league` draws from a hidden seed."""

    def grade(artefact: Path, split: str, seed: int) -> dict[str, float]:
        hidden = seed + json.loads((DATA / "seeds.json").read_text())[split]
        with Runner(artefact / "strategy.py", "move", seed=seed) as runner:
            payoffs = [play(runner, opponent, payoff) for opponent in league(hidden)]
        return {"payoff": sum(payoffs) / len(payoffs), "worst_match": min(payoffs)}

    return grade


def play(runner: Runner, opponent: Opponent, payoff: Payoff) -> float:
    """One match; the mean payoff per round."""
    ours: list[int] = []
    others: list[int] = []
    runner.load()
    for _ in range(ROUNDS):
        theirs = opponent(others, ours)
        move = runner.call(ours, others)
        if move not in (0, 1):
            raise BadArtefact(f"move returned {described(move)}, expected 0 or 1")
        ours.append(int(move))
        others.append(theirs)
    return sum(payoff[a][b] for a, b in zip(ours, others, strict=True)) / ROUNDS
