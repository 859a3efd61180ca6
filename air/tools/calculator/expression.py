"""Parses and evaluates arithmetic expressions. The parser does not use `eval`; the length and the nesting
depth of an expression are limited.

`^` is exponentiation, like `**`. `%` after an operand is a percentage (`50%` is 0.5), and between two
operands the remainder (`7 % 3`). Decimal digits of all scripts and the signs × · ÷ − are accepted.
Precedence from lowest to highest: `+ -`, then `* / // %`, then the sign of a number, then exponentiation
(right to left), then `!` and percentages.
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction

from air.tools.calculator.functions import (
    CONSTANTS,
    FUNCTIONS,
    Fault,
    Number,
    bounded,
    factorial,
    power,
)

MOST_CHARACTERS = 2000
MOST_DEPTH = 50
"""The maximum nesting depth of parentheses, signs and exponents."""
_LARGEST_EXPONENT = 1000
_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
    r"|(?P<name>(?:math\.)?[A-Za-zπ][A-Za-z0-9_]*)|(?P<sign>\*\*|//|[-+*/%^!(),]))"
)
_SIGNS = str.maketrans({"×": "*", "·": "*", "⋅": "*", "∗": "*", "÷": "/", "∕": "/", "−": "-"})
_SIGNS |= str.maketrans(
    {"–": "-", "－": "-", "＋": "+", "（": "(", "）": ")", "［": "(", "］": ")"}
)

__all__ = ["MOST_CHARACTERS", "MOST_DEPTH", "Fault", "evaluate"]


def evaluate(text: str) -> Number:
    """Returns the value of an expression. Raises Fault, with a message for the model, if the expression is
    malformed or its value is not a real number."""
    if len(text) > MOST_CHARACTERS:
        raise Fault(f"The expression is longer than {MOST_CHARACTERS} characters.")
    try:
        return _Parser(_tokens(text)).whole()
    except ZeroDivisionError:
        raise Fault("Division by zero.") from None
    except OverflowError:
        raise Fault("A number is too large.") from None
    except ValueError:
        raise Fault("A function has no real value at its argument.") from None


def _tokens(text: str) -> list[tuple[str, str]]:
    """Returns the tokens of an expression. Each token is a pair of its type (`number`, `name` or `sign`) and
    its text; the last token has the type `end`. Raises Fault for a character that cannot be part of a
    token."""
    plain = "".join(map(_plain, text.translate(_SIGNS))).strip().removesuffix("=").rstrip()
    tokens, position = [], 0
    while position < len(plain):
        match = _TOKEN.match(plain, position)
        if match is None:
            raise Fault(f"{plain[position:].lstrip()[:1]!r} has no meaning in an expression.")
        tokens.append((str(match.lastgroup), match[str(match.lastgroup)]))
        position = match.end()
    return [*tokens, ("end", "")]


def _plain(character: str) -> str:
    if character.isascii() or not character.isdecimal():
        return character
    return str(unicodedata.decimal(character))


class _Parser:
    """A recursive-descent parser that evaluates the expression while it reads the tokens."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens = tokens
        self._position = 0
        self._depth = 0

    def whole(self) -> Number:
        if len(self._tokens) == 1:
            raise Fault("The expression is empty.")
        value = self._sum()
        kind, text = self._tokens[self._position]
        if kind == "end":
            return value
        if text == ",":
            raise Fault("A comma separates arguments of a function. Write numbers without commas.")
        if text == ")":
            raise Fault("A closing parenthesis has no opening one.")
        raise Fault(f"{text[:20]!r} follows a value: an operator such as * is missing before it.")

    def _next(self, *signs: str) -> str:
        """Consumes and returns the next token if it is one of `signs`; otherwise consumes nothing and returns
        an empty string."""
        kind, text = self._tokens[self._position]
        if kind == "sign" and text in signs:
            self._position += 1
            return text
        return ""

    def _sum(self) -> Number:
        value = self._product()
        while sign := self._next("+", "-"):
            right = self._product()
            value = bounded(value + right if sign == "+" else value - right)
        return value

    def _product(self) -> Number:
        value = self._signed()
        while sign := self._next("*", "/", "//", "%"):
            right = self._signed()
            value = bounded(_multiplied(value, sign, right))
        return value

    def _signed(self) -> Number:
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise Fault(f"The expression is nested deeper than {MOST_DEPTH}.")
        sign = self._next("+", "-")
        value = self._signed() if sign else self._power()
        self._depth -= 1
        return -value if sign == "-" else value

    def _power(self) -> Number:
        base = self._postfix()
        if not self._next("**", "^"):
            return base
        return bounded(power(base, self._signed()))

    def _postfix(self) -> Number:
        value = self._operand()
        while True:
            if self._next("!"):
                value = bounded(factorial(value))
                if self._tokens[self._position] == ("sign", "!"):
                    raise Fault("!! is unclear: write parentheses.")
            elif self._is_percent():
                self._position += 1
                value = value / 100
            else:
                return value

    def _is_percent(self) -> bool:
        if self._tokens[self._position] != ("sign", "%"):
            return False
        kind, text = self._tokens[self._position + 1]
        if text in ("+", "-"):
            raise Fault("% before a sign is unclear: write mod(a, b), or a / 100.")
        return kind == "end" or (kind == "sign" and text != "(")

    def _operand(self) -> Number:
        kind, text = self._tokens[self._position]
        self._position += 1
        if kind == "number":
            return _number(text)
        if kind == "name":
            return self._named(text)
        if text == "(":
            value = self._sum()
            self._close()
            return value
        raise Fault(
            "A value is missing at the end."
            if kind == "end"
            else f"A value is missing before {text!r}."
        )

    def _named(self, name: str) -> Number:
        name = name.removeprefix("math.").lower()
        if not self._next("("):
            if name in CONSTANTS:
                return CONSTANTS[name]
            known = "takes its arguments in parentheses" if name in FUNCTIONS else "is unknown"
            raise Fault(f"{name[:40]!r} {known}.")
        if name not in FUNCTIONS:
            raise Fault(f"There is no function {name[:40]!r}. Known: {', '.join(FUNCTIONS)}.")
        values = [self._sum()]
        while self._next(","):
            values.append(self._sum())
        self._close()
        function = FUNCTIONS[name]
        if not function.least <= len(values) <= function.most:
            raise Fault(f"{name} does not take {len(values)} arguments.")
        return bounded(function.call(*values))

    def _close(self) -> None:
        if not self._next(")"):
            raise Fault("A parenthesis is not closed.")


def _number(text: str) -> Fraction:
    _, _, exponent = text.lower().partition("e")
    if exponent and abs(int(exponent)) > _LARGEST_EXPONENT:
        raise Fault("A number is too large or too small.")
    value = bounded(Fraction(text if not text.endswith(".") else text + "0"))
    assert isinstance(value, Fraction)
    return value


def _multiplied(left: Number, sign: str, right: Number) -> Number | int:
    if sign == "*":
        return left * right
    if sign == "/":
        return left / right
    return left // right if sign == "//" else left % right
