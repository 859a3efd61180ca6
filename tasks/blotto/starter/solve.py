"""Writes strategy.py, which plays Colonel Blotto: allocate(mine, theirs) -> six counts that add up to 60.

Six fields; on each, the larger number of soldiers wins. `mine` and `theirs` are the lists of allocations
so far; a match has 40 battles.

Options are read from the file `config`, one line such as `method=2 level=3`:

method  1 fixed: holds 6, 5, 4 or 3 fields strongly (level 1, 2, 3, 4), always the same ones
        2 shuffled: the same, on other fields in every battle
        3 reply: beats what the other would send as the mean of its last 1, 3, 6 or 12 battles
        4 replay: finds the allocation, of 10, 30, 100 or 300 random ones, that would have won most fields
          in the other's last 8 battles
"""

import sys

HEAD = '"""Written by solve.py: method {method}, level {level}."""\n\nimport random\n\n\n'
FIXED = """def allocate(mine, theirs):
    held = {held}
    fields = [60 // held + (at < 60 % held) for at in range(held)] + [0] * (6 - held)
    {shuffle}
    return fields
"""
REPLY = """def allocate(mine, theirs):
    if not theirs:
        return [10] * 6
    last = theirs[-{window} :]
    seen = [sum(field) // len(last) for field in zip(*last)]
    left, fields = 60, [0] * 6
    order = sorted(range(6), key=seen.__getitem__)
    for at in order:
        fields[at] = min(seen[at] + 1, left)
        left -= fields[at]
    fields[order[0]] += left
    return fields
"""
REPLAY = """def thrown():
    cuts = sorted(random.randrange(61) for _ in range(5))
    fields = [high - low for low, high in zip([0, *cuts], [*cuts, 60])]
    return [(a + 10) // 2 for a in fields[:-1]] + [60 - sum((a + 10) // 2 for a in fields[:-1])]


def won(fields, other):
    return sum((a > b) - (a < b) for a, b in zip(fields, other))


def allocate(mine, theirs):
    tries = [[10] * 6, *(thrown() for _ in range({tries}))]
    return max(tries, key=lambda fields: sum(won(fields, other) for other in theirs[-8:]))
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
    body = (FIXED, FIXED, REPLY, REPLAY)[method - 1].format(
        held=(6, 5, 4, 3)[level - 1],
        shuffle="random.shuffle(fields)" if method == 2 else "",
        window=(1, 3, 6, 12)[level - 1],
        tries=(10, 30, 100, 300)[level - 1],
    )
    with open("strategy.py", "w") as file:
        file.write(HEAD.format(method=method, level=level) + body.replace("    \n", ""))


main()
