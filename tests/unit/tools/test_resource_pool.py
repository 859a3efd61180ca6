"""Pools of objects that episodes borrow: reuse, bounds, resets, and that nothing is lost or left behind."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import math
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from air.config import plugin
from air.errors import (
    BoxDiedError,
    ConfigError,
    HangingToolError,
    InfrastructureError,
    UserCodeError,
)
from air.tools import ResourcePool, Tool, ToolContext, ToolSet, tool
from air.tools import threads as tool_threads

CONTEXT = ToolContext(seed=7)
FOREVER = 3600.0


class Browser:
    """An object whose methods are sync. It keeps what an episode leaves in `pages`."""

    def __init__(self) -> None:
        self.pages: list[str] = []
        self.resets = self.closed = 0

    def reset(self) -> None:
        self.pages.clear()
        self.resets += 1

    def close(self) -> None:
        self.closed += 1


class AsyncBrowser(Browser):
    """The same with async methods, which wait."""

    async def begin(self, context: ToolContext) -> None:
        await asyncio.sleep(0)

    async def reset(self) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        super().reset()

    async def close(self) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        super().close()


class Maker:
    """A factory that keeps the objects that it made."""

    def __init__(self, kind: Callable[[], Any] = Browser) -> None:
        self.kind, self.made = kind, list[Any]()

    def __call__(self) -> Any:
        self.made.append(self.kind())
        return self.made[-1]

    async def soon(self) -> Any:
        await asyncio.sleep(0)
        return self()

    @property
    def closed(self) -> list[int]:
        """How often each object was closed."""
        return [one.closed for one in self.made]


def tools_of(pool: ResourcePool, suffix: str = "", **settings: Any) -> list[Tool]:
    @tool(state=pool, name=f"open{suffix}", **settings)
    def open_page(browser: Browser, page: str) -> str:
        """Opens a page."""
        browser.pages.append(page)
        return f"{browser.pages}"

    @tool(state=pool, name=f"look{suffix}", **settings)
    async def look(browser: Browser) -> str:
        """Shows the pages."""
        await asyncio.sleep(0)
        return f"{browser.pages}"

    return [open_page, look]


async def episode(tools: ToolSet, page: str = "page") -> str:
    """Plays an episode with one call of `open`; returns what the agent saw."""
    async with await tools.open(CONTEXT) as opened:
        return (await opened.call("open", {"page": page})).observation


async def all_places_are_free(pool: ResourcePool) -> None:
    """Fails if a place of the pool is lost: this many episodes at the same time can begin."""
    tools = ToolSet(tools_of(pool))
    async with asyncio.timeout(300), contextlib.AsyncExitStack() as stack:
        for _ in range(pool.places.size):
            await stack.enter_async_context(await tools.open(CONTEXT))


@pytest.mark.parametrize("kind", [Browser, AsyncBrowser])
async def test_an_object_is_reused_and_an_episode_sees_nothing_of_the_one_before(
    kind: type[Browser],
) -> None:
    maker = Maker(kind)
    tools = ToolSet(tools_of(ResourcePool(maker.soon if kind is AsyncBrowser else maker, 2)))
    for number in range(3):
        async with await tools.open(CONTEXT) as opened:
            shown = (await opened.call("open", {"page": f"secret {number}"})).observation
            assert shown == f"['secret {number}']"
            assert (await opened.call("look", {})).observation == shown
    assert [(one.resets, one.closed) for one in maker.made] == [(3, 0)]


async def test_a_function_can_do_the_reset() -> None:
    class Connection:
        def __init__(self) -> None:
            self.pages: list[str] = []

    async def rollback(connection: Connection) -> None:
        await asyncio.sleep(0)
        connection.pages.clear()

    maker = Maker(Connection)
    tools = ToolSet(tools_of(ResourcePool(maker, 1, reset=rollback)))
    assert [await episode(tools, page) for page in "abc"] == ["['a']", "['b']", "['c']"]
    assert len(maker.made) == 1


async def test_episodes_wait_for_a_place_in_the_order_of_their_arrival() -> None:
    maker = Maker(AsyncBrowser)
    tools = ToolSet(tools_of(ResourcePool(maker, 2)))
    begun: asyncio.Queue[int] = asyncio.Queue()
    ends = [asyncio.Event() for _ in range(6)]

    async def play(number: int) -> None:
        async with await tools.open(CONTEXT):
            begun.put_nowait(number)
            await ends[number].wait()

    plays = [asyncio.create_task(play(number)) for number in range(6)]
    assert {await begun.get(), await begun.get()} == {0, 1}
    for number in range(6):
        await asyncio.sleep(0.01)
        assert begun.empty()
        ends[number].set()
        await plays[number]
        if number < 4:
            assert await begun.get() == number + 2
    assert len(maker.made) == 2


async def test_episodes_that_need_two_pools_in_any_order_do_not_wait_for_each_other() -> None:
    first, second = ResourcePool(Maker(AsyncBrowser), 1), ResourcePool(Maker(AsyncBrowser), 1)
    one = [*tools_of(first), *tools_of(second, "_more")]
    two = [*tools_of(second), *tools_of(first, "_more")]
    async with asyncio.timeout(300):
        await asyncio.gather(*(episode(ToolSet(tools)) for tools in [one, two] * 10))


def raising(error: BaseException, *, soon: bool) -> Callable[[Any], Any]:
    async def fail_soon(browser: Any) -> None:
        raise error

    def fail(browser: Any) -> None:
        raise error

    return fail_soon if soon else fail


async def hang_soon(browser: Any) -> None:
    await asyncio.sleep(FOREVER)


async def hang_in_spite_of_cancellation(browser: Any) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(FOREVER)


HANGING = threading.Event()
"""Is set at the end of the tests of this file."""


def hang(browser: Any) -> None:
    HANGING.wait()


@pytest.fixture(scope="module", autouse=True)
def _release() -> Iterator[None]:
    yield
    HANGING.set()


def broken_resets() -> Iterator[Any]:
    errors = [OSError("busy"), SystemExit(1), asyncio.CancelledError("own"), BoxDiedError("gone")]
    for error in errors:
        for soon in (False, True):
            kind = f"{type(error).__name__}{' soon' if soon else ''}"
            yield pytest.param(raising(error, soon=soon), id=kind)
    yield from HANGS


HANGS = (hang_soon, hang_in_spite_of_cancellation, hang)


def limit(method: Callable[[Any], Any]) -> float:
    """A time limit that only methods exceed that hang."""
    return 0.5 if method in HANGS else 300


@pytest.mark.parametrize("reset", broken_resets())
async def test_an_object_that_cannot_be_reset_is_replaced_and_the_episode_stays_as_it_is(
    reset: Callable[[Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    maker = Maker()
    pool = ResourcePool(maker, 1, reset=reset, seconds=limit(reset))
    tools = ToolSet(tools_of(pool))
    assert [await episode(tools, page) for page in "ab"] == ["['a']", "['b']"]
    assert maker.closed == [1, 1]
    assert "ResourcePool(Maker): `reset` of a Browser failed" in caplog.text
    await all_places_are_free(pool)


@pytest.mark.parametrize("close", broken_resets())
async def test_an_object_that_does_not_close_keeps_no_place(
    close: Callable[[Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    class Stuck(Browser):
        def close(self) -> Any:
            return close(self)

    pool = ResourcePool(Maker(Stuck), 1, most_uses=1, seconds=limit(close))
    tools = ToolSet(tools_of(pool))
    assert [await episode(tools, page) for page in "ab"] == ["['a']", "['b']"]
    assert "ResourcePool(Maker): `close` of a Stuck failed" in caplog.text
    await all_places_are_free(pool)


@tool(seconds=0.05)
def stateless() -> str:
    """Exceeds its time limit, and has nothing to do with the pool."""
    HANGING.wait()
    return ""


def interrupted_tool(pool: ResourcePool, *, soon: bool, entered: threading.Event) -> Tool:
    @tool(state=pool, seconds=0.05, name="wait")
    async def wait_soon(browser: Browser) -> str:
        """Waits."""
        browser.pages.append("left")
        entered.set()
        await asyncio.sleep(FOREVER)
        return ""

    @tool(state=pool, seconds=0.05)
    def wait(browser: Browser) -> str:
        """Waits."""
        browser.pages.append("left")
        entered.set()
        HANGING.wait()
        return ""

    return wait_soon if soon else wait


@pytest.mark.parametrize("soon", [False, True])
async def test_an_object_that_a_call_may_still_use_is_not_reused(soon: bool) -> None:
    maker, entered = Maker(), threading.Event()
    pool = ResourcePool(maker, 1)
    tools = ToolSet([*tools_of(pool), interrupted_tool(pool, soon=soon, entered=entered)])
    opened = await tools.open(CONTEXT)
    assert "took longer" in (await opened.call("wait", {})).observation
    ending = asyncio.create_task(opened.close())
    if not soon:  # `close` waits a while for the call in the thread
        await asyncio.sleep(0)
        ending.cancel()
    await asyncio.wait([ending])
    assert [(one.resets, one.closed) for one in maker.made] == [(0, 1)]
    assert await episode(tools) == "['page']"


@pytest.mark.parametrize("soon", [False, True])
@pytest.mark.parametrize("cancel", ["the call", "no call"])
async def test_an_object_of_a_call_without_an_end_is_not_reused(soon: bool, cancel: str) -> None:
    """The call is cancelled, or the episode is closed while it runs."""
    maker, entered = Maker(), threading.Event()
    pool = ResourcePool(maker, 1)
    slow = interrupted_tool(pool, soon=soon, entered=entered)
    tools = ToolSet([*tools_of(pool), without_limit(slow)])
    opened = await tools.open(CONTEXT)
    call = asyncio.create_task(opened.call("wait", {}))
    await asyncio.to_thread(entered.wait)
    ending = asyncio.create_task(opened.close()) if cancel == "no call" else None
    call.cancel()
    await asyncio.wait([call])
    ending = ending or asyncio.create_task(opened.close())
    await asyncio.sleep(0)
    ending.cancel()  # `close` waits a while for the call in a thread
    await asyncio.wait([ending])
    assert [(one.resets, one.closed) for one in maker.made] == [(0, 1)]
    assert await episode(tools) == "['page']"


def without_limit(slow: Tool) -> Tool:
    """The tool with a time limit that its call does not exceed."""
    return dataclasses.replace(slow, seconds=FOREVER)


async def test_a_late_call_of_another_tool_does_not_cost_the_object() -> None:
    maker = Maker()
    opened = await ToolSet([*tools_of(ResourcePool(maker, 1)), stateless]).open(CONTEXT)
    assert "took longer" in (await opened.call("stateless", {})).observation
    ending = asyncio.create_task(opened.close())
    await asyncio.sleep(0)
    ending.cancel()
    await asyncio.wait([ending])
    assert [(one.resets, one.closed) for one in maker.made] == [(1, 0)]


async def test_an_exception_of_a_call_does_not_cost_the_object() -> None:
    maker = Maker()
    pool = ResourcePool(maker, 1)

    @tool(state=pool)
    async def fail(browser: Browser) -> str:
        """Fails."""
        raise asyncio.CancelledError("own")

    async with await ToolSet([fail]).open(CONTEXT) as opened:
        assert (await opened.call("fail", {})).status == "error"
    assert [(one.resets, one.closed) for one in maker.made] == [(1, 0)]


async def test_an_object_is_replaced_after_so_many_episodes() -> None:
    maker = Maker()
    tools = ToolSet(tools_of(ResourcePool(maker, 1, most_uses=2)))
    for _ in range(5):
        await episode(tools)
    assert [(one.resets, one.closed) for one in maker.made] == [(1, 1), (1, 1), (1, 0)]


class Simulator(Browser):
    """An object that is prepared for each episode. `breaks_after` episodes, it cannot be prepared."""

    breaks_after = 2

    def begin(self, context: ToolContext) -> None:
        if self.resets >= self.breaks_after:
            raise OSError("no display")
        self.pages.append(f"{context.seed} {context.fields['level']}")


class Broken(Simulator):
    breaks_after = 0


async def test_an_object_is_prepared_for_the_episode_and_an_old_one_that_fails_is_replaced() -> (
    None
):
    maker = Maker(Simulator)
    tools = ToolSet(tools_of(ResourcePool(maker, 1)))
    for seed in range(4):
        async with await tools.open(ToolContext(seed=seed, fields={"level": "A"})) as opened:
            assert (await opened.call("look", {})).observation == f"['{seed} A']"
    assert [(one.resets, one.closed) for one in maker.made] == [(2, 1), (2, 0)]


async def test_a_new_object_that_cannot_be_prepared_is_an_infrastructure_error() -> None:
    maker = Maker(Broken)
    pool = ResourcePool(maker, 1)
    for _ in range(2):
        with pytest.raises(InfrastructureError, match=r"`begin` of a new Broken .* no display"):
            await ToolSet(tools_of(pool)).open(CONTEXT)
    assert maker.closed == [1, 1]


@pytest.mark.parametrize("error", [ConfigError("no level"), UserCodeError("no level")])
@pytest.mark.parametrize("soon", [False, True])
@pytest.mark.parametrize("where", ["begin", "factory"])
async def test_an_error_of_the_users_code_or_input_is_raised_unchanged(
    where: str, soon: bool, error: Exception
) -> None:
    class Level(Browser):
        def begin(self, context: ToolContext) -> Any:
            return raising(error, soon=soon)(self)

    maker = Maker(Level)
    factory = partial(raising(error, soon=soon), None) if where == "factory" else maker
    pool = ResourcePool(factory, 1)
    with pytest.raises(type(error), match="no level") as raised:
        await ToolSet(tools_of(pool)).open(CONTEXT)
    assert raised.value is error
    assert maker.closed == [1] * (where == "begin")


async def test_a_factory_that_ends_the_process_is_an_infrastructure_error() -> None:
    def make() -> None:
        raise SystemExit(3)

    with pytest.raises(InfrastructureError, match="SystemExit: 3"):
        await ToolSet(tools_of(ResourcePool(make, 1, reset=id))).open(CONTEXT)


async def test_an_object_that_cannot_be_made_is_an_infrastructure_error() -> None:
    fails = iter([True, False])
    maker = Maker()

    def make() -> Browser:
        if next(fails):
            raise OSError("no memory")
        return maker()

    pool = ResourcePool(make, 1)
    tools = ToolSet(tools_of(pool))
    with pytest.raises(InfrastructureError, match=r"the state of the tool open .* no memory"):
        await tools.open(CONTEXT)
    assert await episode(tools) == "['page']"
    assert len(maker.made) == 1


@pytest.mark.parametrize("give_up", ["time limit", "cancellation"])
async def test_an_object_that_is_made_too_late_is_closed(give_up: str) -> None:
    """The episode waits for the factory's thread after its end, so that nothing is left behind."""
    maker, begun, go = Maker(), threading.Event(), threading.Event()

    def make() -> Browser:
        begun.set()
        go.wait()
        return maker()

    pool = ResourcePool(make, 1)
    limit = 0.05 if give_up == "time limit" else FOREVER
    work = asyncio.create_task(pool.borrow(CONTEXT, "open", limit))
    await asyncio.to_thread(begun.wait)
    if give_up == "time limit":
        await asyncio.sleep(0.1)
    else:
        work.cancel()
    await asyncio.sleep(0)
    go.set()
    await asyncio.wait([work])
    assert work.cancelled() or "within 0.05 seconds" in str(work.exception())
    assert maker.closed == [1]


async def test_a_factory_that_returns_something_else_than_a_new_object_stops_the_run() -> None:
    shared = Browser()
    pool = ResourcePool(lambda: shared, 2)
    tools = ToolSet(tools_of(pool))
    async with await tools.open(CONTEXT):
        with pytest.raises(UserCodeError, match="the factory returned the same object twice"):
            await tools.open(CONTEXT)
    with pytest.raises(UserCodeError, match="Event has no method `reset` — add the method"):
        await ToolSet(tools_of(ResourcePool(lambda: threading.Event(), 1))).open(CONTEXT)


async def _turns(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


@pytest.mark.parametrize("kind", [Browser, AsyncBrowser])
@pytest.mark.parametrize("step", range(5))
async def test_a_cancellation_at_any_point_loses_no_place_and_no_object(
    step: int, kind: type[Browser]
) -> None:
    """Episodes with two pools, cancelled after any number of turns of the event loop, once or twice."""
    makers = [Maker(kind), Maker(kind)]
    pools = [ResourcePool(maker.soon if kind is AsyncBrowser else maker, 2) for maker in makers]
    tools = ToolSet([*tools_of(pools[0])[1:], *tools_of(pools[1], "_more")[1:]])

    async def play() -> None:
        async with await tools.open(CONTEXT) as opened:
            shown = [await opened.call(name, {}) for name in ("look", "look_more")]
            assert [one.observation for one in shown] == ["[]", "[]"]
            for state in opened.states.values():
                state.pages.append("left")

    for turns in range(40):
        plays = [asyncio.create_task(play()) for _ in range(4)]
        await _turns(turns)
        for one in plays[step % 2 :: 2]:
            one.cancel()
        await _turns(step)
        for one in plays[::3]:
            one.cancel()
        done, _ = await asyncio.wait(plays, timeout=300)
        assert len(done) == len(plays)
        assert [one.exception() for one in plays if not one.cancelled()].count(None) == sum(
            not one.cancelled() for one in plays
        )
        for maker, pool in zip(makers, pools, strict=True):
            assert max(maker.closed, default=0) <= 1
            assert maker.closed.count(0) <= pool.places.size
    for pool in pools:
        await all_places_are_free(pool)
        await pool.close()
    for maker in makers:
        assert set(maker.closed) == {1}


async def test_a_cancelled_reset_in_a_thread_loses_no_place() -> None:
    maker = Maker()
    entered = threading.Event()

    def reset(browser: Browser) -> None:
        entered.set()
        HANGING.wait()

    pool = ResourcePool(maker, 1, reset=reset, seconds=FOREVER)
    opened = await ToolSet(tools_of(pool)).open(CONTEXT)
    ending = asyncio.create_task(opened.close())
    await asyncio.to_thread(entered.wait)
    ending.cancel()
    await asyncio.wait([ending])
    assert ending.cancelled()
    assert maker.closed == [1]
    async with asyncio.timeout(300):
        await (await ToolSet(tools_of(ResourcePool(maker, 1))).open(CONTEXT)).close()
        await pool.places.acquire()


def in_thread(work: Callable[[], Any]) -> asyncio.Task[Any]:
    return asyncio.create_task(asyncio.to_thread(work))


@pytest.mark.parametrize("kind", [Browser, AsyncBrowser])
async def test_loops_in_two_threads_are_independent(kind: type[Browser]) -> None:
    """Each has its own place and its own object, and the end of one closes only its own."""
    maker = Maker(kind)
    pool = ResourcePool(maker, 1)
    tools = ToolSet(tools_of(pool))
    numbers: list[int] = []

    async def other() -> str:
        numbers.append(pool.places.number)
        assert await episode(tools) == "['page']"
        return await episode(tools)

    async with await tools.open(CONTEXT) as opened:  # occupies the only place of this loop
        assert (await opened.call("open", {"page": "mine"})).observation == "['mine']"
        assert await in_thread(lambda: asyncio.run(other())) == "['page']"
        assert maker.closed == [0, 1]
        assert (await opened.call("look", {})).observation == "['mine']"
    assert await episode(tools) == "['page']"
    await pool.close()
    assert maker.closed == [1, 1]
    assert numbers == [pool.places.number]


async def test_loops_that_play_at_the_same_time_use_only_their_own_objects() -> None:
    maker = Maker(AsyncBrowser)
    tools = ToolSet(tools_of(ResourcePool(maker, 2)))
    users: dict[int, set[asyncio.AbstractEventLoop]] = {}

    async def play() -> None:
        for _ in range(20):
            async with await tools.open(CONTEXT) as opened:
                (browser,) = opened.states.values()
                users.setdefault(id(browser), set()).add(asyncio.get_running_loop())
                assert (await opened.call("open", {"page": "a"})).observation == "['a']"

    async def several() -> None:
        await asyncio.gather(*(play() for _ in range(3)))

    async with asyncio.timeout(300):
        await asyncio.gather(*(in_thread(lambda: asyncio.run(several())) for _ in range(3)))
    assert {len(loops) for loops in users.values()} == {1}
    assert maker.closed == [1] * 6


async def test_a_loop_that_was_closed_too_early_does_not_disturb_the_next() -> None:
    """Its episode was never closed, and still holds the only place."""
    maker = Maker()
    tools = ToolSet(tools_of(ResourcePool(maker, 1)))

    def unusual() -> None:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(tools.open(CONTEXT))
        loop.close()

    await in_thread(unusual)
    assert await episode(tools) == "['page']"
    assert maker.closed == [0, 0]


@pytest.mark.parametrize("kind", [Browser, AsyncBrowser])
async def test_the_end_of_an_event_loop_closes_its_objects(kind: type[Browser]) -> None:
    """Also that of an episode that was never closed."""
    maker = Maker(kind)
    tools = ToolSet(tools_of(ResourcePool(maker, 3)))
    kept: list[Any] = []

    async def main() -> None:
        await asyncio.gather(*(episode(tools) for _ in range(2)))
        kept.append(await tools.open(CONTEXT))

    await in_thread(lambda: asyncio.run(main()))
    assert maker.closed
    assert set(maker.closed) == {1}


async def test_a_close_that_the_end_of_its_event_loop_cancels_is_repeated() -> None:
    class Slow(AsyncBrowser):
        calls = 0

        async def close(self) -> None:  # type: ignore[override]
            self.calls += 1
            if self.calls == 1:
                await asyncio.sleep(FOREVER)
            await super().close()

    maker = Maker(Slow)
    pool = ResourcePool(maker, 1, seconds=FOREVER)

    async def main() -> asyncio.Task[None]:
        await episode(ToolSet(tools_of(pool)))
        closing = asyncio.create_task(pool.close())
        while not maker.made[0].calls:  # noqa: ASYNC110 (it is one turn of the loop)
            await asyncio.sleep(0)
        return closing

    assert (await in_thread(lambda: asyncio.run(main()))).cancelled()
    assert [(one.calls, one.closed) for one in maker.made] == [(2, 1)]


async def test_a_pool_that_nobody_uses_any_more_closes_its_objects() -> None:
    closed = asyncio.Event()

    class Link(AsyncBrowser):
        async def close(self) -> None:  # type: ignore[override]
            closed.set()

    await episode(ToolSet(tools_of(ResourcePool(Link, 1))))
    gc.collect()
    await asyncio.wait_for(closed.wait(), 300)


async def test_idle_objects_can_be_closed() -> None:
    maker = Maker(AsyncBrowser)
    pool = ResourcePool(maker, 2)
    tools = ToolSet(tools_of(pool))
    async with await tools.open(CONTEXT):
        await episode(tools)
        await pool.close()
        assert maker.closed == [0, 1]
    assert maker.closed == [0, 1]
    await pool.close()
    assert maker.closed == [1, 1]
    assert await episode(tools) == "['page']"


async def test_an_object_that_is_being_closed_keeps_its_place() -> None:
    closing, go = asyncio.Event(), asyncio.Event()

    class Slow(AsyncBrowser):
        async def close(self) -> None:  # type: ignore[override]
            closing.set()
            await go.wait()
            await super().close()

    maker = Maker(Slow)
    pool = ResourcePool(maker, 1, seconds=FOREVER)
    tools = ToolSet(tools_of(pool))
    await episode(tools)
    closes = [asyncio.create_task(pool.close()) for _ in range(2)]
    await closing.wait()
    next_episode = asyncio.create_task(episode(tools))
    await _turns(20)
    assert len(maker.made) == 1
    go.set()
    await asyncio.gather(*closes)
    assert await next_episode == "['page']"
    assert maker.closed == [1, 0]


@pytest.mark.parametrize("what", ["reset", "close"])
async def test_too_many_calls_that_hang_stop_the_run_and_lose_no_place(what: str) -> None:
    go = threading.Event()

    class Frozen(Browser):
        def reset(self) -> None:
            if what == "reset":
                go.wait()

        def close(self) -> None:
            if what == "close":
                go.wait()
            super().close()

    maker, size = Maker(Frozen), tool_threads.MOST_OF_TOOL
    most_uses = 1 if what == "close" else None
    pool = ResourcePool(maker, size, most_uses=most_uses, seconds=0.5)
    tools = ToolSet(tools_of(pool))
    try:
        opened = [await tools.open(CONTEXT) for _ in range(size)]
        await asyncio.gather(*(one.close() for one in opened))
        last = await tools.open(CONTEXT)
        with pytest.raises(HangingToolError, match="64 earlier calls still run"):
            await last.close()
    finally:
        go.set()
    while tool_threads.abandoned_count((pool, what)):  # noqa: ASYNC110 (they end soon)
        await asyncio.sleep(0.01)
    await all_places_are_free(pool)


PROGRAM = """
import asyncio
import subprocess
import sys
import time

from air.tools import ResourcePool, ToolContext, ToolSet, tool


class Browser:
    def __init__(self):
        self.process = subprocess.Popen(["sleep", "100000"])
        print(self.process.pid, flush=True)
        if sys.argv[1] == "making":
            time.sleep(0.2)

    def reset(self):
        pass

    def close(self):
        self.process.kill()
        self.process.wait()
        if sys.argv[1] == "hanging":
            time.sleep(100000)
        if sys.argv[1] == "exiting":
            raise SystemExit(3)


@tool(state=ResourcePool(Browser, size=2, seconds=2 if sys.argv[1] == "hanging" else 300))
async def look(browser: Browser) -> str:
    '''Looks.'''
    if sys.argv[1] in ("interrupted", "making"):
        await asyncio.sleep(100000)
    return ""


async def main():
    async with await ToolSet([look]).open(ToolContext(seed=0)) as tools:
        await tools.call("look", {})
    return tools


if sys.argv[1] in ("left", "hanging", "exiting"):
    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    loop.close()
else:
    asyncio.run(main())
"""


@pytest.mark.parametrize("how", ["ended", "interrupted", "making", "left", "hanging", "exiting"])
def test_no_process_of_an_object_is_left_after_the_end(how: str, tmp_path: Path) -> None:
    """Also after Ctrl-C in a call or while the object is made, and if the loop ends in an unusual way, also
    if `close` then hangs, or raises what no `except Exception` catches."""
    program = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(PROGRAM), how]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        browser = int(process.stdout.readline())
        if how in ("interrupted", "making"):
            process.send_signal(signal.SIGINT)
        process.wait(300)
    with pytest.raises(ProcessLookupError):
        os.kill(browser, 0)


class NoReset:
    pass


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (
            lambda: ResourcePool(Browser, 0),
            "ResourcePool(Browser): size must be a positive integer",
        ),
        (lambda: ResourcePool(Browser, True), "size must be a positive integer"),
        (lambda: ResourcePool(Browser, 2.0), "size must be a positive integer"),  # type: ignore[arg-type]
        (lambda: ResourcePool(Browser, 1, most_uses=0), "most_uses must be a positive integer"),
        *(
            (partial(ResourcePool, Browser, 1, seconds=wrong), "seconds must be a positive number")
            for wrong in (0, "30", None, True, math.nan, math.inf)
        ),
        (lambda: ResourcePool(Browser, 1, reset="clear"), "reset must be a function"),  # type: ignore[arg-type]
        (lambda: ResourcePool(3, 1), "ResourcePool: 3 is no factory"),  # type: ignore[arg-type]
        (lambda: ResourcePool(NoReset, 1), "NoReset has no method `reset` — add the method"),
        (lambda: ResourcePool(ToolContext, 1), "the factory requires arguments"),
        (
            lambda: tools_of(ResourcePool(Browser, 1), pool_size=1),
            "pool_size cannot be used together with a ResourcePool — leave pool_size out",
        ),
    ],
)
def test_wrong_arguments_are_refused(make: Callable[[], Any], part: str) -> None:
    with pytest.raises(ConfigError) as raised:
        make()
    assert part in str(raised.value)
    assert "\n" not in str(raised.value)


def test_other_factories_are_accepted() -> None:
    for factory in (partial(Maker, Browser), lambda: 0, dict):
        assert ResourcePool(factory, 1, reset=id).size == 1


KIND = """
class Kind:
    {body}

    def reset(self):
        pass
"""


def test_the_digest_depends_on_the_source_of_the_factory_and_of_the_reset(tmp_path: Path) -> None:
    def digest(body: str, *, resets: bool) -> str:
        file = tmp_path / f"kind_{len(list(tmp_path.iterdir()))}.py"
        file.write_text(KIND.format(body=body))
        kind = plugin(f"{file.name}:Kind", tmp_path)
        pool = ResourcePool(Browser, 1, reset=kind.reset) if resets else ResourcePool(kind, 1)
        return ToolSet(tools_of(pool)).digest

    for resets in (False, True):
        one, two, same = (
            digest(body, resets=resets) for body in ("n = 1", "n = 2", "n = 2  # a comment")
        )
        assert one != two == same


async def test_a_wait_for_a_thread_does_not_count_towards_the_time_limit() -> None:
    """Else a busy machine, or a pool with more objects than threads, would cost objects."""
    go = threading.Event()
    maker = Maker()
    opened = await ToolSet(tools_of(ResourcePool(maker, 1, seconds=2))).open(CONTEXT)
    try:
        busy = [
            await tool_threads.start(go.wait, number, "busy")
            for number in range(tool_threads.MOST_THREADS)
        ]
        ending = asyncio.create_task(opened.close())
        await asyncio.sleep(2.5)
        assert not ending.done()
    finally:
        go.set()
    await asyncio.gather(ending, *(work.outcome for work in busy))
    assert [(one.resets, one.closed) for one in maker.made] == [(1, 0)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
def test_a_forked_process_begins_anew(tmp_path: Path) -> None:
    """It neither uses nor closes the objects of its parent, and waits for none of its places."""
    program = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(FORK)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(program, capture_output=True, text=True, env=env, timeout=300)
    assert done.stdout.split() == ["child", "child", "closed", "parent", "parent", "closed"]


FORK = """
import asyncio
import os

from air.tools import ResourcePool, ToolContext, ToolSet, tool

PARENT = os.getpid()


def name(process):
    return "parent" if process == PARENT else "child"


class Browser:
    def __init__(self):
        self.process = os.getpid()

    def reset(self):
        pass

    def close(self):
        print(name(os.getpid()), "closed" if os.getpid() == self.process else "wrong", flush=True)


@tool(state=ResourcePool(Browser, size=1))
async def look(browser: Browser) -> str:
    '''Looks.'''
    return name(browser.process)


async def main():
    async with await ToolSet([look]).open(ToolContext(seed=0)) as tools:
        print((await tools.call("look", {})).observation, flush=True)


loop = asyncio.new_event_loop()
opened = loop.run_until_complete(ToolSet([look]).open(ToolContext(seed=0)))
child = os.fork()
if not child:
    asyncio.run(main())
    raise SystemExit
os.waitpid(child, 0)
loop.run_until_complete(opened.close())
loop.run_until_complete(main())
loop.run_until_complete(loop.shutdown_asyncgens())
loop.close()
"""
