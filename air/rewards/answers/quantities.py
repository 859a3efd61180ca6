"""Parses plain numbers with units in mathematical answers, and compares them exactly.

- A number is an integer, a decimal, a fraction (`1/2`, `\\frac{1}{2}`), a mixed number (`3 1/2`), or a
  decimal with a power of ten (`1.5e3`, `1.5 \\cdot 10^{3}`). Commas separate thousands.
- A decimal with at least six significant digits equals every number that rounds to it. All other numbers
  must be equal exactly: 0.33 does not equal 1/3.
- Either answer may omit its unit. If both have a unit, the units must be equal. An unknown word is a unit
  only if it occurs in the question.
- A percentage equals the number before the percent sign, and a hundredth of that number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

_DIGITS = r"(?:[1-9][0-9]{0,2}(?:[,_'][0-9]{3})+(?![0-9])|[0-9]+)"
_DECIMAL = rf"(?:{_DIGITS}(?:\.[0-9]*)?|\.[0-9]+)"
_FRACTION = rf"\\frac\s*\{{\s*(?P<top>-?{_DIGITS})\s*\}}\s*\{{\s*(?P<bottom>{_DIGITS})\s*\}}"
_NUMBER = re.compile(
    rf"""(?P<sign>[+-]?)\s*(?:
        (?:(?P<whole>[0-9]+)\s*)?{_FRACTION}
      | (?:(?P<whole2>[0-9]+)\s+)?(?P<top2>{_DIGITS})\s*/\s*(?P<bottom2>{_DIGITS})
      | (?P<decimal>{_DECIMAL})
        (?:[eE](?P<exponent>[+-]?[0-9]{{1,4}})
          |\s*(?:\\cdot|\\times)\s*10\s*\^\s*\{{\s*(?P<power>[+-]?[0-9]{{1,4}})\s*\}})?
    )""",
    re.VERBOSE,
)
_INDEX = re.compile(r"[0-9]\)?\s*_")
_BASED = re.compile(
    r"""(?P<sign>[+-]?)\s*(?P<digits>(?=[A-Za-z]*[0-9])[0-9A-Za-z]+)\s*_
        \s*(?:\{\s*(?P<braced>[0-9]{1,2})\s*\}|(?P<single>[0-9]))""",
    re.VERBOSE,
)
_CURRENCIES = {"$": "dollar", "€": "euro", "£": "pound sterling", "¥": "yen"}
_UNIT = re.compile(
    r"(?P<text>\\text\{(?P<inner>[^{}]*)\}|[A-Za-z][A-Za-z ]*)(?:\^\{?(?P<power>[23])\}?)?\Z"
)
_SIGNIFICANT = 6
_UNITS = """
mm millimeter millimetre; cm centimeter centimetre; m meter metre; km kilometer kilometre; in inch inche;
ft foot feet; yd yard; mi mile; mg milligram; g gram; kg kilogram; lb pound; oz ounce; ml milliliter
millilitre; l liter litre; ms millisecond; s sec second; min minute; h hr hour; day; week; month; year;
dollar usd; cent; euro eur; yen; degree deg; radian rad; mph; kmh; newton; joule; watt; volt; hz hertz;
pascal; kelvin; mol; unit; way; digit; step; people person; student; piece; item; time
"""
_UNIT_NAMES = {alias: group.split()[0] for group in _UNITS.split(";") for alias in group.split()}
"""Maps each name of a known unit to the one name that stands for the unit in comparisons, such as `deg` to
`degree`."""
_WORDS_OF_NUMBERS = frozenset(
    re.findall(
        r"\w+",
        """
    half third quarter dozen score hundred thousand million billion trillion percent squared
    cubed and or not to minus plus negative times over less more least most than about no none
    point
    """,
    )
)
"""Words that are never units, even if they occur in the question, because they change the value of a
number."""


@dataclass(frozen=True)
class Quantity:
    """A plain number: its exact value, and the number of digits after the decimal point with which it was
    written."""

    value: Fraction
    decimals: int | None = None
    """The number of digits after the decimal point; None if the number was not written as a decimal."""

    @property
    def is_rounded(self) -> bool:
        """Whether this number counts as rounded, so that it equals every number that rounds to it: it was
        written as a decimal with at least six significant digits."""
        if not self.decimals:
            return False
        return len(
            str(abs(self.value.numerator) * 10**self.decimals // self.value.denominator)
        ) >= (_SIGNIFICANT)

    def is_near(self, other: Fraction) -> bool:
        """Returns whether `other` rounds to this number: they differ by at most half a unit of this number's
        last decimal."""
        half = Fraction(1, 2 * 10 ** (self.decimals or 0))
        return abs(self.value - other) <= half


def number(text: str) -> Quantity | None:
    """Parses a string that consists of one plain number: an integer, a decimal (also with a power of ten), a
    fraction or a mixed number. Returns None for any other string."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    sign = -1 if match["sign"] == "-" else 1
    if match["decimal"] is None:
        whole = match["whole"] or match["whole2"] or "0"
        top, bottom = (_integer(match[n] or match[f"{n}2"]) for n in ("top", "bottom"))
        if bottom == 0 or (whole != "0" and top < 0):
            return None
        return Quantity(sign * (_integer(whole) + Fraction(top, bottom)))
    digits, _, after = re.sub("[,_']", "", match["decimal"]).partition(".")
    value = Fraction(int(digits + after or "0"), 10 ** len(after))
    exponent = int(match["exponent"] or match["power"] or 0)
    decimals = max(0, len(after) - exponent) if after.strip("0") else None
    return Quantity(sign * value * Fraction(10) ** exponent, decimals)


def equal(gold: Quantity, prediction: Quantity) -> bool:
    """Returns whether two plain numbers are equal: they have the same value, or the number that was written
    with fewer decimals counts as rounded (`Quantity.is_rounded`) and the other number rounds to it."""
    if gold.value == prediction.value:
        return True
    shorter, other = sorted((gold, prediction), key=lambda q: _digits_after(q))
    return shorter.is_rounded and shorter.is_near(other.value)


def has_index(text: str) -> bool:
    """Returns whether a text has a number with an index, such as `101_2`. The index can be its base."""
    return _INDEX.search(text) is not None


def value_in_base(text: str) -> int | None:
    """Returns the value of a whole number with its base, such as 5 for `101_2`. Returns None if the text is
    no such number, the base is not from 2 to 36, or a digit is too large for it."""
    match = _BASED.fullmatch(text)
    base = int(match["braced"] or match["single"]) if match else 0
    if match is None or not 2 <= base <= 36:
        return None
    try:
        return int(match["sign"] + match["digits"], base)
    except ValueError:  # a digit is too large for the base
        return None


def without_unit(text: str, question: str = "") -> tuple[str, str]:
    """Splits an answer into the text without its unit, and the name of the unit, and returns both: `5` and
    `degree` for `5 deg`. The name is that of a known unit in `_UNIT_NAMES` (with `2` or `3` if squared or
    cubed), a currency, `%` for percent, or a word of `question`; it is empty if there is no unit. An unknown
    word is a unit only if it occurs in `question`."""
    for sign, name in _CURRENCIES.items():
        head = text.removeprefix("-").lstrip()
        if head.startswith(sign):
            minus = "-" if text.startswith("-") else ""
            return minus + head[len(sign) :].strip(), name
        if text.endswith(sign):
            return text[: -len(sign)].strip(), name
    if text.endswith("%"):
        return text[:-1].rstrip(), "%"
    match = _UNIT.search(text)
    if match is None or not match.start():
        return text, ""
    words = (match["inner"] if match["inner"] is not None else match["text"]).lower().strip(" .")
    before = text[: match.start()]
    if match["inner"] is None and len(words) < 3 and not before.endswith((" ", "\\")):
        return text, ""  # 2m is a product
    if before.endswith("\\"):
        return text, ""  # the name of a command of LaTeX
    if words in ("percent", "percentage"):
        return before.strip(), "%"
    unit = _unit(words, question)
    return (before.strip(), unit + (match["power"] or "")) if unit else (text, "")


def same_unit(gold: str, prediction: str) -> bool:
    """Returns whether the units of two answers are compatible: their names are equal, or at least one is
    empty (no unit)."""
    return not gold or not prediction or gold == prediction


def _unit(words: str, question: str) -> str:
    power = {"square": "2", "sq": "2", "cubic": "3"}.get(words.partition(" ")[0], "")
    name = words.partition(" ")[2] if power else words
    known = _UNIT_NAMES.get(name) or _UNIT_NAMES.get(name.removesuffix("s"))
    if known:
        return known + power
    parts = words.split()
    asked = set(re.findall(r"[a-z]{3,}", question.lower()))
    if not 1 <= len(parts) <= 3 or set(parts) & _WORDS_OF_NUMBERS or not set(parts) <= asked:
        return ""
    return words


def _digits_after(quantity: Quantity) -> float:
    return float("inf") if quantity.decimals is None else quantity.decimals


def _integer(text: str) -> int:
    return int(re.sub("[,_']", "", text))
