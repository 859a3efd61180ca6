"""Trains on data/train.csv and writes submission.csv for the rows of data/val.csv and data/test.csv.

Options are read from the file `config`, one line such as `method=2 level=3`:

method  1 one rule: the one column that predicts best alone
        2 naive Bayes
        3 decision tree
        4 nearest neighbours
level   1 the columns sex, age and class
        2 these, and what the name tells: title, initial, length, family
        3 age and class
        4 class alone
"""

import csv
import sys
from collections import Counter, defaultdict
from math import log


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


def read(split):
    with open(f"data/{split}.csv", newline="") as file:
        return list(csv.DictReader(file))


def features(row, level):
    """A row as a tuple of small categories."""
    age = "?" if row["age"] == "" else str(min(int(float(row["age"])) // 8, 7))
    if level == 1:
        return (row["sex"], age, row["class"])
    if level == 3:
        return (age, row["class"])
    if level == 4:
        return (row["class"],)
    family, _, rest = row["name"].partition(",")
    words = rest.split()
    title = words[0] if words else "?"
    return (row["sex"], age, row["class"], title, family[:1], str(len(row["name"]) // 4), family)


def one_rule(xs, ys):
    best = (-1, 0, {})
    for column in range(len(xs[0])):
        votes = defaultdict(Counter)
        for x, y in zip(xs, ys):
            votes[x[column]][y] += 1
        right = sum(max(vote.values()) for vote in votes.values())
        rule = {value: vote[1] > vote[0] for value, vote in votes.items()}
        best = max(best, (right, column, rule), key=lambda item: item[0])
    _, column, rule = best
    return lambda x: int(rule.get(x[column], False))


def naive_bayes(xs, ys):
    counts, total = Counter(), Counter(ys)
    for x, y in zip(xs, ys):
        counts.update((column, value, y) for column, value in enumerate(x))
    kinds = [len({x[column] for x in xs}) for column in range(len(xs[0]))]

    def odds(y, x):
        prior = log(total[y])
        return prior + sum(
            log((counts[column, value, y] + 1) / (total[y] + kinds[column]))
            for column, value in enumerate(x)
        )

    return lambda x: int(odds(1, x) > odds(0, x))


def tree(xs, ys, depth=9):
    """Splits on the column whose values leave the least Gini impurity."""
    majority = int(2 * sum(ys) > len(ys))
    if depth == 0 or len(set(ys)) < 2:
        return lambda x: majority

    def impurity(column):
        votes = defaultdict(lambda: [0, 0])
        for x, y in zip(xs, ys):
            votes[x[column]][y] += 1
        return sum(a * b / (a + b) for a, b in votes.values())

    column = min(range(len(xs[0])), key=impurity)
    parts = defaultdict(lambda: ([], []))
    for x, y in zip(xs, ys):
        parts[x[column]][0].append(x)
        parts[x[column]][1].append(y)
    if len(parts) < 2:
        return lambda x: majority
    branches = {value: tree(*part, depth - 1) for value, part in parts.items()}
    return lambda x: branches[x[column]](x) if x[column] in branches else majority


def neighbours(xs, ys, k=5):
    """Votes of at least k rows, those that agree in the most columns first."""
    bits = {}

    def encode(x, known):
        marks = ((column, value) for column, value in enumerate(x))
        return sum(1 << bits.setdefault(mark, len(bits)) for mark in marks if known or mark in bits)

    rows = [encode(x, True) for x in xs]
    cache = {}

    def predict(x):
        code = encode(x, False)
        if code not in cache:
            votes = [[] for _ in range(len(x) + 1)]
            for row, y in zip(rows, ys):
                votes[(row & code).bit_count()].append(y)
            near = []
            while len(near) < k:
                near += votes.pop()
            cache[code] = int(2 * sum(near) > len(near))
        return cache[code]

    return predict


def main():
    method, level = options()
    train = read("train")
    fit = (one_rule, naive_bayes, tree, neighbours)[method - 1]
    predict = fit([features(row, level) for row in train], [int(row["survived"]) for row in train])
    with open("submission.csv", "w") as file:
        file.write("id,survived\n")
        for row in read("val") + read("test"):
            file.write(f"{row['id']},{predict(features(row, level))}\n")


main()
