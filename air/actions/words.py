"""Splits a line into words as a shell does. The running time is linear in the length of the line; that of
`shlex.split` is quadratic."""

from __future__ import annotations

import re

_PIECE = re.compile(
    r"""(?P<space>[ \t\r\n]+)"""
    r"""|(?P<plain>[^ \t\r\n'"\\]+)"""
    r"""|'(?P<single>[^']*)'"""
    r'''|"(?P<double>[^"\\]*+(?:\\.[^"\\]*+)*+)"'''
    r"""|\\(?P<escaped>.)""",
    re.DOTALL,
)
_ESCAPE = re.compile(r'\\(["\\])')


def split(text: str) -> list[str]:
    """Splits `text` into words as a shell does, and removes quotes: `open "my file" 3` gives three words.
    Raises ValueError if a quote is not closed, or if the text ends with a backslash."""
    words: list[str] = []
    pieces: list[str] | None = None  # the pieces of the current word; None between two words
    at = 0
    while at < len(text):
        match = _PIECE.match(text, at)
        if match is None:
            raise ValueError("No escaped character" if text[at] == "\\" else "No closing quotation")
        kind, at = match.lastgroup, match.end()
        if kind == "space":
            words += [] if pieces is None else ["".join(pieces)]
            pieces = None
            continue
        piece = match[str(kind)]
        pieces = [] if pieces is None else pieces
        pieces.append(_ESCAPE.sub(r"\1", piece) if kind == "double" else piece)
    return words if pieces is None else [*words, "".join(pieces)]
