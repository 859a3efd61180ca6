"""The calculator: exact results, one sentence for each fault, and bounds that hold for any expression."""

from __future__ import annotations

import ast
import contextlib
import time
from importlib.resources import files

import pytest

from air.tools import ToolError
from air.tools.calculator import calculator
from air.tools.calculator.expression import MOST_CHARACTERS


def value(expression: str) -> str:
    result: str = calculator.function(expression)
    return result


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("0.1 + 0.2", "0.3"),
        ("(3 + 4) * 2 / 7", "2"),
        ("2^10", "1024"),
        ("-2**2", "-4"),
        ("2**-3**2", "0.001953125"),
        ("-7 // 2", "-4"),
        ("50% * 200", "100"),
        ("7 % 3", "1"),
        ("5!%", "1.2"),
        ("200! / 198!", "39800"),
        ("3×4÷2−1", "5"),
        ("٤٢ + 1", "43"),
        ("2 + 2 =", "4"),
        ("1/3", "0.333333333333"),
        ("22/7", "3.14285714286"),
        ("10**30/7", "1.42857142857e+29"),
        ("1/3**800", "2.00907534575e-382"),
        ("sqrt(2) * sqrt(2)", "2"),
        ("sqrt(10**200)", "1" + "0" * 100),
        ("4**0.5", "2"),
        ("2**0.5", "1.41421356237"),
        ("log(100, 10)", "2"),
        ("log10(10**400)", "400"),
        ("round(2.5)", "3"),
        ("round(-2.345, 2)", "-2.35"),
        ("math.floor(7/2)", "3"),
        ("comb(52, 5)", "2598960"),
        ("gcd(12, 18) + lcm(4, 6, 10)", "66"),
        ("mean(1, 2, 4.5)", "2.5"),
        ("max(1.5, sin(1))", "1.5"),
        ("0**0", "1"),
        ("(-1)**(10**300)", "1"),
        ("(-1)**(10**300 + 1)", "-1"),
    ],
)
def test_results(expression: str, expected: str) -> None:
    assert value(expression) == expected


@pytest.mark.parametrize(
    ("expression", "part"),
    [
        ("", "empty"),
        ("=", "empty"),
        ("1/0", "Division by zero"),
        ("0**-1", "Division by zero"),
        ("5 % 0", "Division by zero"),
        ("(1 + 2", "not closed"),
        ("1 + 2)", "no opening"),
        ("1,000 + 2", "without commas"),
        ("2(3)", "operator"),
        ("5²", "no meaning"),
        ("5 % -3", "unclear"),
        ("3!!", "unclear"),
        ("x + 1", "'x' is unknown"),
        ("nan", "unknown"),
        ("inf * 0", "unknown"),
        ("sin", "parentheses"),
        ("eval(1)", "no function 'eval'"),
        ("__import__('os')", "no meaning"),
        ("min()", "missing"),
        ("round(1, 2, 3)", "3 arguments"),
        ("sqrt(-1)", "not a real number"),
        ("(-8)**(1/3)", "not a real number"),
        ("asin(2)", "no real value"),
        ("log(0)", "positive"),
        ("log(2, 1)", "Division by zero"),
        ("factorial(2.5)", "whole"),
        ("factorial(-1)", "negative"),
        ("1e999999999", "too large"),
    ],
)
def test_faults_are_told(expression: str, part: str) -> None:
    with pytest.raises(ToolError) as raised:
        value(expression)
    assert part in str(raised.value)


@pytest.mark.parametrize(
    "expression",
    [
        "9**9**9",
        "2**4001",
        "0.5**(10**20)",
        "1000!",
        "factorial(10**300)",
        "comb(10**300, 5*10**299)",
        "comb(10**9, 4000)",
        "perm(10**9, 10**9)",
        "perm(10**300, 3999)",
        "lcm(" + ",".join(f"10**300+{n}" for n in range(90)) + ")",
        "(" * 1900,
        "-" * 1900 + "1",
        "2**" * 600 + "2",
        "1" + "!" * 1900,
        "1" + "%" * 1900,
        "9" * MOST_CHARACTERS,
        "sqrt(" * 300 + "2" + ")" * 300,
        "max(" + "1," * 900 + "1)",
        "2**3900*" * 200 + "1",
        "1+" * MOST_CHARACTERS,
        "+".join(f"1/(10**300+{n})" for n in range(100)),
        "round(1/3, 10**300)",
    ],
)
def test_no_expression_takes_long(expression: str) -> None:
    """The slowest takes 12 milliseconds."""
    begin = time.thread_time()
    with contextlib.suppress(ToolError):
        value(expression)
    assert time.thread_time() - begin < 0.5


def test_no_result_is_longer_than_an_observation() -> None:
    assert len(value("2**3999")) == 1204
    assert len(value("2**3999")) < calculator.max_length


def test_no_text_of_the_model_is_executed() -> None:
    """The calculator has a parser of its own: its files name nothing that executes or compiles text."""
    folder = files("air.tools.calculator")
    sources = [one.read_text("utf-8") for one in folder.iterdir() if one.name.endswith(".py")]
    nodes = [node for source in sources for node in ast.walk(ast.parse(source))]
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    assert len(sources) == 3
    assert "Fraction" in names
    assert not names & {"eval", "exec", "compile", "__import__"}
