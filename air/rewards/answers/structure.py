"""Splits a mathematical answer into its parts: the elements of a set, tuple, interval, list or union.

The parts of a set, a union or a bare list (`1, 2`, `1 or 2`, `2 \\pm 1`) are unordered; those of a tuple or
interval in brackets are ordered. A bare list equals a set with the same parts. Answers of different kinds
are never equal: the tuple `(1, 2)` is not the set of 1 and 2, and the open interval `(1, 2)` is not the
closed one `[1, 2]`. The same holds for parts that have parts themselves. Braces without backslashes around an
answer are left out, so `{1, 2}` is the set of 1 and 2.

In a bare list, commas may also separate thousands: `1,234, 5` has the parts 1234 and 5. Inside brackets,
every comma separates two parts.
"""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass

_NAME = r"[A-Za-z](?:_(?:\{\w{1,8}\}|\w))?(?:\s*\(\s*[A-Za-z]\s*\))?"
_ASSIGNMENT = re.compile(rf"(?P<name>{_NAME})\s*(?:=|\\in(?![a-zA-Z]))\s*(?P<value>[^=]+)")
_BETWEEN = re.compile(
    r"\s*,?\s*(?<![A-Za-z\\])(?:\\text\{\s*(?:and|or)\s*\}|and|or)(?![A-Za-z])\s*"
)
_THOUSANDS = re.compile(
    r"""(?:\A|,\s+|=|\\pm(?![A-Za-z]))\s*[-+]?\s*\$?\s*  # where a part of a list begins
    (?P<number>[1-9][0-9]{0,2}(?:,[0-9]{3})+)(?![0-9]|,(?!\s))""",
    re.VERBOSE,
)
_PLUS_MINUS = re.compile(r"\\pm(?![A-Za-z])\s*")
_BEGINS_TERM = re.compile(r"(?:\A|[-+*/^=,;:(\[{<>]|\\(?:cdot|times|div|frac|sqrt))\s*\Z")
_MOST_BRACES = 20
_OPEN, _CLOSE = "([{", ")]}"
_SIGNS = "signs"
"""What `_split` returns as the kind of one expression with `\\pm`."""


@dataclass(frozen=True)
class Parts:
    """A mathematical answer, split into parts, such as the elements of a set or the coordinates of a
    tuple."""

    kind: str
    """`one` for an answer with a single part, `set`, `union`, or the two brackets of an ordered tuple or
    interval, such as `[)`."""
    parts: tuple[str, ...]
    name: str = ""
    """The variable before an equals sign, such as `x` in `x = 1`, which the parts do not contain; empty if
    there is none."""
    has_both_signs: bool = False
    """Whether the parts are the two values of one expression with `\\pm`."""


def split(text: str) -> Parts:
    """Splits a mathematical answer into its parts, and returns them with the kind of the answer: `(1, 2)` is
    of the kind `()` and has the parts `1` and `2`. `text` must be in the normalised notation that
    `notation.normal` returns."""
    match = _ASSIGNMENT.fullmatch(text)
    name, value = (match["name"].replace(" ", ""), match["value"]) if match else ("", text)
    kind, parts = _split(value.strip())
    stripped = tuple(part.strip() for part in parts)
    return Parts("set", stripped, name, True) if kind == _SIGNS else Parts(kind, stripped, name)


def _split(text: str) -> tuple[str, list[str]]:
    text = _without_braces(text)
    if text.startswith(r"\{") and text.endswith(r"\}") and _closes(text, 1) == len(text) - 1:
        return "set", _with_both_signs(_pieces(text[2:-2], ",")) if text[2:-2].strip() else []
    if text in (r"\emptyset", r"\{\}"):
        return "set", []
    union = _pieces(text, r"\cup")
    if len(union) > 1:
        return "union", union
    if text[:1] in tuple("([") and text[-1:] in tuple(")]") and _closes(text, 0) == len(text) - 1:
        inner = _pieces(text[1:-1], ",")
        if len(inner) > 1:
            return text[0] + text[-1], inner
    listed = _listed(text)
    if len(listed) > 1:
        return "set", _with_both_signs(_without_names(listed))
    signed = _both_signs(text)
    return (_SIGNS, signed) if len(signed) > 1 else ("one", [text])


def _without_braces(text: str) -> str:
    """Removes braces without backslashes around the whole of `text`, up to `_MOST_BRACES` pairs."""
    for _ in range(_MOST_BRACES):
        is_whole = text.startswith("{") and text.endswith("}") and _closes(text, 0) == len(text) - 1
        if not is_whole or text.endswith(r"\}"):
            break
        text = text[1:-1].strip()
    return text


def _listed(text: str) -> list[str]:
    """Splits a bare list at its commas, `and` and `or`, and returns the pieces. Commas between the thousands
    of a number do not separate pieces: `1,234, 5` has the pieces `1,234` and ` 5`. After such a number, a
    comma needs a space, so `1,234,5` has three pieces."""
    text = _BETWEEN.sub(", ", text)
    numbers = [match.span("number") for match in _THOUSANDS.finditer(text)]
    return _pieces(text, ",", {index for span in numbers for index in range(*span)})


def _with_both_signs(parts: list[str]) -> list[str]:
    """Replaces each part with one `\\pm`: `\\pm 1` becomes the two parts `1` and `-1`, and `2 \\pm x` the
    parts `2 +x` and `2 -x`."""
    return [signed for part in map(str.strip, parts) for signed in _both_signs(part)]


def _both_signs(part: str) -> list[str]:
    signs = list(_PLUS_MINUS.finditer(part))
    if len(signs) != 1:
        return [part]
    before, after = part[: signs[0].start()], part[signs[0].end() :]
    plus = "" if _BEGINS_TERM.search(before) else "+"
    return [f"{before}{plus}{after}", f"{before}-{after}"]


def _without_names(listed: list[str]) -> list[str]:
    """Removes the variable before an equals sign from each part of a list: returns `1` and `2` for `x=1` and
    `x=2`, or for `x=1` and `2`. Returns the parts unchanged if the variables differ, or if only some of the
    parts after the first have a variable."""
    matches = [_ASSIGNMENT.fullmatch(part.strip()) for part in listed]
    names = {match["name"] for match in matches if match}
    if len(names) != 1 or (None in matches[1:] and any(matches[1:])):
        return listed
    return [match["value"] if match else part for match, part in zip(matches, listed, strict=True)]


def _pieces(text: str, separator: str, kept: Container[int] = ()) -> list[str]:
    """Splits `text` at each `separator` that is outside brackets and does not begin at one of the indices
    `kept`, and returns the pieces."""
    pieces, depth, start, position = [], 0, 0, 0
    while position < len(text):
        if depth == 0 and text.startswith(separator, position) and position not in kept:
            pieces.append(text[start:position])
            position += len(separator)
            start = position
            continue
        character = text[position]
        depth += (character in _OPEN) - (character in _CLOSE)
        position += 1
    return [*pieces, text[start:]]


def _closes(text: str, start: int) -> int:
    """Returns the index in `text` of the bracket that closes the bracket at the index `start`, or −1 if there
    is none. Any closing bracket matches any opening bracket, because an interval may open with `[` and close
    with `)`."""
    depth = 0
    for position in range(start, len(text)):
        depth += (text[position] in _OPEN) - (text[position] in _CLOSE)
        if depth == 0:
            return position
    return -1
