"""MCP servers that are programs in a box: a real one, and those that break every rule."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from air.errors import BoxDiedError, InfrastructureError
from air.sandbox import open_box
from air.sandbox.contract.box import Box, BoxSpec
from air.tools.mcp.in_box import ProgramChannel
from air.tools.mcp.listing import listing
from air.tools.mcp.server import Answer, Server, serving
from tests.until import until

HERE = Path(__file__).parent
LONG = 120.0
"""A time limit in seconds that nothing reaches."""


@pytest.fixture
async def box() -> AsyncIterator[Box]:
    async with await open_box(BoxSpec(provider="process")) as box:
        for name in ("raw_server.py", "notes_server.py"):
            await box.write(name, (HERE / name).read_bytes())
        yield box


def server(box: Box, *command: str, start_seconds: float = LONG) -> Server:
    channel = ProgramChannel(box, [sys.executable, *command])
    return Server("notes", channel, start_seconds=start_seconds)


def raw(box: Box, fault: str, start_seconds: float = LONG) -> Server:
    return server(box, "raw_server.py", fault, start_seconds=start_seconds)


async def ended(box: Box) -> None:
    """Kills what runs in a box, as an agent can."""
    for command in await box.commands():
        running = await box.attach(command.pid)
        await running.signal(9)
        await running.wait()


@pytest.mark.slow
async def test_a_real_server(box: Box) -> None:
    async with serving(server(box, "notes_server.py")) as notes:
        tools = listing("notes", await notes.tools(), ())
        assert [one.name for one in tools.tools][:2] == ["add", "fail"]
        assert tools.tools[0].description == "Adds a note."
        assert tools.tools[0].parameters["required"] == ["text"]
        assert not tools.refused
        assert await notes.call("add", {"text": "a"}, LONG) == Answer("1 notes: a")
        assert await notes.call("add", {"text": "b"}, LONG) == Answer("2 notes: a, b")
        failed = await notes.call("fail", {"reason": "no luck"}, LONG)
        assert failed.error
        assert "no luck" in failed.text
        picture = await notes.call("picture", {}, LONG)
        assert picture == Answer("[image (image/png, 100 bytes): it cannot be shown]")
        assert await notes.call("numbers", {}, LONG) == Answer("1\n2")
        assert (await notes.call("nothing", {}, LONG)).error
        ended = await notes.call("end", {}, LONG)
        assert ended.error
        assert "its program has ended (exit 3)" in ended.text
        assert await notes.call("add", {"text": "c"}, LONG) == Answer("1 notes: c")


@pytest.mark.parametrize("fault", ["well", "forging", "talkative"])
async def test_what_else_a_server_sends_does_not_harm_the_answer(box: Box, fault: str) -> None:
    async with serving(raw(box, fault)) as one:
        for _ in range(3):
            assert await one.call("ask", {}, LONG) == Answer("the answer")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("line", "it printed a line of more than 4 MiB"),
        ("noisy", "more than 1000 lines that are no MCP messages"),
        ("flooding", "it printed more than 16 MiB in one call"),
        ("malformed", "it answered with what is no answer"),
    ],
)
async def test_what_a_server_breaks_is_told_to_the_model(box: Box, fault: str, text: str) -> None:
    async with serving(raw(box, fault)) as one:
        for _ in range(2):  # the second time by a new program, if the first was ended
            answer = await one.call("ask", {}, LONG)
            assert answer.error
            assert text in answer.text


@pytest.mark.parametrize("fault", ["hanging", "closing", "surrogates"])
async def test_a_server_that_never_answers_uses_up_the_time_of_the_call(
    box: Box, fault: str
) -> None:
    async with serving(raw(box, fault)) as one:
        for _ in range(2):
            answer = await one.call("ask", {}, 0.3)
            assert answer == Answer(
                "[notes: no result: it did not answer within 0.3 s; it starts anew at the next call]",
                error=True,
            )


async def test_deep_json_is_no_message(box: Box) -> None:
    async with serving(raw(box, "deep")) as one:
        assert await one.call("ask", {}, LONG) == Answer("the answer")


async def test_tools_that_change_are_the_servers_errors(box: Box) -> None:
    async with serving(raw(box, "changing")) as one:
        before = listing("raw", await one.tools(), ())
        assert not (await one.call("ask", {}, LONG)).error
        gone = await one.call("ask", {}, LONG)
        assert gone == Answer("[notes] Unknown tool: ask", error=True)
        assert [tool.name for tool in before.tools] == ["ask", "other"]


async def test_between_calls_a_server_is_not_read(box: Box) -> None:
    async with serving(raw(box, "idle")) as one:
        for _ in range(3):  # it waits with what it prints, which is less than it may send in a call
            assert await one.call("ask", {}, LONG) == Answer("the answer")
            await asyncio.sleep(0.1)


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("mute", "it did not answer within 0.3 s"),
        ("version", "it answered with what is no answer"),
        ("refusing", "Not today."),
    ],
)
async def test_a_server_that_does_not_begin_is_a_failure_before_the_agent_acts(
    box: Box, fault: str, text: str
) -> None:
    with pytest.raises(InfrastructureError, match=text) as failure:
        async with serving(raw(box, fault, 0.3 if fault == "mute" else LONG)):
            pass
    assert len(str(failure.value)) < 700


async def test_a_program_that_is_not_there(box: Box) -> None:
    with pytest.raises(InfrastructureError, match=r"cannot be started|has ended"):
        async with serving(Server("none", ProgramChannel(box, ["/no/such/program"]))):
            pass


async def test_endless_lists_of_tools(box: Box) -> None:
    async with serving(raw(box, "endless")) as one:
        with pytest.raises(InfrastructureError, match="many empty pages"):
            await one.tools()


async def test_the_agent_can_replace_the_program_and_only_fools_itself(box: Box) -> None:
    async with serving(raw(box, "well")) as one:
        await box.write("raw_server.py", b"raise SystemExit('mine')")
        await ended(box)
        for _ in range(2):
            answer = await one.call("ask", {}, LONG)
            assert answer.error
            assert "its program has ended" in answer.text
        assert "mine" in answer.text


async def test_the_end_of_a_program_between_calls_is_in_the_log(
    box: Box, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(raw(box, "well")) as one:
        connection = one._connection
        assert connection is not None
        await ended(box)
        await until(lambda: not connection.alive)
        assert await one.call("ask", {}, LONG) == Answer("the answer")
    assert "'notes' is started or reached again: its program has ended (signal 9)" in caplog.text


PAINTS = "import sys; sys.exit('red \\x1b[31m, \\0, \\x9b2J, \\u202e, é')"


async def test_characters_that_are_not_printable_are_escaped(box: Box) -> None:
    escaped = r"red \x1b[31m, \x00, \x9b2J, \u202e, é"
    with pytest.raises(InfrastructureError) as failure:
        await server(box, "-X", "utf8", "-c", PAINTS).start()
    assert str(failure.value).endswith(f"(exit 1): {escaped}")


DIES = """
import os, sys
if not os.path.exists("began"):
    open("began", "w").close()
    sys.exit("early words")
sys.exit(4)
"""


async def test_the_words_of_an_earlier_program_are_no_reason_for_a_later_end(box: Box) -> None:
    await box.write("dies.py", DIES.encode())
    one = server(box, "dies.py")
    for reason in (r"\(exit 1\): early words", r"\(exit 4\)$"):
        with pytest.raises(InfrastructureError, match=reason):
            await one.start()


async def test_the_end_of_the_box_is_no_answer_of_a_server(box: Box) -> None:
    async with serving(raw(box, "hanging")) as one:
        await box.close()
        with pytest.raises(InfrastructureError):
            await one.call("ask", {}, LONG)


class Returning(ProgramChannel):
    """A program that each start runs in the next of some boxes, as if one box failed and came back."""

    def __init__(self, *boxes: Box) -> None:
        super().__init__(boxes[0], [sys.executable, "raw_server.py", "well"])
        self._boxes = iter(boxes)

    @asynccontextmanager
    async def streams(self) -> AsyncIterator[Any]:
        self._box = next(self._boxes)
        async with super().streams() as streams:
            yield streams


async def test_a_failure_of_the_box_between_calls_is_no_new_start_of_the_program(box: Box) -> None:
    async with await open_box(BoxSpec(provider="process")) as failing:
        await failing.write("raw_server.py", (HERE / "raw_server.py").read_bytes())
        async with serving(Server("notes", Returning(failing, box), start_seconds=LONG)) as one:
            connection = one._connection
            assert connection is not None
            await failing.close()
            await until(lambda: not connection.alive)
            with pytest.raises(BoxDiedError):
                await one.call("ask", {}, LONG)
            assert await one.call("ask", {}, LONG) == Answer("the answer")  # it was told once


async def test_a_program_ends_with_its_server(box: Box) -> None:
    async with serving(raw(box, "well")) as one:
        await one.call("ask", {}, LONG)
        running = await box.attach((await box.commands())[0].pid)
    assert (await running.wait()).signal == 9
