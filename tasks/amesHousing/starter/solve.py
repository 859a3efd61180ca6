"""Trains on data/train.csv and writes submission.csv for the rows of data/val.csv and data/test.csv.

Options are read from the file `config`, one line such as `method=2 level=3`:

method  1 the mean price of each neighbourhood
        2 ridge regression
        3 nearest neighbours
        4 gradient-boosted trees
level   1 the living area
        2 the areas, years and counts of rooms
        3 all columns that hold numbers
        4 all columns

Everything predicts the logarithm of the price.
"""

import csv
import sys

import numpy as np

SIZES = [
    *("Lot_Area", "Year_Built", "Total_Bsmt_SF", "First_Flr_SF", "Second_Flr_SF", "Gr_Liv_Area"),
    *("Full_Bath", "Half_Bath", "TotRms_AbvGrd", "Fireplaces", "Garage_Cars", "Garage_Area"),
]


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


def is_number(cell):
    try:
        float(cell)
    except ValueError:
        return False
    return True


def columns(train, level):
    """Names of the columns that hold numbers, and of those that hold categories."""
    names = [name for name in train[0] if name not in ("id", "price")]
    numbers = [name for name in names if is_number(train[0][name])]
    if level == 1:
        return ["Gr_Liv_Area"], []
    if level == 2:
        return SIZES, []
    return numbers, [name for name in names if name not in numbers] if level == 4 else []


def scaled(rows, names, known):
    """Numbers to mean 0 and deviation 1 over the known rows; long tails are shortened by a root."""

    def numbers(of):
        values = np.array([[float(row[name]) for name in names] for row in of])
        return np.sign(values) * np.sqrt(np.abs(values))

    seen = numbers(known)
    return (numbers(rows) - seen.mean(0)) / (seen.std(0) + 1e-9)


def one_hot(rows, names, known):
    """One column for each category that at least five known rows have."""
    found = []
    for name in names:
        cells = [row[name] for row in known]
        for value in sorted(set(cells)):
            if cells.count(value) >= 5:
                found.append([row[name] == value for row in rows])
    return np.array(found, float).reshape(len(found), len(rows)).T


def ranked(rows, names, known, y):
    """Categories as numbers: the mean target of the known rows that have it, drawn to that of all."""
    found = []
    for name in names:
        sums = {}
        for row, value in zip(known, y):
            total, count = sums.get(row[name], (0.0, 0))
            sums[row[name]] = (total + value, count + 1)
        means = {key: (s + 5 * y.mean()) / (n + 5) for key, (s, n) in sums.items()}
        found.append([means.get(row[name], y.mean()) for row in rows])
    return np.array(found, float).reshape(len(found), len(rows)).T


def neighbourhoods(train, y, rows):
    return ranked(rows, ["Neighborhood"], train, y)[:, 0]


def design(train, rows, level):
    numbers, categories = columns(train, level)
    return np.hstack([scaled(rows, numbers, train), one_hot(rows, categories, train)])


def ridge(train, y, rows, level, strength=10.0):
    x = design(train, train, level)
    gram = x.T @ x + strength * np.eye(x.shape[1])
    weights = np.linalg.solve(gram, x.T @ (y - y.mean()))
    return y.mean() + design(train, rows, level) @ weights


def neighbours(train, y, rows, level, k=8):
    x, of = design(train, train, level), design(train, rows, level)
    distances = (of**2).sum(1)[:, None] - 2 * of @ x.T + (x**2).sum(1)
    nearest = np.argsort(distances, axis=1, kind="stable")[:, :k]
    return y[nearest].mean(1)


def boosted(train, y, rows, level, trees=200, rate=0.1):
    """Trees of depth 3 on up to 32 bins a column, each fitted to what is still wrong."""
    numbers, categories = columns(train, level)

    def table(of):
        values = [[float(row[name]) for name in numbers] for row in of]
        return np.hstack([np.array(values), ranked(of, categories, train, y)])

    x, new = table(train), table(rows)
    edges = [np.unique(np.quantile(column, np.linspace(0, 1, 33)[1:-1])) for column in x.T]
    x, new = (np.stack([np.searchsorted(e, c) for e, c in zip(edges, of.T)], 1) for of in (x, new))
    fitted, predicted = np.full(len(y), y.mean()), np.full(len(new), y.mean())
    for _ in range(trees):
        grow(x, y - fitted, np.arange(len(x)), new, np.arange(len(new)), fitted, predicted, rate, 3)
    return predicted


def grow(x, error, inside, new, reached, fitted, predicted, rate, depth):
    """Splits the rows `inside` where it helps most, and adds the leaves to both predictions."""
    best = split(x[inside], error[inside]) if depth else None
    if best is None:
        step = rate * error[inside].mean()
        fitted[inside] += step
        predicted[reached] += step
        return
    column, edge = best
    left, goes = x[inside, column] <= edge, new[reached, column] <= edge
    for mask, which in ((left, goes), (~left, ~goes)):
        parts = inside[mask], new, reached[which]
        grow(x, error, *parts, fitted, predicted, rate, depth - 1)


def split(x, error, least=8):
    """The column and bin whose split explains the most squares, with `least` rows on each side."""
    rows, width = x.shape
    if rows < 2 * least:
        return None
    places = (x + 32 * np.arange(width)).ravel()
    sums = np.bincount(places, np.repeat(error, width), 32 * width).reshape(width, 32).cumsum(1)
    counts = np.bincount(places, minlength=32 * width).reshape(width, 32).cumsum(1)
    others = rows - counts
    gain = sums**2 / np.maximum(counts, 1) + (sums[:, -1:] - sums) ** 2 / np.maximum(others, 1)
    gain[(counts < least) | (others < least)] = -1
    at = int(np.argmax(gain.round(9)))
    return divmod(at, 32) if gain.ravel()[at] >= 0 else None


def main():
    method, level = options()
    train = read("train")
    rows = read("val") + read("test")
    y = np.log([float(row["price"]) for row in train])
    if method == 1:
        predicted = neighbourhoods(train, y, rows)
    else:
        predicted = (ridge, neighbours, boosted)[method - 2](train, y, rows, level)
    with open("submission.csv", "w") as file:
        file.write("id,price\n")
        for row, value in zip(rows, np.exp(predicted)):
            file.write(f"{row['id']},{value:.2f}\n")


main()
