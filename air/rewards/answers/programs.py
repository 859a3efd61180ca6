"""The answer checker `code_tests`, which runs hidden tests on the answer's code in the check box, a fresh
sandbox.

The expected values never enter the box. Only a test's call runs there, and its value is compared outside. So
code that exits early, prints forged results, reads its own source or changes the interpreter gains nothing.

A test is `{"call": "f(2)", "value": 4}`, an assertion `assert f(2) == 4` whose right side is a literal, or
`{"stdin": …, "stdout": …}` for a whole program. Each test runs in a new process.
"""

from __future__ import annotations

import ast
import base64
import json
import math
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from air.errors import ConfigError
from air.rewards.answers.extraction import outside_thoughts
from air.rewards.answers.verdict import Verdict

MOST_CHARACTERS = 60_000
"""The maximum length of the code in characters. Longer code fails all tests."""
_NEAR = 1e-9
_LANGUAGES = ("", "python", "py", "python3")
_CHILD = """\
import json, sys
def plain(v, d=0):
    if d > 50: return ["deep"]
    if v is None or type(v) in (bool, str): return v
    if type(v) is int: return ["int", hex(v)]
    if type(v) is float: return ["float", v.hex()]
    if type(v) in (list, tuple): return [type(v).__name__, [plain(x, d + 1) for x in v]]
    if type(v) in (set, frozenset): return ["set", [plain(x, d + 1) for x in v]]
    if type(v) is dict: return ["dict", [[plain(k, d + 1), plain(x, d + 1)] for k, x in v.items()]]
    return ["other", type(v).__name__]
names = {"__name__": "answer"}
exec(compile(open(sys.argv[1], encoding="utf-8").read(), "answer.py", "exec"), names)
print("\\n" + sys.argv[2] + json.dumps(plain(eval(sys.argv[3], names))), flush=True)
"""
"""The program that runs the call of one test. The answer's code is executed with a `__name__` that is not
`__main__`, so that its part under `if __name__ == "__main__"` does not run."""


class Ran(NamedTuple):
    """The result of a shell script that ran in a box (a sandbox)."""

    exit_code: int
    stdout: str
    stderr: str


Run = Callable[[str], Awaitable[tuple[int, str, str]]]
"""A function that runs a shell script in the check box (a fresh sandbox), and returns exit code, stdout and
stderr. It raises InfrastructureError if the script cannot run. A failure that the script causes is an exit
code."""


@dataclass(frozen=True)
class Test:
    """One hidden test of an answer's code: either a call (`call`, an expression) with its expected `value`,
    or the input `stdin` of the whole program with its expected output `stdout`."""

    call: str = ""
    value: Any = None
    stdin: str = ""
    stdout: str = ""


async def code_tests(
    prediction: str, tests: Sequence[Any], run: Run, seconds: float = 10.0
) -> Verdict:
    """Checks an answer that is code: the reward is 1 if the code passes all hidden tests, else 0. No test
    runs after the first failed one.

    Each of the `tests` (at least one) is a dict with the keys `call` and `value` (such as `f(2)` and 4) or
    with the keys `stdin` and `stdout`, or an assertion such as `assert f(2) == 4`. `run` runs a shell script
    in the check box, a fresh sandbox. `seconds` is the time limit of each test. Raises ConfigError if a test
    is malformed.
    """
    hidden = [_test(test, number) for number, test in enumerate(_listed(tests), start=1)]
    code = code_of(prediction)
    passed = 0
    if code and len(code) <= MOST_CHARACTERS:
        for test in hidden:
            if not await _passes(code, test, run, seconds):
                break
            passed += 1
    right = passed == len(hidden)
    return Verdict(
        float(right), {"tests_passed": passed / len(hidden), "has_code": float(bool(code))}
    )


def code_of(prediction: str) -> str:
    """Returns the Python code in a model's reply: the content of the last fenced block (outside thoughts)
    that names Python or no language, or the whole text if it contains no fence. Returns an empty string if
    there are only blocks in other languages."""
    text = outside_thoughts(prediction).replace("\r\n", "\n")
    code: str | None = None
    inside: tuple[bool, list[str]] | None = None
    for line in text.split("\n"):
        fence = line.rstrip().startswith("```")
        if fence and inside is None:
            inside = (line.strip()[3:].strip().lower() in _LANGUAGES, [])
        elif fence and line.strip() == "```" and inside is not None:
            code = "\n".join(inside[1]) if inside[0] else code
            inside = None
        elif inside is not None:
            inside[1].append(line)
    if code is None:
        return "" if "```" in text else text.strip()
    return code


async def _passes(code: str, test: Test, run: Run, seconds: float) -> bool:
    mark = secrets.token_hex(16)
    if test.call:
        status, stdout, _ = await run(
            _script(code, ["child.py", "answer.py", mark, test.call], seconds)
        )
        lines = [line for line in stdout.split("\n") if line.startswith(mark)]
        return (
            status == 0
            and len(lines) == 1
            and _same(test.value, _value(lines[0].removeprefix(mark)))
        )
    status, stdout, _ = await run(_script(code, ["answer.py"], seconds, test.stdin))
    return status == 0 and _lines(stdout) == _lines(test.stdout)


def _script(code: str, arguments: Sequence[str], seconds: float, stdin: str = "") -> str:
    """Returns a shell script that runs `python3` with `arguments` in a new temporary folder, which is removed
    at the end. The folder has `code` in the file `answer.py`, and `_CHILD` (the program that runs one test)
    in `child.py`. `seconds` is the time limit, and `stdin` the standard input."""
    files = {"answer.py": code, "child.py": _CHILD, "stdin": stdin}
    texts = {
        name: base64.b64encode(text.encode("utf-8", "replace")).decode()
        for name, text in files.items()
    }
    writes = [f"printf %s {text} | base64 -d > {name}" for name, text in texts.items()]
    quoted = " ".join("'" + argument.replace("'", "'\"'\"'") + "'" for argument in arguments)
    return "\n".join(
        (
            "set -e",
            "folder=$(mktemp -d)",
            "trap 'rm -rf \"$folder\"' EXIT",
            'cd "$folder"',
            *writes,
            f"timeout -k 1 {seconds:g} python3 {quoted} < stdin",
        )
    )


def _listed(tests: Any) -> Sequence[Any]:
    if not isinstance(tests, Sequence) or isinstance(tests, str) or not tests:
        raise ConfigError(
            f"must be a list of tests, not {tests!r:.80}",
            where="field tests of the row",
            remedy="give at least one test",
        )
    return tests


def _test(test: Any, number: int) -> Test:
    where = f"field tests of the row, test {number}"
    if isinstance(test, str):
        return _assertion(test, where)
    if (
        isinstance(test, Mapping)
        and set(test) == {"call", "value"}
        and isinstance(test["call"], str)
    ):
        return Test(call=test["call"].strip(), value=test["value"])
    if isinstance(test, Mapping) and set(test) == {"stdin", "stdout"}:
        return Test(stdin=str(test["stdin"]), stdout=str(test["stdout"]))
    raise ConfigError(
        f"{test!r:.80} is no test",
        where=where,
        remedy='write {"call": …, "value": …}, {"stdin": …, "stdout": …} or "assert CALL == VALUE"',
    )


def _assertion(text: str, where: str) -> Test:
    try:
        (statement,) = ast.parse(text.strip()).body
        assert isinstance(statement, ast.Assert)
        compared = statement.test
        assert isinstance(compared, ast.Compare)
        assert [type(op) for op in compared.ops] == [ast.Eq]
        value = ast.literal_eval(compared.comparators[0])
    except (SyntaxError, ValueError, AssertionError):
        raise ConfigError(
            f"{text!r:.80} cannot be split into a call and its value",
            where=where,
            remedy="write it as `assert CALL == LITERAL`",
        ) from None
    return Test(call=ast.unparse(compared.left), value=value)


def _value(text: str) -> Any:
    """Decodes a value that `_CHILD` (the program that runs one test) printed as JSON. Returns a `_Other`
    object if `text` is malformed or the value has an unsupported type."""
    try:
        return _decoded(json.loads(text))
    except (ValueError, TypeError, KeyError, IndexError, RecursionError, OverflowError):
        return _Other()  # the answer's code can write what it likes


class _Other:
    """A placeholder for the result of a test whose type is not supported. It equals no expected value."""


def _decoded(data: Any) -> Any:
    if data is None or isinstance(data, bool | str):
        return data
    kind, content = data
    if kind == "int":
        return int(content, 16)
    if kind == "float":
        return float.fromhex(content)
    if kind in ("list", "tuple"):
        return {"list": list, "tuple": tuple}[kind](map(_decoded, content))
    if kind == "set":
        return set(map(_decoded, content))
    if kind == "dict":
        return {_decoded(key): _decoded(value) for key, value in content}
    return _Other()


def _same(wanted: Any, value: Any) -> bool:
    """Returns whether `value`, the result of a test, is the expected value `wanted`. Floats may differ by a
    relative or absolute error of 1e-9. A tuple equals a list with the same elements, because JSON has no
    tuples."""
    if isinstance(wanted, bool) or isinstance(value, bool) or wanted is None:
        return type(wanted) is type(value) and wanted == value
    if isinstance(wanted, float) and isinstance(value, int | float):
        return value == wanted or _close(value, wanted)
    if isinstance(wanted, list | tuple) and isinstance(value, list | tuple):
        return len(wanted) == len(value) and all(map(_same, wanted, value))
    if isinstance(wanted, dict) and isinstance(value, dict):
        return wanted.keys() == value.keys() and all(_same(wanted[k], value[k]) for k in wanted)
    return bool(wanted == value)


def _close(value: float, wanted: float) -> bool:
    try:
        return math.isclose(value, wanted, rel_tol=_NEAR, abs_tol=_NEAR)
    except OverflowError:  # the answer's code may return an integer that is no float
        return False


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]
