"""Trains on data/train.csv and writes submission.csv for the rows of data/val.csv and data/test.csv.

Options are read from the file `config`, one line such as `method=2 level=3`:

method  1 perceptron, two passes
        2 nearest neighbour
        3 nearest class centroid
        4 naive Bayes on black and white pixels
level   1 the ink of each quarter of the image
        2 the ink of each row
        3 the ink of each of 4x4 blocks
        4 all 8x8 pixels
"""

import sys
from math import log
from operator import mul

DARKNESS = bytes.maketrans(b"0123456789abcdefg", bytes(range(17)))


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
    """Rows of cells, without the header."""
    with open(f"data/{split}.csv") as file:
        return [line.split(",") for line in file.read().splitlines()[1:]]


def shrink(pixels, level):
    """The mean darkness, 0..16, of each block of pixels."""
    dark = list(pixels.encode().translate(DARKNESS))
    if level == 4:
        return dark
    height, width = ((4, 4), (1, 8), (2, 2))[level - 1]
    corners = [8 * row + column for row in range(0, 8, height) for column in range(0, 8, width)]
    inside = [8 * row + column for row in range(height) for column in range(width)]
    return [sum(dark[at + of] for of in inside) // len(inside) for at in corners]


def perceptron(xs, ys):
    """One weight vector per class; after each mistake the right one gains and the wrong one loses."""
    weights = [[0] * (len(xs[0]) + 1) for _ in range(10)]

    def predict(x):
        scores = [sum(map(mul, x, weight)) + 16 * weight[-1] for weight in weights]
        return scores.index(max(scores))

    for x, y in [*zip(xs, ys)] * 2:
        guess = predict(x)
        if guess != y:
            weights[y] = [w + v for w, v in zip(weights[y], [*x, 16])]
            weights[guess] = [w - v for w, v in zip(weights[guess], [*x, 16])]
    return predict


def neighbour(xs, ys):
    """The class of the nearest image in L1 distance, counted on thermometer-coded bits."""

    def encode(x):
        return int("".join("1" * (v // 2) + "0" * (8 - v // 2) for v in x), 2)

    rows = [encode(x) for x in xs]

    def predict(x):
        code = encode(x)
        distances = [(code ^ row).bit_count() for row in rows]
        return ys[distances.index(min(distances))]

    return predict


def centroid(xs, ys):
    means = [[sum(column) / len(of) for column in zip(*of)] for of in by_class(xs, ys)]
    offsets = [sum(map(mul, mean, mean)) / 2 for mean in means]
    return lambda x: max(range(10), key=lambda y: sum(map(mul, x, means[y])) - offsets[y])


def naive_bayes(xs, ys):
    weights, offsets = [], []
    for of in by_class(xs, ys):
        black = [sum(v > 7 for v in column) for column in zip(*of)]
        chance = [(count + 1) / (len(of) + 2) for count in black]
        weights.append([log(p / (1 - p)) for p in chance])
        offsets.append(log(len(of)) + sum(log(1 - p) for p in chance))

    def predict(x):
        bits = [v > 7 for v in x]
        return max(range(10), key=lambda y: sum(map(mul, bits, weights[y])) + offsets[y])

    return predict


def by_class(xs, ys):
    return [[x for x, y in zip(xs, ys) if y == digit] for digit in range(10)]


def main():
    method, level = options()
    train = read("train")
    fit = (perceptron, neighbour, centroid, naive_bayes)[method - 1]
    predict = fit([shrink(row[1], level) for row in train], [int(row[2]) for row in train])
    with open("submission.csv", "w") as file:
        file.write("id,digit\n")
        for row in read("val") + read("test"):
            file.write(f"{row[0]},{predict(shrink(row[1], level))}\n")


main()
