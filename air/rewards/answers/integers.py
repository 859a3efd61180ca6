"""Reads the number that an answer gives: its last integer.

- Digits of every script count (`٤٢` is 42). A superscript is no digit.
- Thousands separators count if each is followed by exactly three digits: `1,234`, `1 234` with a narrow or
  unbreakable space, `1'234`, `1_234`.
- A minus directly before the number (or before its currency sign) makes it negative, unless the minus can be
  a subtraction because a letter, a digit or a bracket is before it: the last integer of `10-5` is 5.
- `42.` at the end of a sentence and `42.0` are 42. If the last number is a decimal, no integer (such as
  42.5) or has an exponent, the answer gives no integer: none of its digits is read as another number.

Everything takes time in proportion to the length. Digits are compared as text, because Python refuses to
convert very long ones and needs quadratic time for long ones.
"""

from __future__ import annotations

import re
import unicodedata
from collections import deque

_NUMBER = re.compile(
    r"""(?P<whole>[0-9]{1,3}(?:[,_'\u00a0\u2009\u202f][0-9]{3})+(?![0-9])|[0-9]+)
        (?:\.(?P<fraction>[0-9]+))?
        (?P<exponent>[eE][+-]?[0-9]+)?""",
    re.VERBOSE,
)
_MINUS = str.maketrans(dict.fromkeys("\u2212\u2013\uff0d\ufe63", "-"))
"""Other characters for a minus: the mathematical one, the dash, the wide and the small one."""
_SEPARATORS = str.maketrans("", "", ",_'\u00a0\u2009\u202f")
_CURRENCY = "$€£¥"
_LINE = re.compile(r"####[^\S\n]*(?P<answer>\S+)[^\S\n]*\Z")


def last_integer(text: str) -> str | None:
    """Returns the last number of `text` in canonical form (`-1234`), or None if there is none or it is no
    integer."""
    if not text.isascii():
        text = "".join(map(_ascii_digit, text.translate(_MINUS)))
    match = next(iter(deque(_NUMBER.finditer(text), maxlen=1)), None)
    if match is None or match["exponent"] or (match["fraction"] or "").strip("0"):
        return None
    return canonical(
        match["whole"].translate(_SEPARATORS), negative=_is_negative(text, match.start())
    )


def canonical(digits: str, *, negative: bool = False) -> str:
    """Returns ASCII digits without leading zeros, with a minus if `negative`; zero has no minus."""
    digits = digits.lstrip("0") or "0"
    return f"-{digits}" if negative and digits != "0" else digits


def final_answer(solution: str) -> str | None:
    """Returns the integer of the last line of a GSM8K solution, `#### 42`, or None if there is none."""
    line = _LINE.search(solution.rstrip())
    if line is None or not re.fullmatch(r"\$?-?\$?[0-9][0-9,]*(?:\.0*)?", line["answer"]):
        return None
    return last_integer(line["answer"])


def _is_negative(text: str, start: int) -> bool:
    """Tells whether a minus sign belongs to the number that begins at `start`."""
    if start and text[start - 1] in _CURRENCY:
        start -= 1
    if not start or text[start - 1] != "-":
        return False
    before = text[start - 2] if start > 1 else " "
    return not (before.isalnum() or before in ")]}-.%")


def _ascii_digit(character: str) -> str:
    if character.isascii() or not character.isdecimal():
        return character
    return str(unicodedata.decimal(character))
