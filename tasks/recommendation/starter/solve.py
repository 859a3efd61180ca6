"""Trains on data/train.csv and writes submission.csv for the rows of data/val.csv and data/test.csv.

Options are read from the file `config`, one line such as `method=2 level=3`:

method  1 means
        2 means, drawn to that of all where they are of few ratings
        3 these, and what the users that rate most alike have left
        4 these, and two tables of factors, fitted in turns
level   1 means of the movies
        2 means of the users
        3 of both
        4 of both, and of each user's ratings of a genre
"""

import csv
import sys
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
    """Columns of numbers: id, user, movie and, of train, rating."""
    return np.loadtxt(f"data/{split}.csv", delimiter=",", skiprows=1).T


def read_genres():
    """For each movie the number of its list of genres."""
    with open("data/movies.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    names = {genres: number for number, genres in enumerate(sorted({r["genres"] for r in rows}))}
    found = np.zeros(len(rows) + 1, int)
    for row in rows:
        found[int(row["movie"])] = names[row["genres"]]
    return found


def offsets(keys, new_keys, left, drawn):
    """The mean of what is left, by key, for the known rows and for the new ones."""
    size = 1 + max(keys.max(), new_keys.max())
    sums, counts = np.bincount(keys, left, size), np.bincount(keys, minlength=size)
    means = sums / np.maximum(counts + drawn, 1e-9)
    return means[keys], means[new_keys]


def means(users, movies, new_users, new_movies, ratings, level, drawn):
    """What means say of the known and the new rows; those of movies first."""
    known = np.full(len(ratings), ratings.mean())
    new = np.full(len(new_users), ratings.mean())
    steps = [[(movies, new_movies)], [(users, new_users)]]
    steps += [steps[0] + steps[1]] * 2
    keys = list(steps[level - 1])
    if level == 4:
        genres = read_genres()
        size = 1 + genres.max()
        keys.append((users * size + genres[movies], new_users * size + genres[new_movies]))
    for key, new_key in keys:
        more, new_more = offsets(key, new_key, ratings - known, drawn)
        known, new = known + more, new + new_more
    return known, new


def neighbours(users, movies, new_users, new_movies, left, drawn=1.0):
    """The mean of what is left of a movie, of all users, weighted by how alike they rate."""
    order = np.argsort(movies, kind="stable")
    edges = np.searchsorted(movies[order], np.arange(max(movies.max(), new_movies.max()) + 2))
    raters = [order[begin:end] for begin, end in pairwise(edges)]
    size = 1 + max(users.max(), new_users.max())
    products, squares, common = np.zeros((3, size, size))
    for inside in raters:
        block, rest = np.ix_(users[inside], users[inside]), left[inside]
        products[block] += np.outer(rest, rest)
        squares[block] += (rest**2)[:, None]
        common[block] += 1
    alike = products / np.sqrt(squares * squares.T + 1e-9)
    alike = np.maximum(alike, 0) * common / (common + 30)
    found = np.zeros(len(new_users))
    for row, (user, movie) in enumerate(zip(new_users, new_movies)):
        inside = raters[movie]
        weights = alike[user, users[inside]]
        found[row] = weights @ left[inside] / (weights.sum() + drawn)
    return found


def factors(users, movies, new_users, new_movies, left, rank=8, decay=12.0, rounds=8):
    """Alternating least squares, ridge; row i of one table times row j of the other."""
    rng = np.random.default_rng(0)
    counts = 1 + max(users.max(), new_users.max()), 1 + max(movies.max(), new_movies.max())
    tables = [rng.normal(0, 0.1, (count, rank)) for count in counts]
    sides = []
    for mine, others in ((users, movies), (movies, users)):
        order = np.argsort(mine, kind="stable")
        edges = np.searchsorted(mine[order], np.arange(mine.max() + 2))
        sides.append((order, edges, others))
    for _ in range(rounds):
        for side, (order, edges, others) in enumerate(sides):
            for row, (begin, end) in enumerate(pairwise(edges)):
                inside = order[begin:end]
                x = tables[1 - side][others[inside]]
                gram = x.T @ x + decay * np.eye(rank)
                tables[side][row] = np.linalg.solve(gram, x.T @ left[inside])
    return (tables[0][new_users] * tables[1][new_movies]).sum(1)


def main():
    method, level = options()
    _, users, movies, ratings = read("train")
    names, new_users, new_movies = np.hstack([read("val"), read("test")])
    keys = [column.astype(int) for column in (users, movies, new_users, new_movies)]
    known, predicted = means(*keys, ratings, level, drawn=0 if method == 1 else 4)
    if method > 2:
        predicted += (neighbours, factors)[method - 3](*keys, ratings - known)
    with open("submission.csv", "w") as file:
        file.write("id,rating\n")
        for name, value in zip(names, np.clip(predicted, 0.5, 5)):
            file.write(f"{name:.0f},{value:.4f}\n")


main()
