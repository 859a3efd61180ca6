"""Harbor tasks with MCP servers: the tools in a box without Python, and what an agent can do to a server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from air.actions.base import Action, ToolCall
from air.cli.main import main
from air.errors import InfrastructureError
from air.replay.options import ReplayOptions
from air.replay.replayer import Replayer
from air.tasks.sources.harbor.settings import HarborSettings
from air.trajectories import load
from tests.docker.harbor.test_grading import Make, Play, make, play
from tests.e2e.commands.by_hand import shell
from tests.e2e.conftest import played_by, research
from tests.harbor.mcp import SERVER

__all__ = ["make", "play"]
pytestmark = pytest.mark.docker
MCP = """\
[[environment.mcp_servers]]
name = "vault"
transport = "stdio"
command = "sh"
args = ["-c", '''
%s
''']
"""
BY_HAND = """\
:prompt
:expect open_vault
open_vault {"key": "brass"}
:expect wrong key
:undo
open_vault {"lock": 1}
:expect wrong arguments of open_vault
open_vault {"key": "silver"}
:expect the number is 42
echo 42 > answer.txt
submit
:expect reward +1.0000
:save by-hand.jsonl
"""
BROKEN = MCP % "echo no; exit 3"


def use(name: str, **arguments: object) -> Action:
    return Action(tool=ToolCall(name, arguments=arguments))


async def test_the_agent_calls_tools_of_a_server_that_is_a_shell_script(
    make: Make, play: Play
) -> None:
    async with play(make(more=MCP % SERVER)) as world:
        assert world.servers is not None
        names = [schema["function"]["name"] for schema in world.servers.schemas]
        assert names == ["open_vault", "end"]
        wrong = await world.step(use("open_vault", key="brass"))
        assert wrong.observation.text == "wrong key"
        right = await world.step(use("open_vault", key="silver"))
        assert right.observation.text == "the number is 42"
        assert (await world.step(use("no_tool"))).observation.text.startswith("There is no tool")
        await world.step(Action(script="echo 42 > answer.txt", ending="submit"))
        await world.finish()
        assert world.reward == 1.0
        await world.abandon()


async def test_a_server_that_the_agent_ends_neither_fails_nor_pays(make: Make, play: Play) -> None:
    async with play(make(more=MCP % SERVER)) as world:
        gone = await world.step(use("end"))
        assert "its program has ended (exit 7)" in gone.observation.text
        await world.step(Action(script="kill -9 -1; true"))
        again = await world.step(use("open_vault", key="silver"))
        assert "the number is 42" in again.observation.text or "no result" in again.observation.text
        assert not again.done
        await world.step(Action(script="true", ending="submit"))
        await world.finish()
        assert world.reward == 0.0
        await world.abandon()


async def test_a_server_that_does_not_begin_is_a_failure_before_the_agent_acts(
    make: Make, play: Play, tmp_path: Path
) -> None:
    with pytest.raises(InfrastructureError, match=r"vault.*its program has ended \(exit 3\)"):
        async with play(make(more=BROKEN)):
            pass


async def test_a_model_reads_the_tools_and_calls_them(make: Make, tmp_path: Path) -> None:
    task = make(more=MCP % SERVER)
    prompts: list[str] = []
    call = '{"name": "open_vault", "arguments": {"key": "silver"}}'

    def script(conversation: Sequence[dict[str, Any]]) -> str:
        prompts.append("\n".join(str(message["content"]) for message in conversation))
        said = [
            f"I ask.\n```tool\n{call}\n```",
            '```tool\n{"name": "open_vault", "arguments": {"lock": 1}}\n```',
            "```bash\necho 42 > answer.txt\nsubmit\n```",
        ]
        return said[min(len(said) - 1, sum(one["role"] == "assistant" for one in conversation))]

    given = research([task], "docker", record_dir=tmp_path / "record")
    harbor = HarborSettings(root=tmp_path)
    taskset = given.taskset.model_copy(update={"harbor": harbor})
    async with played_by(script, given.model_copy(update={"taskset": taskset})) as play:
        episode = await play()
    assert episode.traces[0].reward == 1.0
    assert '"open_vault"' in prompts[0]
    assert "the number is 42" in prompts[1]
    assert "Format error: wrong arguments of open_vault" in prompts[2]
    [file] = (tmp_path / "record").glob("*.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    steps = [line for line in lines if line.get("call")]
    assert steps[0]["call"]["tool"]["arguments"] == {"key": "silver"}
    assert steps[0]["observation"] == "the number is 42"
    async with Replayer(ReplayOptions()) as replayer:
        replayed = await replayer.replay(load(file))
        assert (replayed.differences, replayed.steps) == ([], 3)
        assert not [task for task in asyncio.all_tasks() if task.get_name() == "MCP session"]


def test_a_person_calls_the_tools_undoes_it_and_the_record_is_replayed(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shell(BY_HAND, make(more=MCP % SERVER))
    capsys.readouterr()
    assert main(["replay", "by-hand.jsonl"]) == 0
    assert "1 of 1 matched" in capsys.readouterr().out
