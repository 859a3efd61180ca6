"""The checker of programs, with a shell of this machine in place of a box."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from air.errors import ConfigError, InfrastructureError
from air.rewards.answers import Verdict, check
from air.rewards.answers.programs import code_of

RIGHT = "def f(n):\n    return n * n"


async def run(script: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        "bash",
        "-c",
        script,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, error = await process.communicate()
    return process.returncode or 0, out.decode("utf-8", "replace"), error.decode("utf-8", "replace")


async def checked(code: str, tests: Any, **settings: Any) -> Verdict:
    checker = check({"name": "code_tests", **settings})
    return await checker(prediction=code, tests=tests, run=run)


@pytest.mark.parametrize(
    ("code", "test", "right"),
    [
        (RIGHT, {"call": "f(3)", "value": 9}, True),
        (RIGHT, "assert f(3) == 9", True),
        (RIGHT, "assert f(3) == 10", False),
        (f"Here:\n```python\n{RIGHT}\n```\nDone.", "assert f(-2) == 4", True),
        ("def f(n): return [n, (1, 2), {3}]", "assert f(0) == [0, (1, 2), {3}]", True),
        ("def f(n): return {'a': [n / 3]}", {"call": "f(1)", "value": {"a": [0.3333333333]}}, True),
        ("def f(n): return 1", {"call": "f(1)", "value": True}, False),
        ("def f(n): return 'it''s'", "assert f('\"') == \"it's\"", False),
        ("def f(n): return 10**400", {"call": "f(1)", "value": 0.5}, False),
        ("print(int(input()) * 2)", {"stdin": "4\n", "stdout": "8"}, True),
        ("print(int(input()) * 2)", {"stdin": "4\n", "stdout": "9"}, False),
        ("import sys\nprint(8)\nsys.exit(1)", {"stdin": "4\n", "stdout": "8"}, False),
    ],
)
async def test_a_program_is_right_if_the_value_is(code: str, test: Any, right: bool) -> None:
    assert (await checked(code, [test])).reward == float(right)


ATTACKS = {
    "ends early": "import os\nos._exit(0)",
    "ends early with a status": "import sys\nsys.exit(0)",
    "raises": "raise ValueError",
    "equals everything": "class A:\n    def __eq__(s, o): return True\ndef f(n): return A()",
    "a subclass of int": "class A(int):\n    def __eq__(s, o): return True\ndef f(n): return A(9)",
    "changes JSON": 'import json\njson.dumps = lambda v: \'["int", "0x9"]x\'\ndef f(n): return 1',
    "prints a mark": (
        "import sys\ndef f(n):\n    print('\\n' + sys.argv[2] + '[\"int\", \"0x9\"]')\n    return 1"
    ),
    "reads its parent": "def f(n):\n    return open('/proc/self/cmdline').read()",
    "writes nothing sensible": (
        "import sys, os\ndef f(n):\n    print('\\n' + sys.argv[2] + '[[[')\n    os._exit(0)"
    ),
    "a deep value": "def f(n):\n    v = []\n    for _ in range(100000): v = [v]\n    return v",
    "no code": "I cannot write this.",
    "only a thought": f"<think>\n```python\n{RIGHT}\n```\n</think>",
    "the last block counts": f"```python\n{RIGHT}\n```\n```python\ndef f(n): return 0\n```",
}


@pytest.mark.parametrize("name", ATTACKS)
async def test_an_attack_gains_nothing(name: str) -> None:
    assert (await checked(ATTACKS[name], [{"call": "f(3)", "value": 9}])).reward == 0


async def test_a_program_without_end_fails() -> None:
    assert (await checked("while True: pass", ["assert f(1) == 1"], seconds=1)).reward == 0


async def test_tests_end_at_the_first_failure() -> None:
    tests = ["assert f(0) == 0", "assert f(1) == 2", "assert f(2) == 4"]
    verdict = await checked(RIGHT, tests)
    assert verdict == Verdict(0.0, {"tests_passed": pytest.approx(1 / 3), "has_code": 1.0})


async def test_a_failure_of_the_box_is_ours() -> None:
    async def away(script: str) -> tuple[int, str, str]:
        raise InfrastructureError("the box is gone")

    with pytest.raises(InfrastructureError):
        await check("code_tests")(prediction=RIGHT, tests=["assert f(1) == 1"], run=away)


@pytest.mark.parametrize(
    "tests",
    [
        [],
        "assert 1",
        ["assert f(1) > 0"],
        ["f(1)"],
        [{"call": "f(1)"}],
        ["assert f(1) == f(2)"],
        [3],
    ],
)
async def test_a_wrong_test_is_the_users_fault(tests: Any) -> None:
    with pytest.raises(ConfigError, match="tests"):
        await checked(RIGHT, tests)


def test_many_fences_take_little_time() -> None:
    assert code_of("```python\n" * 10_000) == ""
