"""Plays strategy.py against three simple opponents and prints its mean payoffs a round.

The hidden opponents are others; this is for trying things out.
"""

import random

from strategy import move

PAYOFF = ((2, 0), (0, 1))
OPPONENTS = {
    "always insists": lambda own, other: 1,
    "does what we did": lambda own, other: other[-1] if other else 1,
    "random": lambda own, other: random.randrange(2),
}

for name, opponent in OPPONENTS.items():
    mine, theirs, total = [], [], 0
    for _ in range(100):
        a, b = move(mine[:], theirs[:]), opponent(theirs, mine)
        total += PAYOFF[a][b]
        mine.append(a)
        theirs.append(b)
    print(f"{name}: {total / 100:.2f}")
