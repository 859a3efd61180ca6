"""Extracts the integer that an answer gives, which is the last number in its text.

- Decimal digits of all scripts are read (`٤٢` is 42), but superscripts are not.
- Thousands separators are accepted if exactly three digits follow each: `1,234`, `1 234` with a narrow or
  no-break space, `1'234`, `1_234`.
- A minus directly before the number (or before its currency sign) makes it negative, unless it can be a
  subtraction because a letter, a digit or a bracket precedes it: the last integer of `10-5` is 5.
- `42.` at the end of a sentence and `42.0` are 42. If the last number has another fraction (42.5) or an
  exponent, the answer gives no integer.
- Other numbers are not evaluated, and their last digits count: `.5` gives 5, `1/2` gives 2, and `10^3`
  gives 3. The reward of the project AgentFly, which has this rule, takes the last digits of a text, too. So
  use this only for questions whose answers are integers.

The running time is linear in the length of the text. Numbers stay strings of digits, because Python refuses
to convert very long ones to int and needs quadratic time for long ones.
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
"""Characters that are read as a minus: the mathematical minus, the en dash, and the wide and the small
hyphen."""
_SEPARATORS = str.maketrans("", "", ",_'\u00a0\u2009\u202f")
_CURRENCY = "$€£¥"
_LINE = re.compile(r"####[^\S\n]*(?P<answer>\S+)[^\S\n]*\Z")


def last_integer(text: str) -> str | None:
    """Returns the last number in `text` as a string in canonical form, such as `-1234` (ASCII digits without
    separators or leading zeros). Returns None if there is no number, or if the last number is not an
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
    """Returns an integer as a string in canonical form: the ASCII digits `digits` without leading zeros, with
    a minus if `negative` is true and the integer is not zero."""
    digits = digits.lstrip("0") or "0"
    return f"-{digits}" if negative and digits != "0" else digits


def final_answer(solution: str) -> str | None:
    """Returns the integer in the last line of `solution`, the reference solution of a question of the dataset
    GSM8K (`#### 42`), as a string in canonical form. Returns None if that line has no such integer."""
    line = _LINE.search(solution.rstrip())
    if line is None or not re.fullmatch(r"\$?-?\$?[0-9][0-9,]*(?:\.0*)?", line["answer"]):
        return None
    return last_integer(line["answer"])


def _is_negative(text: str, start: int) -> bool:
    """Returns whether a minus sign belongs to the number that begins at the index `start` of `text`. A minus
    that can be a subtraction does not."""
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
