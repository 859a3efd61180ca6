"""Plays strategy.py against three simple generals and prints the fields won over them, as a share.

The hidden generals are others; this is for trying things out.
"""

import random

from strategy import allocate


def thrown():
    """Every soldier to a random field."""
    fields = [random.randrange(6) for _ in range(60)]
    return [fields.count(at) for at in range(6)]


GENERALS = {
    "even": lambda own, other: [10] * 6,
    "does what we did": lambda own, other: other[-1] if other else [10] * 6,
    "random": lambda own, other: thrown(),
}

for name, general in GENERALS.items():
    mine, theirs, total = [], [], 0
    for _ in range(40):
        ours, reply = allocate(list(mine), list(theirs)), general(theirs, mine)
        if len(ours) != 6 or sum(ours) != 60 or min(ours) < 0:
            raise SystemExit(f"allocate returned {ours}, expected six counts that add up to 60")
        total += sum((a > b) - (a < b) for a, b in zip(ours, reply))
        mine.append(ours)
        theirs.append(reply)
    print(f"{name}: {total / 240:.2f}")
