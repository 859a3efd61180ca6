"""Writes strategy.py, which plays the repeated battle of the sexes: move(mine, theirs) -> 0 or 1.

0 is the evening that we prefer, 1 the one that the other prefers. Meeting at 0 pays us 2, meeting
at 1 pays us 1, missing each other pays nothing. `mine` and `theirs` are the lists of moves so far; a
match has 100 rounds.

Options are read from the file `config`, one line such as `method=2 level=3`:

method  1 random: yields (plays 1) in 50, 33, 15 or 0 % of the rounds (level 1, 2, 3, 4)
        2 follow: plays 1 if the other did so more often in its last 1, 3, 5 or 9 moves
        3 insist, then follow: plays 0 for 4, 8, 16 or 32 rounds, then as method 2 with 5 moves
        4 predict: what did the other do when the last 0, 1, 2 or 3 rounds were as they are now?
"""

import sys

HEAD = '"""Written by solve.py: method {method}, level {level}."""\n\nimport random\n\n\n'
RANDOM = """def move(mine, theirs):
    return int(random.random() < {rate})
"""
FOLLOW = """def move(mine, theirs):
    if len(theirs) < {insist}:
        return 0
    seen = theirs[-{window}:]
    return int(2 * sum(seen) > len(seen))
"""
PREDICT = """DEPTH = {depth}


def move(mine, theirs):
    rounds = list(zip(mine, theirs))
    if len(rounds) < 6:
        return 0
    counts = [1, 1]
    now = rounds[len(rounds) - DEPTH :]
    for turn in range(DEPTH, len(rounds)):
        if rounds[turn - DEPTH : turn] == now:
            counts[theirs[turn]] += 1
    return int(counts[1] > 2 * counts[0])
"""


def options():
    """The two options of `config`, or exit 1."""
    try:
        with open("config") as file:
            pairs = dict(part.split("=") for part in file.read().split())
    except (OSError, ValueError):
        sys.exit("config: expected one line such as: method=2 level=3")
    for name, value in pairs.items():
        if name not in ("method", "level") or value not in ("1", "2", "3", "4"):
            sys.exit(f"config: {name}={value} is unknown; method=1..4 level=1..4")
    if len(pairs) != 2:
        sys.exit("config: both method=1..4 and level=1..4 are needed")
    return int(pairs["method"]), int(pairs["level"])


def main():
    method, level = options()
    body = (RANDOM, FOLLOW, FOLLOW, PREDICT)[method - 1].format(
        rate=(0.5, 0.33, 0.15, 0.0)[level - 1],
        window=(1, 3, 5, 9)[level - 1] if method == 2 else 5,
        insist=(4, 8, 16, 32)[level - 1] if method == 3 else 1,
        depth=level - 1,
    )
    with open("strategy.py", "w") as file:
        file.write(HEAD.format(method=method, level=level) + body)


main()
