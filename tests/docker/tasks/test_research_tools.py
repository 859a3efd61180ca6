"""The tools and the shell of MLGym's interface in a real container, where the agent is no superuser."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from air.actions import ToolCall
from air.sandbox import open_box
from air.sandbox.contract.box import Box, BoxSpec
from air.worlds.research.tools import Tools, ToolSettings

pytestmark = pytest.mark.docker


@pytest.fixture
async def box() -> AsyncIterator[Box]:
    async with await open_box(BoxSpec(), run="interface") as box:
        yield box


@pytest.fixture
def tools(box: Box) -> Tools:
    return Tools(box, ToolSettings(window=10, overlap=2))


async def use(tools: Tools, name: str, *args: str, body: tuple[str, ...] | None = None) -> str:
    return (await tools.call(ToolCall(name, args, body))).text


async def run(tools: Tools, script: str, seconds: float = 60) -> str:
    result = await tools.shell.exec(script, timeout=seconds, max_bytes=4000)
    return result.text + ("[timed out]" if result.timed_out else "")


async def test_the_shell_keeps_its_place_and_its_variables(tools: Tools) -> None:
    assert await run(tools, "mkdir src; cd src; export X=1; pwd") == "/workspace/src\n"
    assert await run(tools, "pwd; echo $X; cd -") == "/workspace/src\n1\n/workspace\n"
    assert await run(tools, "cat << 'EOF' > f\n$x\nEOF\ncat f") == "$x\n"
    assert tools.standing(2).cwd == "/workspace"


async def test_no_command_keeps_the_next_from_running(tools: Tools) -> None:
    assert await run(tools, "cd /usr; export X=1") == ""
    assert await run(tools, "echo early; cd /; sleep 600", seconds=3) == "early\n[timed out]"
    assert await run(tools, "cd /; kill -9 -1 2>/dev/null; kill -9 $$") == ""
    assert await run(tools, "pwd; echo $X; cd /tmp") == "/usr\n1\n"
    assert "[timed out]" not in await run(tools, "python3; cat; sh -i; cd /usr")
    await run(tools, "rm -rf /workspace/* /tmp/.air*; export PATH=/nowhere")
    shown = await run(tools, "pwd; echo $X; ls")
    assert shown.startswith("/usr\n1\n")
    assert shown.endswith("ls: command not found\n")


async def test_open_edit_search_and_create(tools: Tools, box: Box) -> None:
    await box.write("a.py", b"def f(x):\n    return x\n")
    assert await use(tools, "open", "a.py") == "1:def f(x):\n2:    return x"
    assert tools.standing(1).open_file == "/workspace/a.py, lines 1-2 of 2"
    assert "F821" in await use(tools, "edit", "2:2", body=("    return y",))
    assert "3 lines now" in await use(tools, "insert", "2", body=("print(f(1))",))
    assert await run(tools, "python3 a.py") == "1\n"
    assert "a.py: 1 lines" in await use(tools, "search_dir", "return")
    assert "2:    return x" in await use(tools, "search_file", "return")
    assert "a.py" in await use(tools, "find_file", "*.py")
    assert "Created" in await use(tools, "create", "deep/b.txt")
    assert "Cannot write" in await use(tools, "create", "/etc/x")
    assert "leads out" in await use(tools, "open", "/etc/passwd")


async def test_read_only_files_refuse_by_permission_and_by_owner(tools: Tools, box: Box) -> None:
    await box.write("a.txt", b"1\n")
    await run(tools, "chmod a-w a.txt")
    await use(tools, "open", "a.txt")
    assert await use(tools, "edit", "1:1", body=("2",)) == "/workspace/a.txt is read-only."
    await run(tools, "chmod u+w a.txt; mkdir shut; touch shut/b; chmod a-w shut")
    assert "Edited" in await use(tools, "edit", "1:1", body=("2",))
    assert "Cannot write" in await use(tools, "create", "shut/c")
