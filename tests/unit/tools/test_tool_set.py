"""Episodes with tools: states, pools, limits, and whose failure a failure is."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from air.errors import BoxDiedError, ConfigError, HangingToolError, InfrastructureError
from air.sandbox.contract.box import BoxSpec
from air.tools import (
    OpenTools,
    ResourcePool,
    Tool,
    ToolContext,
    ToolError,
    ToolResult,
    ToolSet,
    tool,
)
from air.tools import threads as tool_threads

CONTEXT = ToolContext(seed=7)


@tool
def double(number: int) -> str:
    """Doubles a number."""
    return str(2 * number)


@tool
async def double_soon(number: float, note: str = "") -> str:
    """Doubles a number later."""
    await asyncio.sleep(0)
    return f"{2 * number}{note}"


async def called(one: Tool, arguments: Any, context: ToolContext = CONTEXT) -> ToolResult:
    async with await ToolSet([one]).open(context) as tools:
        return await tools.call(one.name, arguments)


async def test_results() -> None:
    assert await called(double, {"number": 3}) == ToolResult("double", {"number": 3}, "6")
    assert (await called(double, '{"number": 3.0}')).observation == "6"
    assert (await called(double_soon, {"number": 1.5, "note": "!"})).observation == "3.0!"


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({}, "number is missing"),
        ({"number": "3"}, "must be of type integer"),
        ({"number": True}, "must be of type integer"),
        ({"number": 3.5}, "must be of type integer"),
        ({"number": 2**64}, "64 bits"),
        ({"number": 3, "other": 1}, "other is unknown"),
        ("", "number is missing"),
        ("3", "must be a JSON object"),
        ([3], "must be a JSON object"),
        ('{"number": NaN}', "NaN"),
        ('{"number": 1e999}', "too large"),
        ('{"number": 3', "not complete"),
        ('{"number": "\\ud800"}', "surrogate"),
        ("[" * 100_000, "nested too deeply"),
        ('{"number": ' + "[" * 50 + "]" * 50 + "}", "nested too deeply"),
        ('{"number": ' + "9" * 5000 + "}", "Exceeds the limit"),
        ("x" * 1_000_001, "1000000 characters"),
        ({"number": "x" * 1_000_001}, "1000000 characters"),
    ],
)
async def test_wrong_arguments_are_told(arguments: Any, part: str) -> None:
    result = await called(double, arguments)
    assert result.status == "error"
    assert result.observation.startswith("Wrong arguments of double: ")
    assert part in result.observation
    assert len(result.observation) < 500


async def test_an_unknown_tool_is_told() -> None:
    async with await ToolSet([double, double_soon]).open(CONTEXT) as tools:
        result = await tools.call("dobule\ud800", {})
    assert result.status == "error"
    assert "The tools are: double, double_soon." in result.observation
    result.observation.encode()
    result.name.encode()


def failing(error: BaseException) -> tuple[Tool, Tool]:
    @tool
    def fail() -> str:
        """Fails."""
        raise error

    @tool
    async def fail_soon() -> str:
        """Fails."""
        raise error

    return fail, fail_soon


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ToolError("No."), "No."),
        (ValueError("bad"), "The tool fail failed: ValueError: bad"),
        (KeyError(), "The tool fail failed: KeyError"),
        (
            FileNotFoundError(2, "No such file", "/home/me/secret"),
            "FileNotFoundError: No such file",
        ),
        (StopIteration(3), "StopIteration"),
        (SystemExit(1), "SystemExit: 1"),
        (RecursionError("deep"), "RecursionError: deep"),
        (ConfigError("bad key"), "ConfigError: bad key"),
        (TimeoutError("mine"), "TimeoutError: mine"),
        (asyncio.CancelledError("mine"), "CancelledError: mine"),
        (ValueError("x" * 5000), "ValueError: xxx"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
async def test_a_failure_of_a_tool_is_told(error: BaseException, told: str) -> None:
    for one in failing(error):
        result = await called(one, {})
        assert result.status == "error"
        assert told.replace("fail ", f"{one.name} ") in result.observation
        assert "/home/me" not in result.observation
        assert "Traceback" not in result.observation
        assert len(result.observation) < 600


@pytest.mark.parametrize(
    "error",
    [
        InfrastructureError("away"),
        BoxDiedError("gone"),
        ExceptionGroup("several", [ValueError("x"), InfrastructureError("away")]),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_a_failure_of_ours_passes(error: Exception) -> None:
    for one in failing(error):
        with pytest.raises(InfrastructureError):
            await called(one, {})


@pytest.mark.parametrize("length", [2048, 2049, 5000, 1_000_000])
async def test_a_long_observation_loses_its_middle(length: int) -> None:
    text = "a" * (length // 2) + "z" * (length - length // 2)
    result = await called(tool(name="give", description="Gives.")(lambda: text), {})
    assert len(result.observation) <= 2048
    if length == 2048:
        assert result.observation == text
        return
    head, _, rest = result.observation.partition("\n[… ")
    number, _, tail = rest.partition(" characters cut …]\n")
    assert len(head) + int(number) + len(tail) == length
    assert set(head) == {"a"}
    assert set(tail) == {"z"}


class Notes:
    """A state of an episode."""

    def __init__(self, context: ToolContext) -> None:
        self.seed = context.seed
        self.lines: list[str] = []
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


class Kept:
    """Makes states and keeps them for the test; its `close` and itself are sync or async."""

    def __init__(self) -> None:
        self.made: list[Notes] = []

    def __call__(self, context: ToolContext) -> Notes:
        self.made.append(Notes(context))
        return self.made[-1]


def note_tools(make: Callable[[ToolContext], Any], **settings: Any) -> list[Tool]:
    @tool(state=make, **settings)
    def write(notes: Notes, line: str) -> str:
        """Writes."""
        notes.lines.append(line)
        return "Written."

    @tool(state=make, **settings)
    async def read(notes: Notes) -> str:
        """Reads."""
        return f"{notes.seed}: {' '.join(notes.lines)}"

    return [write, read]


async def test_tools_share_the_state_of_an_episode() -> None:
    make = Kept()
    tools = ToolSet(note_tools(make))
    first = await tools.open(ToolContext(seed=1))
    second = await tools.open(ToolContext(seed=2))
    await first.call("write", {"line": "one"})
    await second.call("write", {"line": "two"})
    assert (await first.call("read", {})).observation == "1: one"
    assert (await second.call("read", {})).observation == "2: two"
    await first.close()
    assert [notes.closed for notes in make.made] == [1, 0]
    await first.close()
    await second.close()
    assert [notes.closed for notes in make.made] == [1, 1]
    with pytest.raises(RuntimeError):
        await first.call("read", {})


async def test_a_state_may_be_made_and_closed_async() -> None:
    closed: list[str] = []

    class Link:
        async def close(self) -> None:
            await asyncio.sleep(0)
            closed.append("link")

    async def connect(context: ToolContext) -> Link:
        await asyncio.sleep(0)
        return Link()

    async with await ToolSet(note_tools(connect)).open(CONTEXT):
        pass
    assert closed == ["link"]


async def test_a_state_that_cannot_be_made_is_a_failure_of_ours() -> None:
    make = Kept()

    def broken(context: ToolContext) -> Notes:
        raise OSError("no disk")

    @tool(state=broken)
    def other(state: Notes) -> str:
        """Does."""
        return ""

    with pytest.raises(InfrastructureError, match="the state of the tool other"):
        await ToolSet([*note_tools(make), other]).open(CONTEXT)
    assert [notes.closed for notes in make.made] == [1]


async def test_an_agent_cannot_mask_its_episode_by_a_state_that_does_not_close(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(Notes):
        def close(self) -> None:
            raise OSError("still busy")

    make = Kept()
    tools = await ToolSet([*note_tools(make), *renamed(note_tools(Broken))]).open(CONTEXT)
    await tools.close()
    assert "could not be closed" in caplog.text
    assert [notes.closed for notes in make.made] == [1]


def renamed(tools: list[Tool]) -> list[Tool]:
    return [dataclasses.replace(one, name=f"{one.name}_more") for one in tools]


async def test_a_failure_of_ours_at_the_end_is_raised_after_all_states_are_closed() -> None:
    class Gone(Notes):
        async def close(self) -> None:  # type: ignore[override]
            raise BoxDiedError("gone")

    make = Kept()
    tools = await ToolSet([*note_tools(make), *renamed(note_tools(Gone))]).open(CONTEXT)
    with pytest.raises(BoxDiedError):
        await tools.close()
    assert [notes.closed for notes in make.made] == [1]


async def test_calls_of_one_state_wait_for_each_other() -> None:
    inside = 0
    most = 0

    @tool(state=Kept())
    async def step(state: Notes) -> str:
        """Steps."""
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0.01)
        inside -= 1
        return ""

    async with await ToolSet([step]).open(CONTEXT) as tools:
        await asyncio.gather(*(tools.call("step", {}) for _ in range(4)))
    assert most == 1


async def test_calls_at_once_are_bounded() -> None:
    inside = 0
    most = 0

    @tool(calls_at_once=2)
    async def step() -> str:
        """Steps."""
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0.01)
        inside -= 1
        return ""

    async def episode() -> None:
        async with await ToolSet([step]).open(CONTEXT) as tools:
            await asyncio.gather(*(tools.call("step", {}) for _ in range(3)))

    await asyncio.gather(*(episode() for _ in range(3)))
    assert most == 2


async def test_a_pool_bounds_episodes_with_states() -> None:
    make = Kept()
    tools = ToolSet(note_tools(make, pool_size=1))
    first = await tools.open(CONTEXT)
    waiting = [asyncio.create_task(tools.open(CONTEXT)) for _ in range(3)]
    await asyncio.sleep(0.01)
    assert not any(task.done() for task in waiting)
    waiting[0].cancel()
    await asyncio.wait(waiting[:1])
    await first.close()
    second = await waiting[1]
    assert not waiting[2].done()
    await second.close()
    await (await waiting[2]).close()
    assert len(make.made) == 3
    await (await tools.open(CONTEXT)).close()


async def test_a_pool_serves_several_event_loops() -> None:
    make = Kept()
    tools = ToolSet(note_tools(make, pool_size=1))
    first = await tools.open(CONTEXT)

    def elsewhere() -> str:
        async def play() -> str:
            async with await tools.open(CONTEXT) as opened:
                return (await opened.call("read", {})).observation

        return asyncio.run(play())

    other = asyncio.create_task(asyncio.to_thread(elsewhere))
    await asyncio.sleep(0.05)
    assert not other.done()
    await first.close()
    assert await other == "7: "


async def test_a_call_that_takes_too_long_is_told() -> None:
    go = threading.Event()

    @tool(seconds=0.05)
    def wait() -> str:
        """Waits."""
        go.wait()
        return ""

    @tool(seconds=0.05)
    async def wait_soon() -> str:
        """Waits."""
        await asyncio.sleep(3600)
        return ""

    async with await ToolSet([wait, wait_soon, double]).open(CONTEXT) as tools:
        for name in ("wait", "wait_soon"):
            result = await tools.call(name, {})
            told = (result.status, result.observation)
            assert told == ("error", f"The call of {name} took longer than 0.05 seconds.")
        result = await tools.call("wait", {})
        assert result.observation == "An earlier call of wait still runs."
        result = await tools.call("double", {"number": 2})
        assert result.observation == "An earlier call of wait still runs."
        assert "took longer" in (await tools.call("wait_soon", {})).observation
        go.set()


async def test_a_call_may_wait_longer_than_its_limit_but_the_model_is_told_the_limit() -> None:
    @tool(seconds=0.05)
    async def wait(seconds: float) -> str:
        """Waits."""
        await asyncio.sleep(seconds)
        return "done"

    patient = dataclasses.replace(wait, patience=3600)
    assert (await called(patient, {"seconds": 0.1})).observation == "done"
    result = await called(dataclasses.replace(wait, patience=0.05), {"seconds": 3600})
    assert result.observation == "The call of wait took longer than 0.05 seconds."


async def test_calls_that_hang_take_no_thread_from_other_episodes() -> None:
    """At the limit, a call of the tool stops the run if the episode's own calls have ended. It is the model's
    doing in an episode with a call that still runs."""
    go = threading.Event()

    @tool(seconds=0.05)
    def hang() -> str:
        """Hangs."""
        go.wait()
        return "done"

    opened = [await ToolSet([hang]).open(CONTEXT) for _ in range(tool_threads.MOST_OF_TOOL)]
    results = await asyncio.gather(*(tools.call("hang", {}) for tools in opened))
    late = "The call of hang took longer than 0.05 seconds."
    assert {result.observation for result in results} == {late}
    assert (await called(double, {"number": 2})).observation == "4"
    with pytest.raises(HangingToolError, match=HANGS):
        await called(hang, {})
    own = await opened[0].call("hang", {})
    assert (own.status, own.observation) == ("error", "An earlier call of hang still runs.")
    go.set()
    await asyncio.gather(*(tools.close() for tools in opened))
    assert tool_threads.abandoned_count(hang.function) == 0
    assert (await called(dataclasses.replace(hang, seconds=3600), {})).observation == "done"


HANGS = "tool hang: 64 earlier calls still run .* give its function a time limit of its own"


async def test_no_tool_has_more_threads_than_its_limit() -> None:
    """All calls begin before one is abandoned."""
    go, lock = threading.Event(), threading.Lock()
    threads = 0

    @tool(seconds=0.05)
    def hang() -> str:
        """Hangs."""
        nonlocal threads
        with lock:
            threads += 1
        go.wait()
        return ""

    limit = tool_threads.MOST_OF_TOOL
    opened = [await ToolSet([hang]).open(CONTEXT) for _ in range(3 * limit)]
    calls = (tools.call("hang", {}) for tools in opened)
    ends = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(isinstance(end, ToolResult) for end in ends) == limit
    assert sum(isinstance(end, HangingToolError) for end in ends) == 2 * limit
    assert tool_threads.abandoned_count(hang.function) == limit
    go.set()
    await asyncio.gather(*(tools.close() for tools in opened))
    assert threads == limit


async def test_a_call_waits_while_abandoned_and_running_threads_reach_the_limit() -> None:
    go, end = threading.Event(), threading.Event()
    limit = tool_threads.MOST_OF_TOOL
    abandoned = [await tool_threads.start(go.wait, "owner", "slow") for _ in range(limit // 2)]
    for work in abandoned:
        work.abandon()
    running = [await tool_threads.start(end.wait, "owner", "slow") for _ in range(limit // 2)]
    further = asyncio.create_task(tool_threads.start(end.wait, "owner", "slow"))
    other = await tool_threads.start(lambda: "other", "other", "other")
    assert (await other.outcome).value == "other"
    assert not further.done()
    end.set()
    await asyncio.gather(*(work.outcome for work in [*running, await further]))
    go.set()
    await asyncio.gather(*(work.outcome for work in abandoned))
    assert tool_threads.abandoned_count("owner") == 0


async def test_a_cancelled_wait_for_a_thread_takes_no_place() -> None:
    go = threading.Event()
    places = range(tool_threads.MOST_THREADS)
    busy = [await tool_threads.start(go.wait, number, "busy") for number in places]
    waiting = [asyncio.create_task(tool_threads.start(str, n, "further")) for n in places]
    await asyncio.sleep(0)
    for task in waiting[1:]:
        task.cancel()
    go.set()
    await asyncio.wait(waiting)
    assert [task.cancelled() for task in waiting] == [False] + [True] * (len(waiting) - 1)
    await asyncio.gather(*(work.outcome for work in busy), waiting[0].result().outcome)
    again = [await tool_threads.start(str, number, "again") for number in places]
    await asyncio.gather(*(work.outcome for work in again))


@contextlib.contextmanager
def releasing(*events: threading.Event) -> Iterator[None]:
    """Context manager: sets the events at its end, so that a failed test leaves no busy thread."""
    try:
        yield
    finally:
        for event in events:
            event.set()


async def test_no_free_thread_for_long_stops_the_run_and_names_the_tools_with_threads() -> None:
    """Else agents could leave their episodes out of training by slow calls."""
    go, places = threading.Event(), range(tool_threads.MOST_THREADS)
    message = r"tool hang: no thread .* for the tool double within 0\.05 seconds.*: hang \(64\)"
    with releasing(go):
        busy = [await tool_threads.start(go.wait, "owner", "hang") for _ in places]
        with pytest.raises(HangingToolError, match=message):
            await tool_threads.start(go.wait, "another", "double", patience=0.05)
    await asyncio.gather(*(work.outcome for work in busy))
    assert (await called(double, {"number": 2})).observation == "4"


@pytest.mark.parametrize("frees", ["an abandoned call", "a call that ends"])
async def test_a_call_waits_without_limit_while_threads_become_free(frees: str) -> None:
    """As long as calls before it get threads, the calls of other episodes are slow, but do not hang."""
    go, patience = threading.Event(), 1.0
    events = [threading.Event() for _ in range(tool_threads.MOST_THREADS)]
    with releasing(go, *events):
        busy = [await tool_threads.start(one.wait, n, "slow") for n, one in enumerate(events)]
        before = [asyncio.create_task(tool_threads.start(go.wait, 0, "slow")) for _ in events]
        await asyncio.sleep(0)
        last = asyncio.create_task(tool_threads.start(str, "last", "last", patience=patience))
        for event, work in zip(events[:25], busy, strict=False):
            await asyncio.sleep(patience / 10)
            event.set() if frees == "a call that ends" else work.abandon()
        assert not last.done()
    started = await asyncio.gather(*before, last)
    await asyncio.gather(*(work.outcome for work in [*busy, *started]))


async def test_a_call_waits_as_long_as_a_running_call_may_take() -> None:
    go, places = threading.Event(), range(tool_threads.MOST_THREADS)
    with releasing(go):
        busy = [await tool_threads.start(go.wait, n, "slow", seconds=3600) for n in places]
        further = asyncio.create_task(tool_threads.start(str, "further", "further", patience=0.01))
        await asyncio.sleep(0.1)
        assert not further.done()
    await asyncio.gather(*(work.outcome for work in [*busy, await further]))


class Link:
    """A state that tells when it is closed."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()

    async def close(self) -> None:
        self.closed.set()


async def test_a_state_that_takes_too_long_is_a_failure_that_names_the_tool() -> None:
    go, link = threading.Event(), Link()

    def slow(context: ToolContext) -> Link:
        go.wait()
        return link

    async def slow_soon(context: ToolContext) -> Link:
        await asyncio.sleep(3600)
        raise AssertionError("unreachable")

    for make in (slow, slow_soon):
        (write, _) = note_tools(make)
        assert write.state_limit == 60
        assert dataclasses.replace(write, seconds=90).state_limit == 90
        short = dataclasses.replace(write, state_seconds=0.05)
        with pytest.raises(InfrastructureError, match=r"tool write .* within 0\.05 seconds"):
            await ToolSet([short]).open(CONTEXT)
    assert tool_threads.abandoned_count(slow) == 1
    go.set()
    await link.closed.wait()  # nobody else would close it
    assert tool_threads.abandoned_count(slow) == 0


async def test_a_cancelled_end_closes_every_state_and_is_cancelled() -> None:
    closing, closed = asyncio.Event(), []

    class Kept:
        def __init__(self, name: str) -> None:
            self.name = name

        async def close(self) -> None:
            if self.name == "second":
                closing.set()
                await asyncio.sleep(3600)
            closed.append(self.name)

    opened = OpenTools({})
    opened.states.update({name: Kept(name) for name in ("first", "second", "third")})
    ending = asyncio.create_task(opened.close())
    await closing.wait()
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert closed == ["third", "first"]


async def test_one_episode_uses_few_threads_at_once() -> None:
    go, entered = threading.Event(), threading.Semaphore(0)
    inside = most = 0
    lock = threading.Lock()

    @tool
    def wait() -> str:
        """Waits."""
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        entered.release()
        go.wait()
        with lock:
            inside -= 1
        return "done"

    async with await ToolSet([wait]).open(CONTEXT) as tools:
        calls = [
            asyncio.create_task(tools.call("wait", {})) for _ in range(tool_threads.MOST_THREADS)
        ]
        await asyncio.to_thread(entered.acquire)
        assert (await called(double, {"number": 2})).observation == "4"
        go.set()
        assert {(await call).observation for call in calls} == {"done"}
    assert most <= 4


async def test_a_cancelled_call_is_cancelled() -> None:
    @tool
    async def wait() -> str:
        """Waits."""
        await asyncio.sleep(3600)
        return ""

    go = threading.Event()

    @tool
    def block() -> str:
        """Blocks."""
        go.wait()
        return ""

    async with await ToolSet([wait, block]).open(CONTEXT) as tools:
        for name in ("wait", "block"):
            task = asyncio.create_task(tools.call(name, {}))
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        go.set()


def test_schemas_and_text() -> None:
    tools = ToolSet([double, double_soon])
    assert [schema["function"]["name"] for schema in tools.schemas] == ["double", "double_soon"]
    assert tools.text.startswith("double(number): Doubles a number.\n  number (integer)\n")
    assert json.dumps(tools.schemas)
    assert not ToolSet([])
    assert tools.box is None


def test_two_tools_that_decide_the_final_answer_are_refused() -> None:
    def deciding(name: str) -> Tool:
        made = tool(name=name, description="Plays.", state=Kept(), outcome=str)
        return made(lambda state: "")

    with pytest.raises(ConfigError, match="a and b each decide the final answer"):
        ToolSet([deciding("a"), double, deciding("b")])
    with pytest.raises(ConfigError, match="only for tools with a state"):
        tool(name="a", description="Plays.", outcome=str)(lambda: "")


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="two tools have the name 'double'"):
        ToolSet([double, double])


async def test_tools_agree_on_a_box() -> None:
    def in_box(name: str, spec: BoxSpec) -> Tool:
        return tool(name=name, description="Does.", box=spec)(lambda: "")

    small, large = BoxSpec(), BoxSpec(image="other")
    tools = ToolSet([double, in_box("a", small), in_box("b", BoxSpec())])
    assert tools.box == small
    with pytest.raises(ConfigError, match="`a` and `b` need different boxes"):
        ToolSet([in_box("a", small), in_box("b", large)])
    with pytest.raises(ConfigError, match="need a box"):
        await tools.open(CONTEXT)


def test_the_digest_names_what_decides_results() -> None:
    digests = {
        ToolSet(tools).digest
        for tools in (
            [double],
            [double_soon],
            [dataclasses.replace(double, max_length=100)],
            [dataclasses.replace(double, digest="corpus")],
            note_tools(Kept()),
        )
    }
    assert len(digests) == 5
    assert ToolSet([double]).digest in digests
    assert ToolSet([dataclasses.replace(double, replays=False)]).replays is False


class Lines(list[str]):
    """An object that episodes borrow one after the other."""

    def reset(self) -> None:
        self.clear()


async def test_a_call_that_waited_beyond_the_end_of_its_episode_does_not_run() -> None:
    """Otherwise it would use an object that another episode has borrowed by now."""
    pool = ResourcePool(Lines, size=1)

    @tool(state=pool)
    async def write(lines: Lines, text: str) -> str:
        """Writes."""
        lines.append(text)
        await asyncio.sleep(0)
        return ", ".join(lines)

    tools = ToolSet([write])
    first = await tools.open(ToolContext(seed=0))
    late = asyncio.create_task(first.call("write", {"text": "late"}))
    await first.call("write", {"text": "a"})  # `late` waits for this call
    await first.close()
    async with await tools.open(ToolContext(seed=1)) as second:
        with pytest.raises(RuntimeError, match="after the end of the episode"):
            await late
        assert (await second.call("write", {"text": "b"})).observation == "b"


async def test_a_call_beyond_its_time_costs_the_borrowed_object_whatever_it_raises() -> None:
    made: list[Lines] = []

    def make() -> Lines:
        made.append(Lines())
        return made[-1]

    @tool(state=ResourcePool(make, size=1), seconds=0.01)
    async def hang(lines: Lines, then: str) -> str:
        """Hangs."""
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if then == "raise":
                raise ConnectionError("the page was closed") from None
            if then == "return":
                return "a part"
            raise
        return ""

    tools = ToolSet([hang])
    for then in ("raise", "return", "end"):
        async with await tools.open(ToolContext(seed=0)) as opened:
            await opened.call("hang", {"then": then})
    assert len(made) == 3
