"""Measures the novelty of a proposal (a question that a model wrote): proposals are clustered by BLEU, a
measure of common word sequences, and a proposal in a large cluster is penalised.

The distance of two texts is 1 − BLEU, averaged over both directions. Clusters are merged by average linkage,
the nearest two first, while their mean distance is at most `THRESHOLD`. The penalty for a proposal is the
share of the latest proposals (see `Window`) that are in its cluster.

The cost is bounded: only the first `MOST_WORDS` words of a text are used, equal texts are one weighted point,
and at most `MOST_TEXTS` different texts are compared. A window keeps the distances of its texts, so that a
new proposal is compared once with each of them. Then only the texts near it are clustered again.
"""

from __future__ import annotations

import math
import re
import threading
import unicodedata
from collections import Counter, deque
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

THRESHOLD = 0.5
MOST_TEXTS = 512
MOST_WORDS = 256
_ROUNDING = 1e-9
"""A number above the rounding error of a mean distance, and so small that it has no effect otherwise."""
_ORDER = 4
_SMOOTH = 0.1
"""The count of common n-grams that is used in BLEU instead of 0 if two texts have no n-gram of a length in
common (Chen and Cherry 2014, method 1)."""
_WORD = re.compile(r"\w+|[^\w\s]")

_UNSEEN = ("Cc", "Cf", "Cn", "Co", "Cs", "Mn", "Me")
"""The Unicode categories of characters that are invisible, have no meaning, or only mark another
character."""
_FILLERS = "\u115f\u1160\u2800"
"""Invisible characters of other categories: two letters of the Korean script, and the empty Braille
pattern."""

Words = tuple[str, ...]


@lru_cache(maxsize=4 * MOST_TEXTS)  # so that other caches keep one tuple of each text
def words(text: str) -> Words:
    """Splits a text into lower-case words, numbers and punctuation marks, and returns at most the first
    `MOST_WORDS` of them. Variants of a character, such as its wide form, count as the same character.
    Invisible characters and accents are ignored, so that a copy of a text cannot be disguised with them."""
    return tuple(_WORD.findall(_seen(text).casefold()[: 16 * MOST_WORDS])[:MOST_WORDS])


def _seen(text: str) -> str:
    if text.isascii():
        return text
    return "".join(
        character
        for character in unicodedata.normalize("NFKD", text)
        if character.isspace()
        or not (character in _FILLERS or unicodedata.category(character) in _UNSEEN)
    )


def bleu(candidate: Words, reference: Words) -> float:
    """Returns the BLEU score (from 0 to 1) of a candidate against one reference, with n-grams of up to four
    words (fewer if a text is shorter) and a penalty for a candidate that is shorter than the reference."""
    if not candidate or not reference:
        return float(candidate == reference)
    order = min(_ORDER, len(candidate), len(reference))
    logs = 0.0
    for n in range(1, order + 1):
        own, others = _grams(candidate, n), _grams(reference, n)
        common = sum(min(count, others[gram]) for gram, count in own.items() if gram in others)
        if n == 1 and not common:
            return 0.0
        logs += math.log((common or _SMOOTH) / (len(candidate) - n + 1))
    brevity = min(0.0, 1 - len(reference) / len(candidate))
    return math.exp(logs / order + brevity)


@lru_cache(maxsize=2 * _ORDER * MOST_TEXTS)
def _grams(text: Words, n: int) -> Counter[Words]:
    return Counter(text[start : start + n] for start in range(len(text) - n + 1))


@lru_cache(maxsize=262_144)
def distance(one: Words, other: Words) -> float:
    """Returns the distance of two texts: 1 − BLEU, averaged over both directions. It is 0 for equal texts and
    1 for texts without a common word."""
    return 0.0 if one == other else 1 - (bleu(one, other) + bleu(other, one)) / 2


def clusters(texts: Sequence[str], threshold: float = THRESHOLD) -> list[int]:
    """Groups similar texts into clusters, and returns a list with the cluster number of each text. Clusters
    are numbered from 0, in the order of their first texts. Two clusters are merged if their mean distance is
    at most `threshold`. Raises ValueError if there are more than `MOST_TEXTS` different texts."""
    each = [words(text) for text in texts]
    points = list(dict.fromkeys(each))
    if len(points) > MOST_TEXTS:
        raise ValueError(f"{len(points)} different texts, more than {MOST_TEXTS}")
    weights = Counter(each)
    numbers = _linked(_distances(points), [weights[point] for point in points], threshold)
    of_point = dict(zip(points, numbers, strict=True))
    return [of_point[point] for point in each]


def _distances(points: Sequence[Words]) -> Any:
    """Returns the distances of n different texts, a float64 array [n, n]. The diagonal is infinite, because
    no text is merged with itself."""
    import numpy as np

    matrix = np.full((len(points), len(points)), np.inf)
    for row, point in enumerate(points):
        for column in range(row):
            matrix[row, column] = matrix[column, row] = distance(point, points[column])
    return matrix


def _linked(matrix: Any, weights: Sequence[int], threshold: float) -> list[int]:
    """Returns a list with the cluster number of each of n different texts, by average linkage (UPGMA).
    `matrix` has the distances of the texts, as `_distances` returns them, and is overwritten. `weights` has
    the number of proposals with each text."""
    import numpy as np

    count = len(matrix)
    sizes = np.array(weights, dtype=float)
    cluster = list(range(count))
    while count:
        first, second = divmod(int(matrix.argmin()), count)
        if not matrix[first, second] <= threshold:
            break
        keep, drop = min(first, second), max(first, second)
        total = sizes[keep] + sizes[drop]
        joined = (sizes[keep] * matrix[keep] + sizes[drop] * matrix[drop]) / total
        joined[keep] = np.inf
        matrix[keep], matrix[:, keep] = joined, joined
        matrix[drop], matrix[:, drop] = np.inf, np.inf
        sizes[keep] = total
        cluster = [keep if own == drop else own for own in cluster]
    numbers = {own: number for number, own in enumerate(dict.fromkeys(cluster))}
    return [numbers[own] for own in cluster]


class Window:
    """The latest `size` proposals (questions that a model wrote) of a training run, among which the cluster
    of each new proposal is determined. The constructor raises ValueError if `size` is not from 1 to
    `MOST_TEXTS`.

    Proposals arrive one by one, so a proposal is compared only with earlier ones. If `size` is the batch
    size, a proposal is compared with the earlier proposals of its batch and the last ones of the previous
    batch.
    """

    def __init__(self, size: int, threshold: float = THRESHOLD) -> None:
        if not 1 <= size <= MOST_TEXTS:
            raise ValueError(f"the size must be between 1 and {MOST_TEXTS}, not {size}")
        self.size, self._threshold = size, threshold
        self._latest: deque[Words] = deque()
        """The words of the proposals in the window, in the order of their arrival."""
        self._rows: dict[Words, int] = {}
        """The row and column of each different text in `_matrix`."""
        self._free = list(range(size))
        """The rows of `_matrix` that belong to no text."""
        self._matrix: Any = None
        """The distances of the different texts, a float64 array [size, size] that is made at the first
        proposal. All values on the diagonal and in free rows and columns are infinite."""
        self._lock = threading.Lock()

    def share(self, text: str) -> float:
        """Adds a proposal to the window. Returns the number of proposals in the window that are in the same
        cluster as this proposal (itself included), divided by `size`. The distance of the proposal to each
        different text in the window is computed once; all other distances are known. Several threads may call
        this method at the same time."""
        point = words(text)
        with self._lock:
            if len(self._latest) == self.size:
                self._forget_oldest()
            if point not in self._rows:
                self._add(point)
            self._latest.append(point)
            return self._cluster_size(point) / self.size

    def _forget_oldest(self) -> None:
        import numpy as np

        oldest = self._latest.popleft()
        if oldest not in self._latest:
            row = self._rows.pop(oldest)
            self._matrix[row], self._matrix[:, row] = np.inf, np.inf
            self._free.append(row)

    def _add(self, point: Words) -> None:
        import numpy as np

        if self._matrix is None:
            self._matrix = np.full((self.size, self.size), np.inf)
        row = self._free.pop()
        for other, column in self._rows.items():
            self._matrix[row, column] = self._matrix[column, row] = distance(point, other)
        self._rows[point] = row

    def _cluster_size(self, point: Words) -> int:
        """Returns the number of proposals in the cluster of the text `point`."""
        weights = Counter(self._latest)
        linked = self._linked_rows(self._rows[point])
        # In the order of the first proposal with each text, which decides between equal distances.
        points = [each for each in weights if self._rows[each] in linked]
        rows = [self._rows[each] for each in points]
        near = self._matrix[rows][:, rows]
        numbers = _linked(near, [weights[each] for each in points], self._threshold)
        own = numbers[points.index(point)]
        pairs = zip(points, numbers, strict=True)
        return sum(weights[each] for each, number in pairs if number == own)

    def _linked_rows(self, row: int) -> set[int]:
        """Returns the rows of all texts that can be in one cluster with the text in `row`: those that a chain
        of texts links to it, in which the distance of each two neighbours is at most the threshold. No other
        text can be, because the mean of distances above the threshold is above the threshold."""
        import numpy as np

        limit = self._threshold + _ROUNDING
        linked, ends = {row}, [row]
        while ends:
            near = np.flatnonzero(self._matrix[ends.pop()] <= limit).tolist()
            ends += [other for other in near if other not in linked]
            linked.update(near)
        return linked
