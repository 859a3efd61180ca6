"""Writes heuristic.py, which guides a search for a satisfying assignment: choose(rows) -> v or -v.

`rows` has one row [variable, pos2, neg2, pos3, neg3, conflicts] for every free variable: in how many of
the open clauses it occurs, plainly (pos) and negated (neg), where two or at least three literals are
still free; and in how many clauses that turned false it occurred so far. v tries true first, -v false.

Options are read from the file `config`, one line such as `method=2 level=3`:

method  1 the variable of the lowest number
        2 the one that occurs most often
        3 the one that occurs most often in conflicts, weighted by its occurrences
        4 the one of the most occurrences where those in clauses of two literals count five times, and
          occurring both plainly and negated counts most
level   1 tries the rarer literal of the variable first
        2 tries false first
        3 tries true first
        4 tries the more frequent literal first
"""

import sys

HEURISTIC = '''"""Written by solve.py: method {method}, level {level}."""


def weight(row):
    variable, pos2, neg2, pos3, neg3, conflicts = row
    return {weight}


def choose(rows):
    variable, pos2, neg2, pos3, neg3, conflicts = max(rows, key=weight)
    return variable if {sign} else -variable
'''
WEIGHTS = (
    "-variable",
    "pos2 + neg2 + pos3 + neg3",
    "(1 + conflicts) * (pos2 + neg2 + pos3 + neg3)",
    "1000 * (5 * pos2 + pos3) * (5 * neg2 + neg3) + 5 * (pos2 + neg2) + pos3 + neg3",
)
SIGNS = (
    "2 * pos2 + pos3 < 2 * neg2 + neg3",
    "False",
    "True",
    "2 * pos2 + pos3 >= 2 * neg2 + neg3",
)


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
    text = HEURISTIC.format(
        method=method, level=level, weight=WEIGHTS[method - 1], sign=SIGNS[level - 1]
    )
    with open("heuristic.py", "w") as file:
        file.write(text)


main()
