"""The numbers and functions of the calculator. Numbers are exact fractions as long as possible, otherwise
floats. Their size is limited.

A function such as `sin` returns a float, and an operation with a float gives a float.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

Number = Fraction | float
MOST_BITS = 4000
"""The maximum size of a numerator or denominator, in bits: about 1,200 decimal digits. This limit keeps every
operation fast."""
_DIGITS = 12
"""The number of significant digits with which a result is printed if it has no short exact form."""
TOO_LARGE = "The result is too large or has too many digits."


class Fault(Exception):
    """Raised for an expression that is malformed or has no value. The model sees the exception's message."""


def bounded(value: Number | int) -> Number:
    """Returns `value`, with an int converted to a Fraction, if it can be a result of the calculator. Raises
    Fault if the number is too large, not finite, or not a real number."""
    if isinstance(value, complex):
        raise Fault("The result is not a real number.")
    if isinstance(value, float):
        if not math.isfinite(value):
            raise Fault(TOO_LARGE)
        return value
    value = Fraction(value)
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MOST_BITS:
        raise Fault(TOO_LARGE)
    return value


def power(base: Number, exponent: Number) -> Number:
    """Returns `base` to the power `exponent`. Raises Fault, before computing it, if an exact result would be
    too large. Also raises Fault if the result is not a real number, and ZeroDivisionError, OverflowError or
    ValueError if there is no finite result."""
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
        if not base and exponent < 0:
            raise ZeroDivisionError
        if base in (0, 1, -1):
            return base ** (2 - exponent.numerator % 2 if exponent else 0)
        size = max(base.numerator.bit_length(), base.denominator.bit_length()) - 1
        if size * abs(exponent) > MOST_BITS:
            raise Fault(TOO_LARGE)
        return base**exponent.numerator
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 2:
        root = exact_root(base)
        if root is not None:
            return power(root, Fraction(exponent.numerator))
    if base < 0 and float(exponent) != int(exponent):
        raise Fault("A root of a negative number is not a real number.")
    return math.pow(base, exponent)


def exact_root(value: Fraction) -> Fraction | None:
    """Returns the square root of a fraction if the root is itself a fraction, else None."""
    if value < 0:
        return None
    parts = (math.isqrt(value.numerator), math.isqrt(value.denominator))
    root = Fraction(*parts)
    return root if root * root == value else None


def written(value: Number) -> str:
    """Formats a number as text. A fraction that is an integer, or needs at most 15 decimals, is written
    exactly. Every other number is rounded to 12 significant digits."""
    if isinstance(value, float):
        return _of_float(value)
    if value.denominator == 1:
        return str(value.numerator)
    places = _decimals(value.denominator)
    if places is not None:
        digits = str(abs(value.numerator) * 10**places // value.denominator).rjust(places + 1, "0")
        sign = "-" if value < 0 else ""
        return f"{sign}{digits[:-places]}.{digits[-places:]}"
    context = decimal.Context(prec=_DIGITS)  # its exponents reach further than those of floats
    quotient = context.divide(Decimal(value.numerator), Decimal(value.denominator))
    return f"{quotient.normalize(context):g}"


def _decimals(denominator: int) -> int | None:
    """Returns the number of decimals (at least 1) with which a fraction in lowest terms that has this
    denominator can be written exactly: 3 for 8, because 1/8 is 0.125. Returns None if it needs more than
    15."""
    return next((places for places in range(1, 16) if 10**places % denominator == 0), None)


def _of_float(value: float) -> str:
    text = f"{value:.{_DIGITS}g}"
    return "0" if text == "-0" else text


def _whole(value: Number, name: str) -> int:
    if isinstance(value, float) and value.is_integer():
        value = Fraction(value)
    if not isinstance(value, Fraction) or value.denominator != 1:
        raise Fault(f"{name} takes whole numbers.")
    return value.numerator


def _factorial_bits(n: int) -> float:
    return math.lgamma(n + 1) / math.log(2)


def factorial(value: Number) -> int:
    """Returns the factorial of a number. Raises Fault if the number is not a non-negative integer or the
    result would be too large."""
    n = _whole(value, "factorial")
    if n < 0:
        raise Fault("factorial takes no negative numbers.")
    if n > MOST_BITS or _factorial_bits(n) > MOST_BITS:
        raise Fault(TOO_LARGE)
    return math.factorial(n)


def _choose(name: str, function: Callable[[int, int], int]) -> Callable[[Number, Number], int]:
    def chosen(first: Number, second: Number) -> int:
        n, k = _whole(first, name), _whole(second, name)
        if n < 0 or k < 0:
            raise Fault(f"{name} takes no negative numbers.")
        if k > n:
            return 0
        factors = min(k, n - k) if name == "comb" else k
        least_bits = factors * max(1, (n - factors).bit_length() - 1) - _factorial_bits(
            min(factors, MOST_BITS)
        )
        if factors > MOST_BITS or (name == "perm" and least_bits > MOST_BITS):
            raise Fault(TOO_LARGE)
        if name == "comb" and least_bits > MOST_BITS:
            raise Fault(TOO_LARGE)
        return function(n, k)

    return chosen


def _round(value: Number, digits: Number = Fraction(0)) -> Number:
    places = _whole(digits, "round")
    if abs(places) > 300:
        raise Fault("round takes at most 300 digits.")
    scaled = Fraction(value) * Fraction(10) ** places
    half_away = math.floor(abs(scaled) + Fraction(1, 2))
    return Fraction(half_away if scaled >= 0 else -half_away) / Fraction(10) ** places


def _sqrt(value: Number) -> Number:
    return power(value, Fraction(1, 2))


def _log(value: Number, base: Number | None = None) -> float:
    return _ln(value) if base is None else _ln(value) / _ln(base)


def _ln(value: Number) -> float:
    if value <= 0:
        raise Fault("A logarithm takes a positive number.")
    if isinstance(value, Fraction):  # a fraction may be outside of the range of floats
        return math.log(value.numerator) - math.log(value.denominator)
    return math.log(value)


def _log_of(base: int) -> Callable[[Number], Number]:
    exact = {2: math.log2, 10: math.log10}[base]

    def logarithm(value: Number) -> Number:
        if isinstance(value, Fraction) and value > 0 and value.denominator == 1:
            return exact(value.numerator)
        return _ln(value) / math.log(base)

    return logarithm


def _divided(function: Callable[[int, int], int], name: str) -> Callable[..., int]:
    return lambda *values: _folded(function, [_whole(value, name) for value in values])


def _folded(function: Callable[[int, int], int], values: list[int]) -> int:
    result = values[0]
    for value in values[1:]:
        result = function(result, value)
        bounded(result)
    return abs(result)


@dataclass(frozen=True)
class Function:
    """A function that expressions can call: the Python function `call`, with the minimum (`least`) and the
    maximum (`most`) number of its arguments."""

    call: Callable[..., Any]
    least: int = 1
    most: int = 1


_FLOATS = (
    *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh"),
    *("asinh", "acosh", "atanh", "exp", "degrees", "radians"),
)
_MANY = 100
FUNCTIONS: Mapping[str, Function] = {
    **{name: Function(getattr(math, name)) for name in _FLOATS},
    "abs": Function(abs),
    "floor": Function(math.floor),
    "ceil": Function(math.ceil),
    "trunc": Function(math.trunc),
    "round": Function(_round, 1, 2),
    "sqrt": Function(_sqrt),
    "cbrt": Function(math.cbrt),
    "pow": Function(power, 2, 2),
    "log": Function(_log, 1, 2),
    "ln": Function(_ln),
    "log2": Function(_log_of(2)),
    "log10": Function(_log_of(10)),
    "atan2": Function(math.atan2, 2, 2),
    "hypot": Function(math.hypot, 1, _MANY),
    "min": Function(lambda *values: min(values), 1, _MANY),
    "max": Function(lambda *values: max(values), 1, _MANY),
    "sum": Function(lambda *values: sum(values), 1, _MANY),
    "mean": Function(lambda *values: sum(values) / len(values), 1, _MANY),
    "mod": Function(lambda left, right: left % right, 2, 2),
    "gcd": Function(_divided(math.gcd, "gcd"), 1, _MANY),
    "lcm": Function(_divided(math.lcm, "lcm"), 1, _MANY),
    "factorial": Function(factorial),
    "comb": Function(_choose("comb", math.comb), 2, 2),
    "perm": Function(_choose("perm", math.perm), 2, 2),
}
CONSTANTS: Mapping[str, float] = {"pi": math.pi, "π": math.pi, "e": math.e, "tau": math.tau}
