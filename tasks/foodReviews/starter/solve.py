"""Trains on data/train.csv and writes submission.csv for the rows of data/val.csv and data/test.csv.

Options are read from the file `config`, one line such as `method=2 level=3`:

method  1 the one feature whose presence predicts best alone
        2 naive Bayes
        3 logistic regression on weighted features (TF-IDF)
        4 logistic regression on features weighted by naive Bayes
level   1 lengths: the number of words, and the words' own lengths
        2 words
        3 words and pairs of words
        4 pieces of 3 and 4 characters
"""

import csv
import re
import sys
from collections import Counter
from itertools import pairwise

import numpy as np


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
    with open(f"data/{split}.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def features(text, level):
    """The set of features that a text has."""
    words = re.findall(r"[a-z']+|[!?]", text.lower())
    if level == 1:
        return {f"bits {len(words).bit_length()}", *(f"length {len(word)}" for word in words)}
    if level == 4:
        line = " ".join(words)
        return {line[at : at + n] for n in (3, 4) for at in range(len(line) - n + 1)}
    pairs = pairwise(words) if level == 3 else ()
    return {*words, *map(" ".join, pairs)}


class Matrix:
    """Which rows have which columns, as two lists of equal length."""

    def __init__(self, rows, index, count):
        found = [[index[f] for f in row if f in index] for row in rows]
        self.row = np.repeat(np.arange(len(rows)), [len(columns) for columns in found])
        self.column = np.array([c for columns in found for c in sorted(columns)], int)
        self.rows, self.columns = len(rows), count

    def times(self, weights, scale):
        """Row sums of the weights, times the scale of each row."""
        return scale * np.bincount(self.row, weights[self.column], self.rows)

    def back(self, errors, scale):
        """Column sums of the scaled errors."""
        return np.bincount(self.column, (scale * errors)[self.row], self.columns)


def matrices(train, rows, level, least):
    """Both as matrices over the features that `least` rows of train have."""
    known = [features(row["text"], level) for row in train]
    counts = Counter(feature for row in known for feature in row)
    kept = sorted(f for f, count in counts.items() if count >= least)
    index = {feature: at for at, feature in enumerate(kept)}
    new = [features(row["text"], level) for row in rows]
    return Matrix(known, index, len(kept)), Matrix(new, index, len(kept))


def ratios(x, y):
    """The log odds of each feature between the two classes, and those of the classes."""
    ones = np.ones(x.rows)
    great, other = 1 + x.back(1.0 * y, ones), 1 + x.back(1.0 - y, ones)
    return np.log(great / great.sum()) - np.log(other / other.sum()), np.log(
        y.mean() / (1 - y.mean())
    )


def one_rule(x, y, new):
    ones = np.ones(x.rows)
    there, great = x.back(ones, ones), x.back(1.0 * y, ones)
    missing, left = x.rows - there, y.sum() - great
    right = np.maximum(great, there - great) + np.maximum(left, missing - left)
    best = int(np.argmax(right))
    has = np.zeros(new.rows, bool)
    has[new.row[new.column == best]] = True
    return np.where(has, 2 * great[best] > there[best], 2 * left[best] > missing[best])


def naive_bayes(x, y, new):
    weights, offset = ratios(x, y)
    return new.times(weights, np.ones(new.rows)) + offset > 0


def logistic(x, y, new, importance, decay=3e-4, rate=5.0, steps=150):
    """Logistic regression by gradient descent with momentum, on rows of length one."""

    def scale(of):
        return 1 / np.sqrt(of.times(importance**2, np.ones(of.rows)) + 1e-9)

    scales = scale(x)
    weights, speed, offset = np.zeros(x.columns), np.zeros(x.columns), 0.0
    for _ in range(steps):
        chance = 1 / (1 + np.exp(-x.times(weights * importance, scales) - offset))
        slope = importance * x.back(chance - y, scales) / x.rows + decay * weights
        speed = 0.9 * speed - slope
        weights, offset = weights + rate * speed, offset - (chance - y).mean()
    return new.times(weights * importance, scale(new)) + offset > 0


def main():
    method, level = options()
    train = read("train")
    rows = read("val") + read("test")
    x, new = matrices(train, rows, level, least=3)
    y = np.array([int(row["great"]) for row in train])
    if method == 1:
        predicted = one_rule(x, y, new)
    elif method == 2:
        predicted = naive_bayes(x, y, new)
    elif method == 3:
        rarity = 1 + np.log(x.rows / x.back(np.ones(x.rows), np.ones(x.rows)))
        predicted = logistic(x, y, new, rarity)
    else:
        predicted = logistic(x, y, new, ratios(x, y)[0])
    with open("submission.csv", "w") as file:
        file.write("id,great\n")
        for row, value in zip(rows, predicted):
            file.write(f"{row['id']},{int(value)}\n")


main()
