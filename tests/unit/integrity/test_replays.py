"""What the gate concludes from replays of trajectories, and when a terminal counts as ready."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from air.cli import harbor_check
from air.integrity.gate.check import VERSION, Declared, GateVerdict, _Judge
from air.integrity.gate.hacks import Hack
from air.integrity.gate.plays import PlayResult
from air.integrity.gate.replays import MARK, TIME_LIMIT, _Terminal
from air.integrity.gate.run import Gate
from air.trajectories.atif.reading import Input, Recording

RECORDING = Recording((Input("ls", False),), ("calls of edit that cannot be replayed: 1",))
HACK = Hack("trajectory:1.json", "the flaw", "", recording=RECORDING)
SOUND = GateVerdict("harbor:a", "digest", "sound", tried=(HACK.name,))


@pytest.mark.parametrize(
    ("played", "reasons"),
    [
        (PlayResult(1.0), ()),
        (PlayResult(1.0, "no artefact"), ()),
        (PlayResult(1.0, "the box ended", ended=True), ("the box ended",)),
        (PlayResult(1.0, "", "the shell ended"), ("the shell ended",)),
    ],
)
def test_a_finding_says_what_was_not_replayed(played: PlayResult, reasons: tuple[str, ...]) -> None:
    player: Any = None
    judge = _Judge(player, Declared(), nothing=0.0)
    judge._judge_hack(HACK, played)
    reason = "; ".join((*RECORDING.gaps, *reasons))
    assert judge.incomplete == {HACK.name: reason}
    [finding] = judge.findings
    assert finding.reason == (
        f"the flaw (the hack earns 1); it was not replayed completely: {reason}"
    )


def test_a_verdict_that_a_time_limit_changed_is_not_reused() -> None:
    def reused(reason: str) -> bool:
        verdict = replace(SOUND, incomplete={HACK.name: reason})
        return Gate._holds(verdict, "digest", [HACK])

    assert SOUND.version == VERSION
    assert reused("calls of edit that cannot be replayed: 1")
    assert not reused(f"calls of edit …; {TIME_LIMIT} was reached in input 2 of 3")


def test_names_from_files_reach_the_terminal_in_one_line_without_control_characters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = "trajectory:\x1b[2J\n\udcff.json"
    player: Any = None
    judge = _Judge(player, Declared(), nothing=0.0)
    judge._judge_hack(replace(HACK, name=name), PlayResult(1.0))
    harbor_check._conclude(
        [
            replace(
                SOUND,
                result="weak",
                reason="two\nlines\x07",
                findings=tuple(judge.findings),
                incomplete=judge.incomplete,
            )
        ],
        argparse.Namespace(report=None),
    )
    shown = capsys.readouterr()
    escaped = "trajectory:\\x1b[2J \\udcff.json"
    assert escaped in shown.out
    assert shown.err.splitlines() == [
        "weak: harbor:a: two lines\\x07",
        f"not replayed completely: harbor:a: {escaped}: {RECORDING.gaps[0]}",
    ]


class _Shell:
    """A shell whose output is what the test puts into `lines`. An empty text ends it."""

    def __init__(self) -> None:
        self.lines: asyncio.Queue[bytes] = asyncio.Queue()
        self.typed = b""

    async def output(self) -> AsyncIterator[tuple[str, bytes]]:
        while data := await self.lines.get():
            yield "terminal", data

    async def write(self, data: bytes) -> None:
        self.typed += data


async def test_a_line_has_ended_when_the_last_prompt_comes() -> None:
    shell: Any = _Shell()
    terminal = _Terminal(shell)
    # The prompt of the first line, and the second line, which was typed ahead.
    shell.lines.put_nowait(MARK + b"$ sleep 100\r\n")
    typing = asyncio.create_task(terminal.type(Input("true\nsleep 100\n", True, 600.0)))
    await asyncio.sleep(1.0)
    assert not typing.done()
    shell.lines.put_nowait(b"\r\n" + MARK + b"$ ")
    await asyncio.wait_for(typing, 60.0)
    assert shell.typed == b"true\nsleep 100\n"

    # A text that ends no line is followed by the agent's wait, or by the end of the shell.
    typing = asyncio.create_task(terminal.type(Input("\x04", True, 600.0)))
    await asyncio.sleep(0.1)
    assert not typing.done()
    shell.lines.put_nowait(b"")
    await asyncio.wait_for(typing, 60.0)
    assert terminal.ended
