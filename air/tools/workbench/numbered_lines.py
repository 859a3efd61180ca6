"""Defines `NumberedLines`, which gives access to the lines of a text by number, without splitting the whole
text. The agent's file tools use it.

Splitting a file of 16 MB can give a list of 16 million lines, and while Python does this, it runs no other
thread. `NumberedLines` counts the line feeds of each chunk of the text instead, and splits only the requested
lines.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

_PIECE = 1 << 14
"""The number of characters in one chunk of the text."""


class NumberedLines:
    """The lines of `text`, numbered from 1, without their line ends. Only a line feed ends a line."""

    def __init__(self, text: str) -> None:
        self.text = text
        counts = (text.count("\n", at, at + _PIECE) for at in range(0, len(text), _PIECE))
        self._feeds = list(accumulate(counts))
        """For each chunk, the number of line feeds from the start of the text to the end of the chunk."""

    def __len__(self) -> int:
        whole = self._feeds[-1] if self._feeds else 0
        return whole + (not self.text.endswith("\n") and self.text != "")

    def start(self, number: int) -> int:
        """Returns the index in the text at which line `number` starts. After the last line, returns the
        length of the text."""
        feeds = number - 1
        if feeds == 0:
            return 0
        piece = bisect_left(self._feeds, feeds)
        if piece == len(self._feeds):
            return len(self.text)
        at = piece * _PIECE - 1
        for _ in range(feeds - (self._feeds[piece - 1] if piece else 0)):
            at = self.text.index("\n", at + 1)
        return at + 1

    def between(self, first: int, last: int) -> list[str]:
        """Returns the lines `first` to `last`, both included. Lines that the text does not have are left
        out."""
        if first > last:
            return []
        part = self.text[self.start(first) : self.start(last + 1)]
        return part.removesuffix("\n").split("\n") if part else []

    def replaced(self, first: int, last: int, body: Sequence[str]) -> NumberedLines:
        """Returns a new text with the lines `body` in place of the lines `first` to `last`.

        If `last` is `first - 1`, `body` is inserted before `first`. Every line of the result ends with a line
        feed, except an unchanged last line that had no line feed before.
        """
        head, tail = self.text[: self.start(first)], self.text[self.start(last + 1) :]
        if head and not head.endswith("\n"):
            head += "\n"
        return NumberedLines(head + "".join(line + "\n" for line in body) + tail)

    def having(self, text: str, most: int) -> list[tuple[int, str]]:
        """Returns the first lines that contain `text`, at most `most`, as pairs (number of the line, line).
        The list is empty if `text` contains a line feed."""
        found: list[tuple[int, str]] = []
        if "\n" in text:
            return found
        number, counted = 1, 0
        at = self.text.find(text)
        while at >= 0 and len(found) < most:
            number, counted = number + self.text.count("\n", counted, at), at
            end = self.text.find("\n", at)
            end = len(self.text) if end < 0 else end
            found.append((number, self.text[self.text.rfind("\n", 0, at) + 1 : end]))
            at = self.text.find(text, end)
        return found
