"""The shop's search engine. It ranks the texts of all products by BM25, a common score for word matches."""

from __future__ import annotations

import functools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping

from air.worlds.questions.shop.catalogue import goods

MOST_RESULTS = 50
_K1, _B = 1.2, 0.75
_WORD = re.compile("[a-z0-9]+")


class Index:
    """An inverted index for the search in `texts`, a dict of texts by key. It ranks texts by BM25, a common
    score for word matches."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        counts = {key: Counter(_words(text)) for key, text in texts.items()}
        lengths = {key: count.total() for key, count in counts.items()}
        average = sum(lengths.values()) / len(lengths)
        holders: defaultdict[str, list[str]] = defaultdict(list)
        for key, count in counts.items():
            for word in count:
                holders[word].append(key)
        self._weights: dict[str, list[tuple[str, float]]] = {}
        """For each word, the keys of the texts that contain the word, each with the word's contribution to
        the BM25 score of the text."""
        for word, keys in holders.items():
            rarity = math.log(1 + (len(texts) - len(keys) + 0.5) / (len(keys) + 0.5))
            self._weights[word] = [
                (key, rarity * _saturated(counts[key][word], lengths[key] / average))
                for key in keys
            ]
        self._order = {key: place for place, key in enumerate(texts)}

    def find(self, keywords: str) -> list[str]:
        """Returns the keys of the texts with the highest scores, best first, at most `MOST_RESULTS`. Texts
        with equal scores keep the order in which they were indexed."""
        scores: defaultdict[str, float] = defaultdict(float)
        for word in dict.fromkeys(_words(keywords)):
            for key, weight in self._weights.get(word, ()):
                scores[key] += weight
        ranked = sorted(scores, key=lambda key: (-round(scores[key], 9), self._order[key]))
        return ranked[:MOST_RESULTS]


@functools.cache
def index() -> Index:
    """Returns the index of all products. The index is built on the first call."""
    return Index({asin: product.text for asin, product in goods().items()})


def _saturated(count: int, length: float) -> float:
    return count * (_K1 + 1) / (count + _K1 * (1 - _B + _B * length))


def _words(text: str) -> list[str]:
    """Returns the words of a text in lower case. A final `s` is removed from each word, so that singular and
    plural match."""
    return [word.removesuffix("s") for word in _WORD.findall(text.lower())]
