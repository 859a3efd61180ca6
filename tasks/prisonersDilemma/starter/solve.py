"""Writes strategy.py, which plays the iterated prisoner's dilemma: move(mine, theirs) -> 0 or 1.

0 cooperates, 1 defects. Payoffs: both cooperate 3, both defect 1, a lone defector 5, its victim 0.
`mine` and `theirs` are the lists of moves so far; a match has 100 rounds.

Options are read from the file `config`, one line such as `method=2 level=3`:

method  1 random: defects in 100, 75, 50 or 25 % of the rounds (level 1, 2, 3, 4)
        2 tit for tat: returns a defection with chance 100, 75, 50 or 25 %
        3 test, then reply: tries both moves for 8, 12, 16 or 24 rounds, then takes the one that paid
        4 grudge: after the 1st, 3rd, 6th or 12th defection it defects for good
"""

import sys

HEAD = '"""Written by solve.py: method {method}, level {level}."""\n\nimport random\n\n\n'
RANDOM = """def move(mine, theirs):
    return int(random.random() < {rate})
"""
TIT_FOR_TAT = """def move(mine, theirs):
    return int(bool(theirs) and theirs[-1] == 1 and random.random() < {rate})
"""
TEST = """PAYOFF = ((3, 0), (5, 1))


def move(mine, theirs):
    turn = len(mine)
    if turn < {rounds}:
        return turn // 4 % 2
    paid = [[], []]
    for a, b in zip(mine, theirs):
        paid[a].append(PAYOFF[a][b])
    cooperate, defect = (sum(p) / len(p) for p in paid)
    return int(defect > cooperate)
"""
GRUDGE = """def move(mine, theirs):
    return int(sum(theirs) >= {limit})
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
    body = (RANDOM, TIT_FOR_TAT, TEST, GRUDGE)[method - 1].format(
        rate=(1.0, 0.75, 0.5, 0.25)[level - 1],
        rounds=(8, 12, 16, 24)[level - 1],
        limit=(1, 3, 6, 12)[level - 1],
    )
    with open("strategy.py", "w") as file:
        file.write(HEAD.format(method=method, level=level) + body)


main()
