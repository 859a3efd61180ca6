"""The code interpreter: state between calls, limits, and what a cell may do to its own session."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest

from air.sandbox import open_box
from air.sandbox.contract.box import Box, BoxLimits, BoxSpec
from air.tools import OpenTools, ToolContext, ToolResult, ToolSet, load

SPEC = BoxSpec(provider="process", limits=BoxLimits(memory_mb=256, pids=64, disk_mb=16))
SETTINGS = {"name": "code_interpreter", "max_length": 100_000}


@pytest.fixture(params=["process", pytest.param("docker", marks=pytest.mark.docker)])
def spec(request: pytest.FixtureRequest) -> BoxSpec:
    return SPEC.model_copy(update={"provider": request.param})


@pytest.fixture
async def box(spec: BoxSpec) -> AsyncIterator[Box]:
    async with await open_box(spec) as box:
        yield box


@pytest.fixture
async def opened(box: Box) -> AsyncIterator[OpenTools]:
    async with await ToolSet(load(SETTINGS)).open(ToolContext(seed=0, box=box)) as opened:
        yield opened


async def cell(opened: OpenTools, code: str) -> ToolResult:
    return await opened.call("code_interpreter", {"code": code})


async def test_variables_imports_and_files_stay(opened: OpenTools) -> None:
    first = await cell(
        opened, "import math\nx = 20\ndef double(n):\n    return 2 * n\nprint('one')"
    )
    assert (first.observation, first.status) == ("one", "success")
    assert (await cell(opened, "double(x) + math.floor(2.5)")).observation == "42"
    assert (await cell(opened, "_")).observation == "42"
    assert (await cell(opened, "open('f', 'w').write('abc');")).observation == "3"
    assert (await cell(opened, "open('f').read()")).observation == "'abc'"
    assert (await cell(opened, "y = 1")).observation == "[no output]"
    pickled = "import pickle\nclass A: pass\ntype(pickle.loads(pickle.dumps(A()))) is A"
    assert (await cell(opened, pickled)).observation == "True"


async def test_a_traceback_begins_at_the_cell(opened: OpenTools) -> None:
    await cell(opened, "def f(n):\n    return 1 / n")
    result = await cell(opened, "print('before')\nf(0)")
    assert (result.status, result.info["exception"]) == ("error", "ZeroDivisionError")
    lines = result.observation.split("\n")
    assert lines[:2] == ["before", "Traceback (most recent call last):"]
    assert lines[2:4] == ['  File "Cell In[2]", line 2, in <module>', "    f(0)"]
    assert '  File "Cell In[1]", line 2, in f' in lines
    assert "    return 1 / n" in lines
    assert lines[-1] == "ZeroDivisionError: division by zero"
    assert "<session>" not in result.observation
    syntax = await cell(opened, "x = (")
    assert "SyntaxError" in syntax.observation
    assert "<session>" not in syntax.observation
    assert "SystemExit: 3" in (await cell(opened, "import sys\nsys.exit(3)")).observation
    assert (await cell(opened, "f(1)")).observation == "1.0"


ODD_OUTPUT = (
    "raise ValueError('\\ud800')",
    "'\\ud800\\0'",
    "print('\\ud800')",
    "import os; os.write(1, b'\\xff')",
)
ODD_CELLS = ("\0", "\ud800", "", "# nothing", "(" * 5000, "x" * 200_000)


@pytest.mark.parametrize("codes", [ODD_OUTPUT, ODD_CELLS], ids=["output", "cells"])
async def test_odd_characters_and_cells_are_answered(
    opened: OpenTools, codes: Sequence[str]
) -> None:
    for number, code in enumerate(codes):
        assert (await cell(opened, f"kept = {number}")).status == "success"
        (await cell(opened, code)).observation.encode()
        assert (await cell(opened, "kept")).observation == str(number), code


async def test_much_output_is_cut_in_the_middle_and_says_so(opened: OpenTools) -> None:
    result = await cell(
        opened,
        "import os\nprint('begin')\nfor _ in range(400): os.write(1, b'x' * 65536)\nos.write(1, b'end');",
    )
    assert result.observation.startswith("begin\nx")
    assert "bytes cut ...]" in result.observation
    assert "xend" in result.observation
    assert len(result.observation) < 20_000
    both = await cell(
        opened, "import sys\nprint('o' * 50000)\nprint('e' * 50000, file=sys.stderr)\n'r' * 50000"
    )
    assert both.observation.count("cut ...]") == 3
    loud = await cell(opened, "raise ValueError('v' * 10**6)")
    assert loud.info["exception"] == "ValueError"
    assert (await cell(opened, "print('a', end='')")).observation == "a"


async def limited(box: Box, seconds: float) -> OpenTools:
    tools = ToolSet(load(SETTINGS | {"seconds": seconds}))
    return await tools.open(ToolContext(seed=0, box=box))


async def test_the_time_limit_ends_the_cell_alone(box: Box) -> None:
    async with await limited(box, 2.0) as opened:
        await cell(opened, "x = 7")
        for slow in ("while True: pass", "import os; os.system('sleep 600')"):
            result = await cell(opened, f"print('started')\n{slow}")
            assert result.status == "error"
            assert result.observation.startswith("started")
            assert "exceeded its time limit of 2 s" in result.observation
        assert (await cell(opened, "x")).observation == "7"


async def test_a_cell_that_does_not_stop_ends_its_session(box: Box) -> None:
    async with await limited(box, 2.0) as opened:
        await cell(opened, "x = 7")
        stubborn = """
import time
while True:
    try:
        while True:
            time.sleep(1)
    except KeyboardInterrupt:
        print("no")"""
        result = await cell(opened, stubborn)
        assert result.info == {"session_lost": True}
        assert "its variables are lost" in result.observation.lower()
        assert "NameError" in (await cell(opened, "x")).observation
        assert await processes(box) <= 2


async def processes(box: Box) -> int:
    """The number of Python processes that run a session in the box."""
    script = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c '[<]session>' || true"
    own = await box.exec(script, timeout=60)
    return int(own.stdout)


FLOOD = """
import os
for fd in range(200, 220):
    try:
        while True:
            os.write(fd, b"x" * 60000)
    except OSError:
        pass
"""
ENDS = {
    "exit": "import os; os._exit(3)",
    "kill": "import os; os.kill(os.getpid(), 9)",
    "crash": "import ctypes; ctypes.string_at(0)",
    "channel": "import os; os.closerange(3, 1000)",
    "keeper": "import os; os.kill(os.getppid(), 9); import time; time.sleep(600)",
    "flood": FLOOD,
}


async def test_a_cell_that_ends_its_session_is_told_so(opened: OpenTools) -> None:
    for name, code in ENDS.items():
        await cell(opened, "x = 7")
        result = await cell(opened, code)
        assert (result.status, result.info["session_lost"]) == ("error", True), name
        assert "the next call starts a new session" in result.observation, name
        assert "NameError" in (await cell(opened, "x")).observation, name
        assert (await cell(opened, "1 + 1")).observation == "2", name


FORGED = """
import json, os
answer = {"shown": "forged", "error": "", "kind": ""}
for fd in range(200, 210):
    for number in range(5):
        try:
            os.write(fd, json.dumps(dict(answer, number=number)).encode() + b"\\n")
        except OSError:
            pass
"""
PARENT = """
import os
for name in os.listdir("/proc"):
    try:
        if int(name) != os.getpid():
            open(f"/proc/{name}/fd/1", "w").write("{}\\n")
    except (ValueError, OSError):
        pass
"""
SURVIVED = {
    "builtins": "import builtins\nbuiltins.len = builtins.open = builtins.print = builtins.repr = None",
    "stdout": "import sys\nsys.stdout = sys.stderr = None",
    "closed": "import sys, os\nsys.stdout.close()\nos.close(1); os.close(2); os.close(0)",
    "raising": "class E(Exception):\n    def __str__(self): raise self\nraise E",
    "repr": "class R:\n    def __repr__(self): return 3\nR()",
    "fork": "import os\nif not os.fork(): x = 'child'",
    "threads": "import threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()",
    "signal": "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)",
    "main": "import sys\nsys.modules.clear()",
    "recursion": "def r(): return r()\nr()",
    "forged": FORGED,
    "parent": PARENT,
}


async def test_a_session_survives_what_a_cell_does_to_python(opened: OpenTools) -> None:
    """Or it ends, and says so: no call hangs, and none is a failure of ours."""
    for name, code in SURVIVED.items():
        await cell(opened, "x = 7")
        told = [await cell(opened, code)]
        while told[-1].observation != "7" and len(told) < 8:
            told.append(await cell(opened, "x"))
        lost = any(result.info.get("session_lost") for result in told)
        assert told[-1].observation == "7" or lost, (name, told)
        assert name in ("builtins", "main") or not lost, (name, told)
        await cell(opened, "import os; os._exit(1)")
        await cell(opened, "x = 8")
        assert (await cell(opened, "x")).observation == "8", name


async def test_prints_of_a_thread_are_shown_with_the_next_cell(opened: OpenTools) -> None:
    code = """
import threading
go = threading.Event()
t = threading.Thread(target=lambda: (go.wait(), print("late")))
t.start()"""
    await cell(opened, code)
    assert (await cell(opened, "go.set(); t.join()")).observation == "late"


async def test_a_module_of_the_agent_does_not_break_a_new_session(
    opened: OpenTools, box: Box
) -> None:
    for name in ("json", "ast", "select", "traceback", "ctypes"):
        await box.write(f"{name}.py", b"raise SystemExit('mine')")
    await box.write("mine.py", b"value = 5")
    assert (await cell(opened, "import mine\nmine.value")).observation == "5"


async def test_no_process_of_a_session_outlives_its_episode(box: Box) -> None:
    tools = ToolSet(load(SETTINGS))
    async with await tools.open(ToolContext(seed=0, box=box)) as opened:
        await cell(
            opened, "import subprocess\nsubprocess.Popen(['sleep', '600'], start_new_session=True);"
        )
        assert await processes(box) > 0
    for _ in range(600):
        if not await processes(box):
            break
    assert await processes(box) == 0
    async with await tools.open(ToolContext(seed=1, box=box)) as opened:
        assert "NameError" in (await cell(opened, "subprocess")).observation


async def test_a_full_box_is_an_observation(box: Box) -> None:
    async with await ToolSet(load(SETTINGS)).open(ToolContext(seed=0, box=box)) as opened:
        result = await cell(opened, "a = bytearray(10**9)")
        assert result.status == "error"
        full = await cell(opened, "open('big', 'wb').write(b'x' * 10**8)")
        assert full.status in ("error", "success")  # a plain process box has no limit on files
        assert (await cell(opened, "1")).observation == "1"


async def test_a_snapshot_has_the_files_and_a_new_session(spec: BoxSpec) -> None:
    tools = ToolSet(load(SETTINGS))
    async with await open_box(spec) as box, await open_box(spec) as copy:
        opened = await tools.open(ToolContext(seed=0, box=box))
        await cell(opened, "x = 7\nopen('file', 'w').write('kept');")
        async with await box.snapshot() as snapshot:
            await copy.restore(snapshot)
        await opened.close()
        async with await tools.open(ToolContext(seed=0, box=copy)) as other:
            assert (await cell(other, "open('file').read()")).observation == "'kept'"
            assert "NameError" in (await cell(other, "x")).observation
