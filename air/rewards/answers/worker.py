"""The worker program that compares mathematical expressions in a separate process. It does not import air.

Each line of standard input is a request, and each line of standard output its response, both as JSON. The
process forks for every request, so that requests cannot affect each other. The CPU time and the memory of the
fork are limited, because the evaluation of an expression may never end. Reaching a limit ends only the fork.

A request has `gold` and `prediction` (two trees of parts, see `Tree`), `gold_leaves` and `prediction_leaves`
(their expressions, each as LaTeX and the number of digits to which it was rounded, or null), `known` (for
each pair of expressions whether the two are equal, or null) and `seconds` (the limit of CPU time). The
response is `{"equal": …}`. A request with `expression` (LaTeX) in place of the two answers gets the response
`{"values": …}` (see `_values`). If the fork does not succeed, the response to both is `{"status": …,
"error": …}` with its exit status, and the error in this program, if there was one, as a line of text. Each
response also has `seconds`, the CPU time that the fork needed.
"""

from __future__ import annotations

import cmath
import json
import logging
import os
import resource
import signal
import sys
import traceback
import zlib
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

Tree: TypeAlias = int | tuple[str, Sequence["Tree"]]
"""A part of a mathematical answer. A part without parts of its own is the index of its expression. Another
part is a pair: its kind (such as `set`, or the two brackets of a tuple), and its own parts. The order of the
parts has no meaning if the last word of the kind is `set` or `union`."""

ADDRESS_BYTES = 2**31
_FAILED = 2
"""The exit status of a fork in which this program failed."""
_ERROR_CHARACTERS = 500
"""The largest number of characters of an error's message in a response."""
POINTS = 2
"""The number of points at which an expression with variables is evaluated."""
_DIGITS = 40
"""The number of decimal digits to which the values of two expressions are computed before they are
compared."""
_SAME = 25
"""The number of decimal digits in which the values of two expressions must agree, so that the expressions
count as equal."""


def main() -> None:
    """Compares answers: reads requests from standard input, one per line of JSON, and writes a line of JSON
    with the result of each to standard output. Returns at the end of the input."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C is for the parent, which ends this process
    logging.disable()
    problem = ""
    try:
        import math_verify  # noqa: F401  # so that every fork has it

        _same(("x + 1", None), ("1 + x", None))  # so that every fork has the parser's tables
    except Exception as error:  # of any kind, such as an incomplete installation
        problem = _described(error)
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(_failed(problem) if problem else _in_a_copy(json.loads(line)))
        sys.stdout.buffer.flush()


def _described(error: BaseException) -> str:
    """Returns the type and message of an error, and where it was raised, as one line of text."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    message = repr(str(error)[:_ERROR_CHARACTERS])  # on one line, without control characters
    return f"{type(error).__name__}: {message} ({place.filename}, line {place.lineno})"


def _failed(problem: str) -> bytes:
    """Returns the response to a request if this program has failed, as a line of JSON."""
    return json.dumps({"status": _FAILED, "error": problem, "seconds": 0.0}).encode() + b"\n"


def _in_a_copy(request: dict[str, Any]) -> bytes:
    """Handles a request in a fork of this process, and returns the response as a line of JSON."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = _FAILED
        try:
            os.close(reader)
            status = _child(request, writer)
        except BaseException as error:  # of any kind; `os._exit` prints no error
            os.write(writer, _described(error).encode("utf-8", "replace"))
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        reply = pipe.read()
    _, ended, usage = os.wait4(child, 0)
    status = os.waitstatus_to_exitcode(ended)
    failure = {"status": status, "error": reply.decode("utf-8", "replace")}
    response = failure if status else json.loads(reply)
    response["seconds"] = usage.ru_utime + usage.ru_stime
    return json.dumps(response).encode() + b"\n"


def _child(request: dict[str, Any], writer: int) -> int:
    """Handles a request in the fork of the worker process: writes the response to the file descriptor
    `writer`, and returns the exit status of the fork: 0, or 1 if the memory or the recursion depth did not
    suffice."""
    try:
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_BYTES, ADDRESS_BYTES))
        signal.setitimer(signal.ITIMER_PROF, request["seconds"])
        if "expression" in request:
            reply: dict[str, Any] = {"values": _values(request["expression"])}
        else:
            reply = {"equal": _all_same(request)}
        os.write(writer, json.dumps(reply).encode())
    except (MemoryError, RecursionError):
        return 1
    return 0


def _all_same(request: dict[str, Any]) -> bool:
    """Returns whether the gold (right) answer and the predicted answer of a request are equal."""
    known = request["known"]

    def same(row: int, column: int) -> bool:
        if known[row][column] is None:
            gold, prediction = request["gold_leaves"][row], request["prediction_leaves"][column]
            known[row][column] = _same_if_comparable(gold, prediction)
        return bool(known[row][column])

    return same_trees(request["gold"], request["prediction"], same)


def same_trees(gold: Tree, prediction: Tree, same: Callable[[int, int], bool]) -> bool:
    """Returns whether a part of the gold (right) answer and a part of the prediction are equal: both are
    expressions, and `same(row, column)` says of their indices that they are equal; or both are collections of
    one kind, and their parts can be paired so that the two of each pair are equal. If the parts are ordered,
    only parts with the same position are paired."""
    if isinstance(gold, int) or isinstance(prediction, int):
        return isinstance(gold, int) and isinstance(prediction, int) and same(gold, prediction)
    (kind, parts), (other_kind, others) = gold, prediction
    if kind != other_kind or len(parts) != len(others):
        return False

    def same_parts(row: int, column: int) -> bool:
        return same_trees(parts[row], others[column], same)

    if kind.split()[-1] in ("set", "union"):
        return can_be_paired(len(parts), same_parts)
    return all(same_parts(index, index) for index in range(len(parts)))


def can_be_paired(count: int, same: Callable[[int, int], bool]) -> bool:
    """Returns whether `count` gold parts and `count` predicted parts can be paired so that the two of each
    pair are equal. `same(row, column)` says whether gold part `row` equals predicted part `column`. A part
    may equal several that differ from each other, as 50% equals 50 and 0.5. So if all parts that a gold part
    equals are taken, the gold parts that took them are moved to other parts where possible (a bipartite
    matching by augmenting paths)."""
    partners: dict[int, int] = {}

    def finds_partner(row: int, tried: set[int]) -> bool:
        for column in sorted(range(count), key=partners.__contains__):  # free parts first
            if column in tried or not same(row, column):
                continue
            tried.add(column)
            if column not in partners or finds_partner(partners[column], tried):
                partners[column] = row
                return True
        return False

    return all(finds_partner(row, set()) for row in range(count))


def _same_if_comparable(gold: tuple[str, int | None], prediction: tuple[str, int | None]) -> bool:
    """Returns whether two expressions are equal. Each is a pair: the LaTeX code, and the number of decimals
    to which the number was rounded, or None. Expressions for which sympy raises an exception are not equal;
    other parts of the answers are still compared. Raises MemoryError and RecursionError, because these are
    limits for the whole answer."""
    try:
        return _same(gold, prediction)
    except (MemoryError, RecursionError):
        raise
    except Exception:  # sympy raises exceptions of many kinds for what it cannot compare
        return False


def _same(gold: tuple[str, int | None], prediction: tuple[str, int | None]) -> bool:
    """Returns whether two expressions are equal. Each is a pair: the LaTeX code, and the number of decimals
    to which the number was rounded, or None. Expressions that cannot be parsed are not equal."""
    from math_verify import verify
    from sympy import Basic

    first, second = _parsed(gold[0]), _parsed(prediction[0])
    if first is None or second is None:
        return False
    if all(isinstance(e, Basic) and e.is_number for e in (first, second)):
        rounded = [decimals for decimals in (gold[1], prediction[1]) if decimals is not None]
        return _same_value(first, second, min(rounded, default=None))
    return bool(verify(first, second, timeout_seconds=None))


def _same_value(first: Any, second: Any, decimals: int | None) -> bool:
    """Returns whether two parsed expressions without variables have the same value. If `decimals` is not
    None, the values may differ by half a unit of the last of so many decimals: by 0.005 if `decimals` is
    2."""
    from sympy import Float, Integer, Rational

    exact = [
        e.replace(lambda x: isinstance(x, Float), lambda x: Rational(str(x)))
        for e in (first, second)
    ]
    one, other = (e.doit().evalf(_DIGITS) for e in exact)
    if not (one.is_finite and other.is_finite):
        return bool(one == other and one.is_extended_real)
    if decimals is not None:
        return bool(abs(one - other) <= Rational(1, 2) * Integer(10) ** -decimals)
    size = max(abs(one), abs(other))
    if abs(one - other) <= size * Rational(1, 10**_SAME):
        return True
    return bool(size < Rational(1, 10**_SAME) and (exact[0] - exact[1]).equals(0))


def _values(latex: str) -> list[list[float]] | None:
    """Returns the values of an expression at `POINTS` points, each as a pair of its real and its imaginary
    part. At each point, all variables have fixed values between 0.5 and 1.5, which depend on their names
    only. Returns None if the text is no such expression, or if a value is no finite number."""
    from sympy import Expr

    try:
        expression = _parsed(latex)
        if not isinstance(expression, Expr):
            return None
        values = []
        for point in range(POINTS):
            at = {
                symbol: 0.5 + zlib.crc32(f"{point} {symbol.name.lower()}".encode()) / 2**32
                for symbol in expression.free_symbols
            }
            values.append(complex(expression.evalf(15, subs=at)))
    except (MemoryError, RecursionError):
        raise
    except Exception:  # sympy raises exceptions of many kinds for what it cannot evaluate
        return None
    finite = all(map(cmath.isfinite, values))
    return [[value.real, value.imag] for value in values] if finite else None


def _parsed(latex: str) -> Any:
    """Parses LaTeX code, and returns the expression (an object of sympy); None if it cannot be parsed."""
    from latex2sympy2_extended.latex2sympy2 import NormalizationConfig
    from math_verify import parse
    from math_verify.parser import LatexExtractionConfig

    rules = NormalizationConfig(basic_latex=True, malformed_operators=True, nits=True, boxed="none")
    kind = LatexExtractionConfig(boxed_match_priority=-1, normalization_config=rules)
    found = parse(f"${latex}$", [kind], fallback_mode="no_fallback", parsing_timeout=None)
    return found[0] if found else None


if __name__ == "__main__":
    main()
