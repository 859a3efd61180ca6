"""Trees of arithmetic operations on whole numbers: how the answers of generated problems are computed."""

from __future__ import annotations

import ast
import functools
from collections.abc import Mapping
from dataclasses import dataclass

_SIGNS: Mapping[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
}


class NotWhole(Exception):
    """Exception for an expression with a result, even of an inner operation, that is no positive integer."""


@dataclass(frozen=True)
class Operation:
    """An operation on the values of two expressions."""

    sign: str
    """One of `+ - * /`."""
    left: Expression
    right: Expression

    def __str__(self) -> str:
        return f"({self.left} {self.sign} {self.right})"


Expression = int | Operation


@dataclass(frozen=True)
class Line:
    """One line of a solution: an operation with its operands' values and its own."""

    left: int
    sign: str
    right: int
    value: int

    def __str__(self) -> str:
        bare = f"{self.left}{self.sign}{self.right}"
        return f"{self.left} {self.sign} {self.right} = <<{bare}={self.value}>>{self.value}"


def read(formula: str, numbers: Mapping[str, int]) -> Expression:
    """Returns the tree of a formula such as `a*(b-2)` in which `numbers` gives the values of the names."""
    return _filled(_parsed(formula), numbers)


def solve(expression: Expression) -> tuple[int, list[Line]]:
    """Returns the value of an expression and the lines of its solution, innermost operation first.
    Raises NotWhole unless every result is a positive integer."""
    if isinstance(expression, int):
        return expression, []
    left, before = solve(expression.left)
    right, after = solve(expression.right)
    value = _value(expression.sign, left, right)
    return value, [*before, *after, Line(left, expression.sign, right, value)]


def _value(sign: str, left: int, right: int) -> int:
    if sign == "/":
        value, rest = divmod(left, right)
    else:
        rest = 0
        value = left + right if sign == "+" else left - right if sign == "-" else left * right
    if rest or value <= 0:
        raise NotWhole(f"{left} {sign} {right}")
    return value


@functools.cache
def _parsed(formula: str) -> ast.expr:
    return ast.parse(formula, mode="eval").body


def _filled(node: ast.expr, numbers: Mapping[str, int]) -> Expression:
    if isinstance(node, ast.BinOp):
        left, right = _filled(node.left, numbers), _filled(node.right, numbers)
        return Operation(_SIGNS[type(node.op)], left, right)
    if isinstance(node, ast.Name):
        return numbers[node.id]
    assert isinstance(node, ast.Constant)
    assert isinstance(node.value, int)
    return node.value
