"""Plays strategy.py against a league of opponents and grades it by its mean payoff per round."""

import json
import sys
from pathlib import Path

from grading import DATA, BadArtefact, described, run
from opponents import Opponent, league
from runner import Runner

ROUNDS = 100
PAYOFF = ((2, 0), (0, 1))
"""Ours by (our move, the other's move); 0 is the evening that we prefer, 1 the other's."""


def grade(artefact: Path, split: str, seed: int) -> dict[str, float]:
    hidden = seed + json.loads((DATA / "seeds.json").read_text())[split]
    with Runner(artefact / "strategy.py", "move", seed=seed) as runner:
        payoffs = [play(runner, opponent) for opponent in league(hidden)]
    return {"payoff": sum(payoffs) / len(payoffs), "worst_match": min(payoffs)}


def play(runner: Runner, opponent: Opponent) -> float:
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
    return sum(PAYOFF[a][b] for a, b in zip(ours, others, strict=True)) / ROUNDS


if __name__ == "__main__":
    sys.exit(run(grade))
