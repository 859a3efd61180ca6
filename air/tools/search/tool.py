"""The tool `search` and its settings. The first episode in a process builds the search index, which all
episodes in the process share."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field, model_validator

from air.config import plugin
from air.errors import ConfigError
from air.tools.base import SECONDS, Reply, Tool, ToolContext, ToolError, tool
from air.tools.load import ToolSettings
from air.tools.search.corpus import Corpus, Passage
from air.tools.search.indices import Bm25, Dense, Index

_LONGEST_QUERY = 1000
_LONGEST_TITLE = 200
_INDEX_SECONDS = 86_400.0
"""The time limit for building the index, in seconds. It is a day, because a large corpus takes long."""


class SearchSettings(ToolSettings):
    """The settings of the tool `search`."""

    corpus: Path
    """The corpus: a JSON Lines file whose lines have `text` and optionally `title` and `id`. A relative path
    is relative to the folder of the run file."""
    top: int = Field(3, ge=1, le=100)
    """The maximum number of passages in the result of a search."""
    passage_length: int = Field(550, ge=20, le=100_000)
    """The maximum number of characters of a passage in the result of a search."""
    encoder: str = ""
    """`file.py:function` or `module:function`: a function that takes a list of strings and returns one vector
    for each. If an encoder is set, passages are ranked by the cosine of vectors, otherwise by BM25."""
    query_prefix: str = ""
    """Text that is put before each query that the encoder gets."""
    text_prefix: str = ""
    """Text that is put before each passage that the encoder gets."""

    @model_validator(mode="after")
    def _prefixes(self) -> SearchSettings:
        if not self.encoder and (self.query_prefix or self.text_prefix):
            raise ValueError("`query_prefix` and `text_prefix` need an `encoder`")
        return self

    def tools(self, folder: Path) -> Sequence[Tool]:
        corpus = Corpus((folder / self.corpus.expanduser()).resolve())
        shared = _SharedIndex(self, corpus, folder)
        at_once = 1 if self.encoder else os.cpu_count() or 1

        @tool(state=shared.index, calls_at_once=at_once)
        def search(index: Index, query: str) -> Reply:
            """Searches a collection of texts and shows the passages that fit best.

            Args:
                query: a few words about what is wanted
            """
            if len(query) > _LONGEST_QUERY:
                raise ToolError(f"The query is longer than {_LONGEST_QUERY} characters.")
            if not query.strip():
                raise ToolError("The query is empty.")
            found = [(corpus.read(n), score) for n, score in index.find(query, self.top)]
            texts = [self._shown(n, passage) for n, (passage, _) in enumerate(found, start=1)]
            info = {"ids": [one.id for one, _ in found], "scores": [score for _, score in found]}
            return Reply("\n\n".join(texts) or "Nothing was found.", info=info)

        return [search.with_digest(corpus.digest)]

    def applied(self, tool: Tool) -> Tool:
        """Returns a copy of `tool` with the limits of these settings. With an encoder, a call may take
        `patience` seconds longer than its time limit, because it may have to wait for another search."""
        limited = super().applied(tool)
        patience = self.patience if self.encoder else 0.0
        return dataclasses.replace(limited, patience=patience, state_seconds=_INDEX_SECONDS)

    @property
    def patience(self) -> float:
        """The maximum time, in seconds, that a search waits until the encoder has finished an earlier query,
        because the encoder handles one query at a time. It equals the time limit of a search."""
        return self.seconds or SECONDS

    def _shown(self, number: int, passage: Passage) -> str:
        text = _cut(passage.text, self.passage_length)
        title = _cut(passage.title, _LONGEST_TITLE)
        return f"[{number}] {title}\n{text}" if title else f"[{number}] {text}"


class _SharedIndex:
    """Builds the search index when it is first needed, and holds it for all episodes of this process."""

    def __init__(self, settings: SearchSettings, corpus: Corpus, folder: Path) -> None:
        self._settings = settings
        self._corpus = corpus
        self._encoder = plugin(settings.encoder, folder) if settings.encoder else None
        if settings.encoder and not callable(self._encoder):
            raise ConfigError(
                f"`{settings.encoder}` is no function", where="tool 'search': `encoder`"
            )
        self._index: Index | None = None
        self._lock = threading.Lock()

    def index(self, context: ToolContext) -> Index:
        """Returns the index; the first call builds it. `context` is not used, because the index is the same
        for all episodes; functions that make a tool's state must accept it."""
        with self._lock:
            if self._index is None:
                self._index = self._made()
            return self._index

    def _made(self) -> Index:
        if self._encoder is None:
            return Bm25(self._corpus)
        settings = self._settings
        return Dense(
            self._corpus,
            self._encoder,
            settings.query_prefix,
            settings.text_prefix,
            where=f"tool 'search': {settings.encoder}",
            patience=settings.patience,
        )


def _cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    return f"{text[:most].rstrip()} [… the first {most} of {len(text)} characters]"
