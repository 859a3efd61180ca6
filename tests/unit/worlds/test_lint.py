"""The lint guard: what counts as new, and what agents' text cannot do to the harness."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from air.worlds.research import lint
from air.worlds.research.lint import lint_edit


async def new(before: str, after: str) -> list[str]:
    """The codes that an edit brings, with their lines."""
    verdict = await lint_edit(before, after)
    assert not verdict.given_up
    return [f"{one.code}:{one.line}" for one in verdict.new.first]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("x = 1\nprint(x, __file__, ValueError)\n", []),
        ("print(y)\n", ["F821:1"]),
        ("__all__ = ['y']\n", ["F822:1"]),
        ("def f(a, a):\n    return a\n", ["F831:1"]),
        ("if 1:\n  x = 1\n", ["E111:2"]),
        ("if 1:\nx = 1\n", ["E112:2", "E999:2"]),
        ("x = 1\n    y = 2\n", ["E113:2", "E999:2"]),
        ("def f(:\n    pass\n", ["E999:1"]),
        ("x = (1,\n", ["E999:1"]),
        ("x = '''1\n", ["E999:1"]),
        ("x = 'a\0b'\n", ["E999:1"]),
        ("import os, sys\nx=1 ;y = l = 2\nlambda : 0\n", []),
        ("print(y)  # noqa\n", ["F821:1"]),
        ("", []),
        ("x = 1", []),
        ("x = 1\r\nprint(y)\r\n", ["F821:2"]),
        ("\ufeffx = 1\n", []),
        ("s = 'a\u2028b'\n", []),
    ],
)
async def test_the_errors_that_refuse_an_edit(text: str, found: list[str]) -> None:
    assert await new("", text) == found


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ("print(y)\n", "x = 1\nprint(y)\n", []),
        ("print(y)\n", "print(y, y)\n", ["F821:1"]),
        ("print(y)\n", "print(z)\n", ["F821:1"]),
        ("if 1:\n  x = 1\n", "\nif 1:\n  x = 2\n", []),
        ("if 1:\n  x = 1\n", "if 1:\n  x = 1\n  y = 2\n", ["E111:3"]),
        ("def f(:\n", "def f(:\nx = y\n", []),
        ("def f(:\n", "def f():\n    return y\n", []),
        ("x = 1\n", "x = \n", ["E999:1"]),
    ],
)
async def test_only_what_was_not_there_before_counts(
    before: str, after: str, found: list[str]
) -> None:
    assert await new(before, after) == found


async def test_what_is_left_is_known() -> None:
    verdict = await lint_edit("print(y)\n", "print(y)\nprint(z)\n")
    assert [str(one) for one in verdict.new.first] == ["line 2: F821 undefined name 'z'"]
    assert [str(one) for one in verdict.rest.first] == ["line 1: F821 undefined name 'y'"]


@pytest.mark.parametrize(
    "text",
    [
        "x = " + "-" * 100_000 + "1\n",
        "x = " + "[1]" * 50_000 + "\n",
        "x = " + "1+" * 50_000 + "1\n",
    ],
)
async def test_text_that_exhausts_the_parser_is_said_and_harms_nothing(text: str) -> None:
    assert (await lint_edit("", text)).given_up
    assert await new("", "print(y)\n") == ["F821:1"]


async def test_text_at_which_the_linter_fails_is_said_and_is_no_failure_of_ours() -> None:
    """Pyflakes parses the annotation again. An agent could leave its episode out of training so."""
    verdict = await lint_edit("", "x: '\\ud800'\n")
    assert "the linter failed: UnicodeEncodeError" in verdict.given_up


async def test_too_much_text_is_not_linted() -> None:
    assert "500000 bytes" in (await lint_edit("", "#" * (lint.MAX_BYTES + 1))).given_up


async def test_text_is_read_and_never_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    text = f"# -*- coding: unicode_escape -*-\nopen({str(mark)!r}, 'w').close()\n"
    await lint_edit(text, text + "import this\n")
    assert not mark.exists()


async def test_no_settings_of_the_machine_change_what_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".config").mkdir()
    (tmp_path / ".config" / "pycodestyle").write_text("[pycodestyle]\nindent-size = 2\n")
    (tmp_path / "setup.cfg").write_text("[pycodestyle]\nindent-size = 2\n")
    (tmp_path / "ast.py").write_text("raise SystemExit(9)\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYFLAKES_BUILTINS", "y")
    monkeypatch.chdir(tmp_path)
    assert await new("", "if 1:\n  print(y)\n") == ["E111:2", "F821:2"]


async def test_many_edits_at_once_do_not_start_as_many_linters() -> None:
    text = "print(x)\n" * 500
    edits = [asyncio.create_task(lint_edit("", text)) for _ in range(2 * lint.AT_ONCE + 4)]
    most = 0
    while not all(edit.done() for edit in edits):
        most = max(most, await asyncio.to_thread(linters))
        await asyncio.sleep(0.01)
    assert not any(edit.result().given_up for edit in edits)
    assert 0 < most <= lint.AT_ONCE


def linters() -> int:
    """The number of linters that this process has started and that still run."""
    count = 0
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = status.read_text().rpartition(")")[2].split()[1]
            if parent == str(os.getpid()):
                count += "lint_worker.py" in (status.parent / "cmdline").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
    return count
