"""Search indices of a corpus: BM25 (with the library bm25s), and dense vectors from a user's encoder.

A search returns the positions of passages in the corpus, from 0, with their scores, highest score first.
Passages with equal scores keep the order of the corpus.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from air.errors import (
    ConfigError,
    HangingToolError,
    InfrastructureError,
    MissingError,
    UserCodeError,
)
from air.machine_failures import is_machine_failure
from air.tools.base import ToolError
from air.tools.search.corpus import Corpus

_EAST = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
_WORD = re.compile(rf"[{_EAST}]|[^\W{_EAST}]+")
"""Matches a word. In scripts without spaces between words, each character is a word."""
_STOP = frozenset(
    re.findall(
        "[a-z]+",
        "a an and are as at be but by for from has have he her his i in is it its of on or she that the "
        "their them they this to was we were what when where which who why how will with you",
    )
)
"""English stop words, which BM25 ignores."""
_BATCH = 256
_LONGEST_PROBLEM = 300
Encoder = Callable[[list[str]], Any]
"""The type of a function that takes a list of strings and returns one vector for each: an array with one row
for each string, or a list of lists of numbers."""


class Index(Protocol):
    """The interface of a search index."""

    def find(self, query: str, count: int) -> list[tuple[int, float]]:
        """Returns the best passages for a query, at most `count`: for each, its position in the corpus and
        its score."""
        ...


def words(text: str) -> list[str]:
    """Returns the words of a text in the form in which BM25 compares them: in lower case, with Unicode
    compatibility forms unified, and without English stop words."""
    plain = unicodedata.normalize("NFKC", text).casefold()
    return [word for word in _WORD.findall(plain) if word not in _STOP]


class Bm25:
    """A BM25 index. A search never returns a passage that contains no word of the query."""

    def __init__(self, corpus: Corpus) -> None:
        try:
            import bm25s
        except ImportError as error:
            remedy = "pip install 'air-agent[tools]'"
            raise MissingError(
                "needs the package bm25s", where="tool 'search'", remedy=remedy
            ) from error
        tokens = [words(passage.whole) for passage in corpus]
        if not any(tokens):
            raise ConfigError("no passage has a word", where=str(corpus.path))
        self._index = bm25s.BM25()
        self._index.index(tokens, show_progress=False)

    def find(self, query: str, count: int) -> list[tuple[int, float]]:
        known = self._index.get_tokens_ids(words(query))
        if not known:
            return []
        scores = self._index.get_scores(known)
        return [(position, score) for position, score in _best(scores, count) if score > 0]


class Dense:
    """An index of dense vectors. The score is the cosine of the vectors of query and passage. Only one thread
    at a time calls the encoder, the user's function that makes vectors.

    If the encoder fails on a query, it is tried on a passage of the corpus. If it succeeds there, it is tried
    on the query again; if that fails again, the query is at fault, and ToolError is raised, which the model
    sees. If it fails on the passage as well, it no longer works. Then UserCodeError is raised, which stops
    the run: otherwise every episode with a search would be left out of training. But if the exception proves
    a failure of the machine (see `is_machine_failure`), such as a lost connection, InfrastructureError is
    raised.

    The encoder may hang on an earlier query, even after that query's call exceeded its time limit. The next
    query waits for the encoder at most `patience` seconds, and then raises HangingToolError. This stops the
    run, because this query did not cause the delay and later queries would fail as well.
    """

    def __init__(
        self,
        corpus: Corpus,
        encoder: Encoder,
        query_prefix: str,
        text_prefix: str,
        where: str,
        patience: float,
    ) -> None:
        self._encoder = encoder
        self._query_prefix = query_prefix
        self._lock, self._patience = threading.Lock(), patience
        texts = [text_prefix + passage.whole for passage in corpus]
        self._where, self._known = where, texts[0]
        parts = [texts[n : n + _BATCH] for n in range(0, len(texts), _BATCH)]
        try:
            self._vectors = np.concatenate([_unit(encoder(part), len(part)) for part in parts])
        except ValueError as error:
            remedy = "return one vector of finite numbers for each text"
            raise ConfigError(f"the encoder: {error}", where=where, remedy=remedy) from None

    def find(self, query: str, count: int) -> list[tuple[int, float]]:
        if not self._lock.acquire(timeout=self._patience):
            raise HangingToolError(
                f"it still works at an earlier query, {self._patience:g} seconds after the next one",
                where=self._where,
                remedy="give the function a time limit of its own",
            )
        try:
            vector = self._encoded(self._query_prefix + query)
        finally:
            self._lock.release()
        return _best(self._vectors @ vector, count)

    def _encoded(self, query: str) -> NDArray[np.float32]:
        """Returns the vector of a query. Raises ToolError if the encoder fails only on this query, and
        InfrastructureError or UserCodeError if it also fails on a passage that it has encoded before."""
        try:
            return self._vector(query)
        except Exception:  # a user's encoder may raise anything
            try:
                self._vector(self._known)
            except Exception as error:
                problem = f"{type(error).__name__}: {error}"
                if is_machine_failure(error):
                    raise InfrastructureError(f"{self._where} fails: {problem}") from error
                message = f"it fails on a text that it has encoded before: {problem}"
                remedy = "make the function work again after a query at which it failed"
                raise UserCodeError(message, where=self._where, remedy=remedy) from error
        try:
            return self._vector(query)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"[:_LONGEST_PROBLEM]
            raise ToolError(f"The query cannot be encoded: {problem}") from None

    def _vector(self, text: str) -> NDArray[np.float32]:
        vector: NDArray[np.float32] = _unit(self._encoder([text]), 1)[0]
        return vector


def _unit(vectors: Any, count: int) -> NDArray[np.float32]:
    """Returns an array whose rows are the vectors `vectors`, each scaled to length 1 (a zero vector stays
    zero), so that the scalar product of two rows is their cosine. Raises ValueError if `vectors` is not an
    array of `count` finite vectors."""
    array: NDArray[np.float32] = np.asarray(vectors, dtype=np.float32)
    if array.ndim != 2 or array.shape[0] != count or not array.shape[1]:
        raise ValueError(f"it gave an array of the shape {array.shape} for {count} texts")
    if not np.isfinite(array).all():
        raise ValueError("it gave a number that is not finite")
    lengths = np.linalg.norm(array, axis=1, keepdims=True)
    unit: NDArray[np.float32] = np.divide(
        array, np.where(lengths == 0, 1, lengths), dtype=np.float32
    )
    return unit


def _best(scores: NDArray[np.float32], count: int) -> list[tuple[int, float]]:
    count = min(count, len(scores))
    least = np.partition(scores, len(scores) - count)[len(scores) - count]
    above = np.flatnonzero(scores > least)
    equal = np.flatnonzero(scores == least)[: count - len(above)]
    positions: Sequence[int] = np.concatenate([above, equal]).tolist()
    ranked = sorted(positions, key=lambda position: (-scores[position], position))
    return [(position, float(scores[position])) for position in ranked]
