"""Cleans text that programs wrote for a terminal, so that it can be shown anywhere without harm.

Escape sequences are removed. Carriage returns and backspaces overwrite text as on a terminal, so only the
last state of a progress bar remains. Other control characters, characters without width, and characters that
change the direction of text are replaced by their names. The time is linear in the text's length.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_ESCAPES = re.compile(
    r"(?P<erase>\x1b\[[0-2]?K)"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # CSI: colours, cursor
    r"|(?:\x1b\]|\x9d)[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"  # OSC: titles, links, clipboard
    r"|(?:\x1b[PX^_]|[\x90\x98\x9e\x9f])[^\x1b\x9c\n]*(?:\x1b\\|\x9c)?"  # DCS, SOS, PM, APC
    r"|\x1b[ -/]*[0-~]?"
)
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff"
    "\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"
)
_ALIKE = 8
"""If at least this number of the first characters of two texts is equal, `differing` leaves out their common
beginning."""
_MOVES = re.compile("[\r\b]|\x1b\\[[0-2]?K")
_NAMES = {
    "\u202e": "<RLO>",
    "\u200b": "<ZWSP>",
    "\ufeff": "<BOM>",
    "\x00": "<NUL>",
    "\x07": "<BEL>",
}


def clean(text: str) -> str:
    """Returns the text as a terminal without colours would show it. Line breaks are kept; names replace
    invisible characters."""
    if "\r" in text or "\b" in text:
        text = "\n".join(map(_overwritten, text.replace("\r\n", "\n").split("\n")))
    if "\x1b" in text or _HIDDEN.search(text):
        text = _HIDDEN.sub(_named, _ESCAPES.sub("", text))
    return text


def one_line(text: str, width: int) -> str:
    """Returns the text as a terminal without colours would show it, but as one line of at most `width`
    characters. Each sequence of white space becomes one space; a text that is too long ends with `…`."""
    text = " ".join(clean(text[: 8 * width]).split())
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def preview(text: str, width: int) -> str:
    """Returns the text as a terminal without colours would show it, but as one line of at most `width`
    characters, in which ` ⏎ ` separates the text's lines (blank ones are left out). A text that is too long
    ends with `…`."""
    lines = (" ".join(line.split()) for line in clean(text[: 8 * width]).split("\n"))
    text = " ⏎ ".join(line for line in lines if line)
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def differing(texts: Sequence[str]) -> list[str]:
    """Shortens texts that are shown side by side, so that their differences are visible. Returns them in the
    same order.

    Texts whose first `_ALIKE` characters are equal belong together. In these, `…` replaces their common
    beginning, up to its last space.
    """
    short = []
    for text in texts:
        alike = {other for other in texts if other[:_ALIKE] == text[:_ALIKE]}
        pairs = enumerate(zip(min(alike), max(alike), strict=False))
        shared = next((at for at, (one, other) in pairs if one != other), len(min(alike)))
        start = text.rfind(" ", 0, shared) + 1 if len(alike) > 1 else 0
        short.append(f"…{text[start:]}" if start >= _ALIKE // 2 and text[start:] else text)
    return short


def cut(text: str, limit: int) -> tuple[str, int]:
    """Shortens a text that has more than `limit` characters: a note about the number of removed characters
    replaces the middle. Returns the text, and this number (0 if the text was not shortened)."""
    if len(text) <= limit:
        return text, 0
    head, tail = limit * 2 // 3, limit // 3
    gone = len(text) - head - tail
    return f"{text[:head]}\n[… {gone} characters left out …]\n{text[-tail:]}", gone


def clean_cut(text: str, limit: int) -> str:
    """Returns the text as a terminal without colours would show it. If it has more than about `limit`
    characters, the middle is replaced by a note about the number of removed characters.

    To save time, only the beginning and the end of a very long text are cleaned.
    """
    if len(text) <= 8 * limit:
        return cut(clean(text), limit)[0]
    head = clean(text[: 2 * limit])[: limit * 2 // 3]
    tail = clean(text[-2 * limit :])[-(limit // 3) :]
    gone = len(text) - len(head) - len(tail)
    return f"{head}\n[… {gone} characters left out …]\n{tail}"


def _named(match: re.Match[str]) -> str:
    return _NAMES.get(match[0], f"<U+{ord(match[0]):04X}>")


def _overwritten(line: str) -> str:
    """Returns what a terminal shows after it has printed `line`. Carriage returns, backspaces and erase
    sequences in `line` overwrite or remove earlier characters."""
    if not _MOVES.search(line):
        return line
    cells: list[str] = []
    at = start = 0
    line = _ESCAPES.sub(lambda match: match[0] if match["erase"] else "", line)
    for move in [*_MOVES.finditer(line), None]:
        part = line[start : move.start() if move else len(line)]
        cells[at : at + len(part)] = part
        at += len(part)
        if move is None:
            break
        start = move.end()
        if move[0] == "\r":
            at = 0
        elif move[0] == "\b":
            at = max(0, at - 1)
        elif move[0][2:-1] in ("", "0"):
            del cells[at:]
        else:  # erases the line; the cursor goes to its start: padding would cost quadratic time
            cells.clear()
            at = 0
    return "".join(cells).rstrip(" ")
