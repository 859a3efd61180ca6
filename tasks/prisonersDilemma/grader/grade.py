"""Plays strategy.py against a league of opponents and grades it by its mean payoff per round."""

import sys

from grading import run
from matrix_game import grade_with
from opponents import league

PAYOFF = ((3, 0), (5, 1))
"""Ours by (our move, the other's move); 0 cooperates, 1 defects."""

if __name__ == "__main__":
    sys.exit(run(grade_with(PAYOFF, league)))
