"""Limits the length of observations, the texts that a model gets after its actions: counts their tokens, and
cuts the middle out of an observation that is too long."""

from __future__ import annotations

import functools
from typing import Any, Protocol

BYTES_PER_TOKEN = 3
"""The number of bytes that are counted as one token if there is no tokenizer. It is low on purpose, so that
the estimated number of tokens is rather too large than too small, and no limit is exceeded."""


class TokenCounter(Protocol):
    """Interface of objects that count the tokens of a text, and shorten a text to a number of tokens."""

    def count(self, text: str) -> int:
        """Returns the number of tokens in `text`."""
        ...

    def cap(self, text: str, limit: int) -> tuple[str, bool]:
        """Shortens `text` if it has more than `limit` tokens: keeps about `limit` tokens, half of them from
        the start and half from the end, and puts a line with the number of tokens cut between them. Returns
        the text, and whether it was shortened."""
        ...


class _ByBytes:
    def count(self, text: str) -> int:
        return -(-len(_bytes(text)) // BYTES_PER_TOKEN)

    def cap(self, text: str, limit: int) -> tuple[str, bool]:
        data, room = _bytes(text), limit * BYTES_PER_TOKEN
        if len(data) <= room:
            return text, False
        head, tail = data[: room // 2], data[len(data) - (room - room // 2) :]
        cut = self.count(text) - limit
        return _joined(head.decode("utf-8", "ignore"), cut, tail.decode("utf-8", "ignore")), True


class _ByTokenizer:
    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def count(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False))

    def cap(self, text: str, limit: int) -> tuple[str, bool]:
        # A text has no more tokens than bytes, so most texts need no encoding.
        if len(_bytes(text)) <= limit:
            return text, False
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        if len(ids) <= limit:
            return text, False
        head, tail = ids[: limit // 2], ids[len(ids) - (limit - limit // 2) :]
        decode = self._tokenizer.decode
        return _joined(decode(head), len(ids) - limit, decode(tail)), True


def _bytes(text: str) -> bytes:
    return text.encode(
        "utf-8", "replace"
    )  # a text can hold lone surrogates, which UTF-8 cannot encode


def _joined(head: str, cut: int, tail: str) -> str:
    return f"{head}\n[… {cut} tokens cut …]\n{tail}"


@functools.cache
def counter_for(tokenizer: str | None) -> TokenCounter:
    """Returns an object that counts tokens with the tokenizer `tokenizer`, a Hugging Face hub id or a folder.
    If `tokenizer` is None, the object estimates the number of tokens from the number of bytes."""
    if tokenizer is None:
        return _ByBytes()
    from renderers.base import load_tokenizer

    return _ByTokenizer(load_tokenizer(tokenizer))
