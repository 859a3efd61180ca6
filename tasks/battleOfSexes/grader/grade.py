"""Plays strategy.py against a league of opponents and grades it by its mean payoff per round.

Exit 0: --out holds {"metrics": {"payoff": ...}}. Exit 3: it holds {"message": ...}, for the agent, and
`"remember": false` where the same file might do better on a faster machine.
"""

import argparse
import json
import os
import sys
from pathlib import Path

from opponents import Opponent, league
from sandbox import BadStrategy, Strategy, read_source

HERE = Path(__file__).resolve().parent
ROUNDS = 100
PAYOFF = ((2, 0), (0, 1))
"""Ours by (our move, the other's move); 0 is the evening that we prefer, 1 the other's."""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--artefact", type=Path, required=True)
    parser.add_argument("--split", choices=("val", "test"), required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if os.environ.get("AIR_SECOND_UID"):
        HERE.chmod(0o700)  # the strategy's user must not read its opponents
    seed = json.loads((HERE / "data" / "seeds.json").read_text())[args.split] + args.seed
    try:
        with Strategy(read_source(args.artefact / "strategy.py"), seed % 1_000_000) as strategy:
            payoffs = [play(strategy, opponent) for opponent in league(seed)]
    except BadStrategy as error:
        args.out.write_text(json.dumps({"message": str(error), "remember": error.remember}))
        return 3
    metrics = {"payoff": sum(payoffs) / len(payoffs), "worst_match": min(payoffs)}
    args.out.write_text(json.dumps({"metrics": metrics}))
    return 0


def play(strategy: Strategy, opponent: Opponent) -> float:
    """One match; the mean payoff per round."""
    ours: list[int] = []
    others: list[int] = []
    order = b"N"
    for _ in range(ROUNDS):
        theirs = opponent(others, ours)
        ours.append(strategy.ask(order))
        others.append(theirs)
        order = b"%d" % theirs
    return sum(PAYOFF[a][b] for a, b in zip(ours, others, strict=True)) / ROUNDS


if __name__ == "__main__":
    sys.exit(main())
