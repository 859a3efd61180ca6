"""Measures the novelty of a proposal (a question that a model wrote): proposals are clustered by BLEU, a
measure of common word sequences, and a proposal in a large cluster is penalised.

The distance of two texts is 1 − BLEU, averaged over both directions. Clusters are merged by average linkage,
the nearest two first, while their mean distance is at most `THRESHOLD`. The penalty for a proposal is the
share of the latest proposals (see `Window`) that are in its cluster.

The cost is bounded: only the first `MOST_WORDS` words of a text are used, equal texts are one weighted point,
and at most `MOST_TEXTS` different texts are compared.
"""

from __future__ import annotations

import math
import re
import threading
import unicodedata
from collections import Counter, deque
from collections.abc import Sequence
from functools import lru_cache

THRESHOLD = 0.5
MOST_TEXTS = 512
MOST_WORDS = 256
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
    of_point = dict(
        zip(points, _linked(points, [weights[p] for p in points], threshold), strict=True)
    )
    return [of_point[point] for point in each]


def _linked(points: Sequence[Words], weights: Sequence[int], threshold: float) -> list[int]:
    """Returns a list with the cluster number of each text in `points`, by average linkage (UPGMA) on the
    distances of the texts. The texts are all different; `weights` has the number of proposals with each
    text."""
    import numpy as np

    count = len(points)
    matrix = np.full((count, count), np.inf)
    for row in range(count):
        for column in range(row):
            matrix[row, column] = matrix[column, row] = distance(points[row], points[column])
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
        self._texts: deque[str] = deque(maxlen=size)
        self._lock = threading.Lock()

    def share(self, text: str) -> float:
        """Adds a proposal to the window. Returns the number of proposals in the window that are in the same
        cluster as this proposal (itself included), divided by `size`. Several threads may call this method at
        the same time."""
        with self._lock:
            self._texts.append(text)
            numbers = clusters(self._texts, self._threshold)
        return numbers.count(numbers[-1]) / self.size
