"""Many works at once, and works in threads: bounded, in order, and none left running."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path

import pytest

from air.aio import run_concurrently, run_in_thread
from tests.fork_server import of_this_run
from tests.until import until


async def test_so_many_at_a_time_and_answers_in_order() -> None:
    under_way: list[int] = []
    most = 0

    async def work(number: int) -> int:
        nonlocal most
        under_way.append(number)
        most = max(most, len(under_way))
        await asyncio.sleep(0.01 * (4 - number % 4))
        under_way.remove(number)
        return number

    assert await run_concurrently([work(n) for n in range(9)], 3) == list(range(9))
    assert most == 3
    most = 0
    assert await run_concurrently([work(n) for n in range(9)]) == list(range(9))
    assert most == 9
    assert await run_concurrently([]) == []


@pytest.mark.parametrize("cancelled", [False, True])
async def test_one_that_fails_ends_the_others_and_those_that_never_began(cancelled: bool) -> None:
    told: list[str] = []

    async def long() -> None:
        told.append("begun")
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            told.append("ended")

    async def fails() -> None:
        await asyncio.sleep(60 if cancelled else 0.01)
        raise ValueError("mine")

    all_of_them = asyncio.create_task(run_concurrently([long(), fails(), long(), long()], 2))
    await asyncio.sleep(0.005)
    if cancelled:
        all_of_them.cancel()
    with pytest.raises(asyncio.CancelledError if cancelled else ValueError):
        await all_of_them
    assert told.count("begun") == told.count("ended") >= 1


async def test_the_event_loop_goes_on_while_a_thread_works() -> None:
    """The work ends only if the event loop, meanwhile, sets the event."""
    asked = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        working = asyncio.create_task(run_in_thread(pool, lambda: asked.wait(60), asked.set))
        await asyncio.sleep(0)
        asked.set()
        assert await working is True


async def test_a_caller_that_is_cancelled_waits_for_its_thread() -> None:
    begun, stopped, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        stopped.wait(60)
        ended.set()
        raise ValueError("nobody waits for this error")

    never: list[str] = []
    with ThreadPoolExecutor(1) as pool:
        working = asyncio.create_task(run_in_thread(pool, work, stopped.set))
        await until(begun.is_set)
        queued = asyncio.create_task(
            run_in_thread(pool, lambda: never.append("begun"), lambda: never.append("told to stop"))
        )
        await asyncio.sleep(0)
        queued.cancel()
        with pytest.raises(asyncio.CancelledError):
            await queued
        assert not ended.is_set()
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        assert ended.is_set()
    assert never == ["told to stop"]


async def test_work_in_a_thread_has_the_callers_context_and_its_errors_are_raised() -> None:
    name: ContextVar[str] = ContextVar("name", default="none")
    name.set("mine")

    def fail() -> None:
        raise ValueError("it failed")

    with ThreadPoolExecutor(1) as pool:
        assert await run_in_thread(pool, name.get, lambda: None) == "mine"
        with pytest.raises(ValueError, match="it failed"):
            await run_in_thread(pool, fail, lambda: None)


WITH_A_HANDLER_OF_C = """
import asyncio, ctypes, importlib.util, signal, sys
from pathlib import Path
from air.aio import cancelled_by_signals
from air.train.loop.sft_run import _stop_requests
from air.train.prime_rl.launcher_process import supervise

libc = ctypes.CDLL(None)
libc.signal.argtypes, libc.signal.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p

def install():
    libc.signal(signal.SIGTERM, ctypes.cast(libc.abs, ctypes.c_void_p))
    # Python asks for the handlers of C code when this module is executed.
    spec = importlib.util.find_spec("_signal")
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert signal.getsignal(signal.SIGTERM) is None

async def main():
    with cancelled_by_signals(lambda: None):
        pass

def work(kind):
    if kind == "task":
        asyncio.run(main())
    elif kind == "sft":
        with _stop_requests():
            pass
    else:
        assert supervise(["true"], {}, Path("none")) == 0

install()
work(sys.argv[1])
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
"""


@pytest.mark.parametrize("kind", ["task", "sft", "prime-rl"])
def test_a_signal_handler_of_c_code_is_no_error(kind: str, tmp_path: Path) -> None:
    """Such as that of a program that embeds Python."""
    argv = ["python", "-c", WITH_A_HANDLER_OF_C, kind]
    done = of_this_run().run(argv, cwd=tmp_path, env=os.environ, seconds=300)
    assert done.returncode == 0, done.stderr
