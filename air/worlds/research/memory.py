"""Stores the notes that an agent writes for itself during one episode. They are stored outside the box (the
isolated place in which the agent works), so that its commands cannot change them."""

from __future__ import annotations

import math
import re
from collections import Counter

from air.worlds.base import Refusal

NOTE_BYTES = 4_000
NOTES_BYTES = 100_000
SHOWN = 3
"""The maximum number of notes that `Memory.read` returns."""
_WORD = re.compile(r"\w+")


class Memory:
    """The notes that the agent has written in one episode, oldest first."""

    def __init__(self) -> None:
        self._notes: list[str] = []

    def write(self, text: str) -> int:
        """Adds a note and returns its number, which is the number of notes so far.

        Raises Refusal if the note is larger than `NOTE_BYTES`, or all notes together are larger than
        `NOTES_BYTES`.
        """
        size = len(text.encode("utf-8", "replace"))
        if size > NOTE_BYTES:
            raise Refusal(f"the note has {size} bytes; at most {NOTE_BYTES} are kept")
        if size + sum(len(note.encode("utf-8", "replace")) for note in self._notes) > NOTES_BYTES:
            raise Refusal(f"no more is kept: all notes together have {NOTES_BYTES} bytes")
        self._notes.append(text)
        return len(self._notes)

    def read(self, query: str) -> str:
        """Searches the notes for the words of `query`. Returns a text with the best matches, at most
        `SHOWN`, best first.

        A word weighs more if fewer notes contain it. Of two equally good notes, the later one comes first.
        Raises Refusal if the query is larger than `NOTE_BYTES`.
        """
        if not self._notes:
            return "There are no notes."
        if len(query.encode("utf-8", "replace")) > NOTE_BYTES:
            raise Refusal(f"the query has more than {NOTE_BYTES} bytes")
        words = [set(_WORD.findall(note.lower())) for note in self._notes]
        counts = Counter(word for one in words for word in one)
        query_words = set(_WORD.findall(query.lower()))
        weight = {
            word: math.log(1 + len(words) / counts[word]) for word in query_words if counts[word]
        }
        scores = [math.fsum(weight.get(word, 0.0) for word in query_words & one) for one in words]
        best = sorted(range(len(words)), key=lambda n: (-scores[n], -n))[:SHOWN]
        notes = [f"{n + 1}: {self._notes[n]}" for n in best if scores[n] > 0]
        if not notes:
            return f"None of the {len(words)} notes holds a word of the query."
        return "\n".join(notes)
