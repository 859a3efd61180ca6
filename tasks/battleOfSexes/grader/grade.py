"""Plays strategy.py against a league of opponents and grades it by its mean payoff per round."""

import sys

from grading import run
from matrix_game import grade_with
from opponents import league

PAYOFF = ((2, 0), (0, 1))
"""Ours by (our move, the other's move); 0 is the evening that we prefer, 1 the other's."""

if __name__ == "__main__":
    sys.exit(run(grade_with(PAYOFF, league)))
