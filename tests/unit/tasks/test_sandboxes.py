"""The sandbox of graded programs: what it passes on, and what it says of a program at fault."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from air import paths
from tests.unit.tasks.programs import module

SANDBOXES = sorted(paths.shipped("tasks").glob("*/grader/sandbox.py"))
CALLING = [path for path in SANDBOXES if "class Program" in path.read_text()]
SANDBOX = module(paths.shipped("tasks") / "satHeuristic" / "grader" / "sandbox.py")
Call = Callable[..., list[Any]]


@pytest.fixture
def call(tmp_path: Path) -> Call:
    """Answers of `f` in the given source to arguments in turn; the first call loads it afresh."""

    def calls(source: str, *arguments: Any, seed: int = 0, afresh: bool = False) -> list[Any]:
        file = tmp_path / "given.py"
        file.write_text(source)
        with SANDBOX.Program(file, "f", seed) as program:
            return [program.call(x, afresh=afresh or at == 0) for at, x in enumerate(arguments)]

    return calls


def test_all_copies_are_the_same() -> None:
    """Tasks stand alone, so each has its own copy."""
    assert CALLING
    assert {path.read_bytes() for path in CALLING} == {CALLING[0].read_bytes()}


def test_arguments_and_answers_pass(call: Call) -> None:
    given = [1, -2.5, "ä\n", None, True, {"a": [[]]}, list(range(50_000))]
    assert call("def f(x):\n    return x\n", *given) == given


def test_state_lasts_until_the_file_is_loaded_afresh(call: Call) -> None:
    source = "n = 0\ndef f(x):\n    global n\n    n += 1\n    return n\n"
    assert call(source, 0, 0, 0) == [1, 2, 3]
    assert call(source, 0, 0, 0, afresh=True) == [1, 1, 1]


def test_luck_is_seeded_anew_for_every_load(call: Call) -> None:
    source = "import random\ndef f(x):\n    return random.random()\n"
    first = call(source, 0, 0, afresh=True)
    assert first == call(source, 0, 0, afresh=True)
    assert len({*first, *call(source, 0, 0, afresh=True, seed=7)}) == 4


def test_arguments_are_copies(call: Call) -> None:
    assert call("def f(x):\n    x.append(1)\n    return 0\n", given := [5]) == [0]
    assert given == [5]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def f(", "SyntaxError"),
        ("x = 1", "defines no function f"),
        ("def f(x):\n    return 1 / 0", r"ZeroDivisionError: .* \(line 2\)"),
        ("def f(x):\n    raise SystemExit(0)", "SystemExit"),
        ("import os\nos._exit(0)", r"ended before it was done \(exit 0\)"),
        ("def f(x):\n    return float('nan')", "returned NaN, which is no number"),
        ("def f(x):\n    return [-float('inf')]", "returned -Infinity"),
        ("def f(x):\n    return {1, 2}", "not JSON serializable"),
        ("def f(x):\n    return 'x' * 1_000_001", "more than 1000000 bytes"),
        ("def f(x):\n    x = [x]\n    x[0] = x\n    return x", "Circular|Recursion"),
        ("def f(x):\n    return 10**5000", "failed: ValueError"),
        ("def f(x):\n    return len([0] * 10**10)", "MemoryError"),
        ("def f(x):\n    while True: pass", "5 s of processor time"),
        ("import os\nfor fd in range(30):\n    try: os.write(fd, b'A1\\n' * 5)\n"
         "    except OSError: pass\ndef f(x):\n    return 1", "out of turn"),
        ("import os\nfor fd in range(30):\n    try: os.write(fd, b'A' + b'[' * 90000 + b'\\n')\n"
         "    except OSError: pass\nos._exit(0)", "no JSON"),
        ("#" * 100_001, "larger than 100 kB"),
        ("\udcff", "no UTF-8"),
    ],
)  # fmt: skip
def test_a_program_at_fault_is_told_so(tmp_path: Path, source: str, said: str) -> None:
    file = tmp_path / "given.py"
    file.write_text(source, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(SANDBOX.BadProgram) as caught, SANDBOX.Program(file, "f", 0) as program:
        program.call(1, afresh=True)
    assert re.search(said, str(caught.value)), str(caught.value)
    assert caught.value.remember


def test_a_program_that_answers_twice_is_told_so(tmp_path: Path) -> None:
    file = tmp_path / "given.py"
    file.write_text(
        "import os\ndef f(x):\n    for fd in range(3, 30):\n"
        "        try: os.write(fd, b'A1\\nA2\\n')\n        except OSError: pass\n    return 3\n"
    )
    with (
        pytest.raises(SANDBOX.BadProgram, match="out of turn"),
        SANDBOX.Program(file, "f", 0) as program,
    ):
        program.call(1, afresh=True)


def test_an_endless_answer_is_told_so(tmp_path: Path) -> None:
    file = tmp_path / "given.py"
    file.write_text(
        "import os\ndef f(x):\n    while True:\n        for fd in range(3, 30):\n"
        "            try: os.write(fd, b'A' * 60_000)\n            except OSError: pass\n"
    )
    with (
        pytest.raises(SANDBOX.BadProgram, match="more than 1000000 bytes"),
        SANDBOX.Program(file, "f", 0) as program,
    ):
        program.call(1, afresh=True)


def test_a_program_that_never_reads_does_not_hold_the_grader_up(tmp_path: Path) -> None:
    """It answers ahead of time and sleeps, while the next order is larger than a pipe."""
    file = tmp_path / "given.py"
    file.write_text(
        "import os, time\ndef f(x):\n    for fd in range(3, 30):\n"
        "        try: os.write(fd, b'A1\\n')\n        except OSError: pass\n    time.sleep(60)\n"
    )
    began = time.monotonic()
    with SANDBOX.Program(file, "f", 0, seconds=1.0) as program:
        assert program.call(1, afresh=True) == 1
        with pytest.raises(SANDBOX.BadProgram) as caught:
            program.call("x" * 1_000_000)
    assert "took longer" in str(caught.value)
    assert not caught.value.remember
    assert time.monotonic() - began < 10


def test_a_missing_file_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(SANDBOX.BadProgram, match="cannot be read"):
        SANDBOX.Program(tmp_path / "given.py", "f", 0)
