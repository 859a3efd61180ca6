"""The tool `calculator`: arithmetic with exact rational numbers."""

from __future__ import annotations

from air.tools.base import ToolError, tool
from air.tools.calculator.expression import Fault, evaluate
from air.tools.calculator.functions import written


@tool(seconds=10.0)
def calculator(expression: str) -> str:
    """Evaluates an arithmetic expression: + - * / // % ** (or ^) ! and parentheses, numbers such as 1.5e3,
    pi, e, and functions such as sqrt(x), log(x, base), round(x, digits), min, max, gcd, comb, sin (in
    radians).

    Args:
        expression: the expression, such as (3 + 4) * 2 / 7
    """
    try:
        return written(evaluate(expression))
    except Fault as error:
        raise ToolError(str(error)) from None


__all__ = ["calculator"]
