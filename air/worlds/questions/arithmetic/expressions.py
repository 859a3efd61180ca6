"""Expression trees of arithmetic operations on positive integers. A generated word problem has such a tree;
its value is the problem's answer."""

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
    """Raised if an operation in an expression has a result that is not a positive integer."""


@dataclass(frozen=True)
class Operation:
    """An inner node of an expression tree: an operation on the values of the expressions `left` and
    `right`."""

    sign: str
    """The operator: one of `+ - * /`."""
    left: Expression
    right: Expression

    def __str__(self) -> str:
        return f"({self.left} {self.sign} {self.right})"


Expression = int | Operation


@dataclass(frozen=True)
class Line:
    """One line of a worked solution, written as `3 * 4 = <<3*4=12>>12`: an operator, its two operands as
    numbers, and the result `value`."""

    left: int
    sign: str
    right: int
    value: int

    def __str__(self) -> str:
        bare = f"{self.left}{self.sign}{self.right}"
        return f"{self.left} {self.sign} {self.right} = <<{bare}={self.value}>>{self.value}"


def read(formula: str, numbers: Mapping[str, int]) -> Expression:
    """Returns the expression tree of a formula such as `a*(b-2)`. `numbers` gives the value of each
    variable."""
    return _filled(_parsed(formula), numbers)


def solve(expression: Expression) -> tuple[int, list[Line]]:
    """Returns the value of an expression and the lines of its worked solution, innermost operation first.
    Raises NotWhole if the result of any operation is not a positive integer."""
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
