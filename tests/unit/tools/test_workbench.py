"""The tools `bash` and `files`: one shell, one editor, and mistakes that are told."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from air.errors import ConfigError
from air.sandbox import open_box
from air.sandbox.contract.box import Box, BoxLimits, BoxSpec
from air.tools import OpenTools, ToolContext, ToolSet, load
from air.tools.workbench.bench import MOST_LINES, _shown
from air.tools.workbench.numbered_lines import NumberedLines

SPEC = BoxSpec(provider="process", limits=BoxLimits(memory_mb=256, pids=64, disk_mb=16))


@pytest.fixture(params=["process", pytest.param("docker", marks=pytest.mark.docker)])
async def box(request: pytest.FixtureRequest) -> AsyncIterator[Box]:
    async with await open_box(SPEC.model_copy(update={"provider": request.param})) as box:
        yield box


@pytest.fixture
async def opened(box: Box) -> AsyncIterator[OpenTools]:
    tools = ToolSet([*load({"name": "bash", "seconds": 5}), *load("files")])
    async with await tools.open(ToolContext(seed=0, box=box)) as opened:
        yield opened


async def bash(opened: OpenTools, command: str) -> tuple[str, str]:
    result = await opened.call("bash", {"command": command})
    return result.observation, result.status


async def test_the_shell_keeps_its_folder_and_variables(opened: OpenTools) -> None:
    assert await bash(opened, "mkdir -p a; cd a; export X=1") == ("[no output]", "success")
    assert await bash(opened, 'echo "$X $(basename $PWD)"') == ("1 a", "success")
    assert await bash(opened, "echo out; echo err >&2; exit 3") == ("out\nerr\n[exit 3]", "error")
    assert (await bash(opened, "  "))[1] == "error"
    assert (await bash(opened, "echo \0"))[1] == "error"
    assert (await bash(opened, "echo '\ud800'"))[0]
    text, status = await bash(opened, "echo begun; sleep 600")
    assert status == "error"
    assert text == "begun\n[the command exceeded its time limit of 5 s]"
    long, _ = await bash(opened, "head -c 1000000 /dev/zero | tr '\\0' x; echo end")
    assert len(long) <= 2048
    assert "cut" in long
    assert long.endswith("end")


async def test_no_file_of_the_shell_is_listed(opened: OpenTools) -> None:
    """The shell keeps its state in the folder for temporary files, which may be the working directory."""
    await bash(opened, 'cd "${TMPDIR:-/tmp}"; export X=1; touch own')
    assert await call(opened, "view", path=".") == "success: own"
    assert await bash(opened, "ls -A; echo $X") == ("own\n1", "success")
    assert await call(opened, "view", path=".") == "success: own"


async def call(opened: OpenTools, name: str, **arguments: object) -> str:
    result = await opened.call(name, arguments)
    return f"{result.status}: {result.observation}"


async def test_files_are_created_shown_edited_and_edits_undone(opened: OpenTools) -> None:
    await bash(opened, "mkdir sub; cd sub")
    text = "".join(f"line {number}\n" for number in range(1, 31))
    assert (await call(opened, "create", path="f", text=text)).endswith("/sub/f, 30 lines.")
    assert "exists" in await call(opened, "create", path="f", text="other")
    assert await call(opened, "view", path="f", first=2, last=3) == "success: 2:line 2\n3:line 3"
    assert await call(opened, "view", path=".") == "success: f"
    edited = await call(opened, "str_replace", path="f", old="line 10\n", new="ten\nTEN\n")
    assert "31 lines now" in edited
    assert "10:ten\n11:TEN\n12:line 11" in edited
    assert "\n5:" not in edited
    assert "1 to 31" in await call(opened, "view", path="f", first=40)
    inserted = await call(opened, "insert", path="f", after=0, text="zero")
    assert "1:zero\n2:line 1" in inserted
    assert "no line 99" in await call(opened, "insert", path="f", after=99, text="x")
    assert "undone" in await call(opened, "undo_edit", path="../sub/f")
    assert (await bash(opened, "head -1 f"))[0] == "line 1"
    assert "undone" in await call(opened, "undo_edit", path="f")
    assert (await bash(opened, "cat f"))[0] == text.rstrip("\n")
    assert "no edit" in await call(opened, "undo_edit", path="f")


async def test_a_file_of_too_many_lines_is_shown_in_part() -> None:
    lines = NumberedLines("\n" * (3 * MOST_LINES))
    text = await _shown(lines, 2, 3 * MOST_LINES)
    end = MOST_LINES + 1
    assert text.endswith(f"\n{end}:\n[… the lines {end + 1} to {3 * MOST_LINES} are not shown …]")
    assert text.count("\n") == MOST_LINES
    assert await _shown(lines, 2 * MOST_LINES + 1, 9 * MOST_LINES) == "\n".join(
        f"{number}:" for number in range(2 * MOST_LINES + 1, 3 * MOST_LINES + 1)
    )


async def test_wrong_edits_change_nothing(opened: OpenTools) -> None:
    await bash(
        opened, "printf 'a\\na\\n' > twice; printf '\\xff' > bytes; printf '\\0' > nul; : > empty"
    )
    await bash(opened, "echo x > locked; chmod 444 locked; mkfifo pipe; ln -s /etc/passwd out")
    for path, old, expected in (
        ("twice", "a", "occurs 2 times"),
        ("twice", "b", "occurs 0 times"),
        ("twice", "", "nothing to replace"),
        ("bytes", "x", "not UTF-8"),
        ("nul", "x", "no text file"),
        ("absent", "x", "Cannot open"),
        ("locked", "x", "read-only"),
        ("pipe", "x", "Cannot open"),
        ("out", "root", "Cannot"),
        ("/etc/passwd", "root", "Cannot"),
    ):
        told = await call(opened, "str_replace", path=path, old=old, new="new")
        assert told.startswith("error: "), (path, told)
        assert expected in told, (path, told)
    assert (await call(opened, "view", path="empty")).endswith("is empty.")
    assert (await bash(opened, "cat twice"))[0] == "a\na"


def test_tools_with_different_boxes_are_refused() -> None:
    other = load({"name": "bash", "box": {"image": "air-torch"}})
    with pytest.raises(ConfigError, match="different boxes"):
        ToolSet([*load("code_interpreter"), *other])
    ToolSet([*load("code_interpreter"), *load("bash"), *load("files")])
    with pytest.raises(ConfigError, match="seconds"):
        load({"name": "bash", "seconds": 0})
