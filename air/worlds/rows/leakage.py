"""Finds leakage between the splits of a dataset: validation questions that also occur, exactly or nearly, in
the training rows.

Two questions are equal if they have the same words, numbers and signs, regardless of case, spaces and
punctuation. They are near duplicates if their word triples (three consecutive words) have a Jaccard
similarity of at least `NEAR`. MinHash with bands (a hashing method for similar sets) finds candidates, which
are then compared exactly. A validation question is compared with at most `MOST_COMPARED` candidates, so the
running time is linear in the number of rows. A pair of questions with a similarity of 0.8 is compared with a
probability above 99.99 per cent, unless the validation question has more than `MOST_COMPARED` candidates.
"""

from __future__ import annotations

import re
import unicodedata
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from air.worlds.rows.reading import Row

NEAR = 0.8
"""The minimum similarity, from 0 to 1, at which two questions are near duplicates."""
MOST_COMPARED = 64
"""The maximum number of training questions with which a validation question is compared."""
_RUN = 3
_BANDS, _ROWS = 24, 4
_PRIME = np.uint64(2**31 - 1)
_TOKEN = re.compile(r"\d+(?:[.,]\d+)*|\w+|[^\w\s]")
_PUNCTUATION = frozenset(".,;:!?\"'`“”‘’…")


@dataclass(frozen=True)
class Pair:
    """A leak: a row of the validation split, and the row of the training split with the most similar
    question."""

    held_out: Row
    training: Row
    similarity: float
    """The Jaccard similarity of the two questions; 1.0 if they are equal."""


@dataclass(frozen=True)
class Leakage:
    """The validation questions that also occur in the training rows: exactly (`equal`) or nearly (`near`)."""

    equal: Sequence[Pair]
    near: Sequence[Pair]
    crowded: int = 0
    """The number of validation questions with more than `MOST_COMPARED` candidates, that is, training
    questions that may be similar. For these, the most similar training question may have been missed."""
    compared: int = 0
    """The number of pairs of questions whose similarity was computed: at most `MOST_COMPARED` for each
    validation question."""


def words(question: str) -> tuple[str, ...]:
    """Splits a question into lower-case words, numbers and signs (such as `+`), without punctuation."""
    text = unicodedata.normalize("NFKC", question).casefold()
    return tuple(token for token in _TOKEN.findall(text) if token not in _PUNCTUATION)


def find(training: Sequence[Row], held_out: Sequence[Row]) -> Leakage:
    """Finds the rows in `held_out` whose question also occurs in `training`, exactly or nearly. Returns them
    in pairs with the most similar training rows. The result is deterministic."""
    by_words = {words(row.question): row for row in reversed(training)}
    equal, others = [], []
    for row in held_out:
        if (same := by_words.get(words(row.question))) is not None:
            equal.append(Pair(row, same, 1.0))
        else:
            others.append(row)
    near, crowded, compared = _near(list(by_words.values()), others)
    return Leakage(equal, near, crowded, compared)


def without_leaks(training: Sequence[Row], held_out: Sequence[Row]) -> list[Row]:
    """Returns the training rows whose question neither equals nor nearly equals a held-out question. Each
    training row is compared with at most `MOST_COMPARED` held-out rows."""
    leakage = find(held_out, training)  # the other way round: a partner for each row for training
    leaks = {id(pair.held_out) for pair in (*leakage.equal, *leakage.near)}
    return [row for row in training if id(row) not in leaks]


def _near(training: Sequence[Row], held_out: Sequence[Row]) -> tuple[list[Pair], int, int]:
    """Finds the near duplicates (questions with similar words). Returns three values: the pairs of a row in
    `held_out` and the most similar row in `training`; the number of rows in `held_out` for which only some of
    the candidates were compared, because there were more than `MOST_COMPARED`; and the number of compared
    pairs."""
    runs = [_runs(row.question) for row in held_out]
    best: list[tuple[float, Row | None]] = [(0.0, None)] * len(held_out)
    budget = [MOST_COMPARED] * len(held_out)
    crowded: set[int] = set()
    table: dict[bytes, list[int]] = defaultdict(list)
    for number, own in enumerate(runs):
        for key in _bands(own):
            table[key].append(number)
    for row in training:
        its_runs = _runs(row.question)
        candidates: set[int] = set()
        for key in _bands(its_runs):
            if numbers := table.get(key):
                candidates.update(numbers)
                if spent := [number for number in numbers if not budget[number]]:
                    crowded.update(spent)
                    # A question that may not be compared any more leaves the table, so that the time stays
                    # linear.
                    table[key] = [number for number in numbers if budget[number]]
        for number in sorted(candidates - crowded):
            if budget[number]:
                budget[number] -= 1
                value = len(its_runs & runs[number]) / len(its_runs | runs[number])
                if value > best[number][0]:
                    best[number] = value, row
    pairs = [
        Pair(row, nearest, value)
        for row, (value, nearest) in zip(held_out, best, strict=True)
        if nearest is not None and value >= NEAR
    ]
    return pairs, len(crowded), MOST_COMPARED * len(held_out) - sum(budget)


def _runs(question: str) -> frozenset[int]:
    """Returns the hashes of a question's word triples (three consecutive words). If the question has fewer
    than three words, returns the hash of all its words."""
    tokens = words(question)
    starts = range(max(1, len(tokens) - _RUN + 1))
    return frozenset(_digest(" ".join(tokens[start : start + _RUN])) for start in starts)


def _digest(text: str) -> int:
    return zlib.crc32(text.encode()) % int(_PRIME)


def _coefficients() -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    drawn = np.random.default_rng(0).integers(
        1, int(_PRIME), size=(2, _BANDS * _ROWS), dtype=np.uint64
    )
    return drawn[0], drawn[1]


_FACTORS, _SUMMANDS = _coefficients()


def _bands(runs: frozenset[int]) -> Iterator[bytes]:
    """Yields the keys under which a question is filed in the search for similar questions: the MinHash values
    of each band. `runs` are the hashes of the question's word triples. Similar questions have at least one
    key in common, with high probability."""
    digests = np.fromiter(runs, dtype=np.uint64, count=len(runs))
    # Both factors are below 2^31, so no product overflows.
    hashed = (digests[:, None] * _FACTORS + _SUMMANDS) % _PRIME
    least = hashed.min(axis=0).astype(np.uint32).reshape(_BANDS, _ROWS)
    for number, band in enumerate(least):
        yield bytes([number]) + band.tobytes()
