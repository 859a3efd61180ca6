"""Tools from a user's file: their schema in the prompt, and a run that trains with them. Each episode has a
code interpreter of its own."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import verifiers.v1 as vf

from air.env.config import ResearchEnvConfig
from air.testing import ScriptedServer, replies
from air.tools import load as load_tools
from air.train.loop.rollout import Source, context, play_group
from air.train.model import policy as policies
from air.trajectories import Trajectory, load
from tests.e2e.commands.test_commands import command
from tests.e2e.conftest import played_by, research, warm
from tests.e2e.episodes.test_tool_formats import call

TOOLS = '''
import asyncio
import threading
from typing import Literal

from air.tools import finish, tool


@tool
async def convert(value: float, unit: Literal["m", "km"], to: str = "m") -> str:
    """Converts a length.

    Args:
        value: the number
        unit: its unit
    """
    await asyncio.sleep(0)
    return f"{value * {'m': 1, 'km': 1000}[unit]:g} {to}"


@tool(max_length=64)
def tell() -> str:
    """Tells much."""
    return "x" * 999


@tool
def conclude(text: str) -> str:
    """Ends the episode."""
    return finish("Concluded.", prediction=text)


AT_ONCE = threading.Barrier(3, timeout=300)


@tool(seconds=600)
def meet() -> str:
    """Waits until all episodes are here."""
    AT_ONCE.wait()
    return "Met."
'''
PARAMETERS = {
    "type": "object",
    "properties": {
        "value": {"type": "number", "description": "the number"},
        "unit": {"type": "string", "enum": ["m", "km"], "description": "its unit"},
        "to": {"type": "string", "default": "m"},
    },
    "required": ["value", "unit"],
}
SCHEMA = {
    "type": "function",
    "function": {
        "name": "convert",
        "description": "Converts a length.",
        "parameters": PARAMETERS,
    },
}
"""What the signature and the docstring of `convert` say, as JSON schema."""
TEXT = """\
convert(value, unit, [to]): Converts a length.
  value (number): the number
  unit ('m' | 'km'): its unit
  to (string)"""
"""The same as text."""
CONVERT = call("convert", value=3, unit="km")


def question(folder: Path, tools: str, options: str) -> str:
    """The id of a task with one question and these tools. Writes the file `my_tools.py`."""
    (folder / "my_tools.py").write_text(TOOLS)
    (folder / "rows.jsonl").write_text('{"question": "How many m are 3 km?", "answer": "3000"}\n')
    return f"rows:{folder}/rows.jsonl#checker=math_string_equal&split=all&tools={tools}&{options}"


def config(
    folder: Path, tools: str, options: str, runtime: str = "subprocess", **settings: Any
) -> ResearchEnvConfig:
    """The environment of that question. It records its episodes."""
    task = question(folder, tools.replace("my_tools.py", f"{folder}/my_tools.py"), options)
    return research([task], runtime, max_turns=None, record_dir=folder / "records", **settings)


def recorded(folder: Path) -> list[Trajectory]:
    return [load(path) for path in folder.glob("records/*.jsonl")]


@pytest.fixture(scope="module")
def untrained(tmp_path_factory: pytest.TempPathFactory) -> policies.Policy:
    """A model whose tokenizer and chat template are used; a script says what it samples."""
    folder = tmp_path_factory.mktemp("untrained") / "m"
    texts = ["How many m are 3 km? <tool_call> name arguments convert value unit"]
    return policies.load(policies.build(folder, texts, hidden=32, layers=1, heads=2, vocab=320))


async def test_the_models_template_writes_the_schema_of_a_typed_function(
    untrained: policies.Policy, tmp_path: Path
) -> None:
    """The tokens that the model gets contain the schema; the result of a call is a message of a tool. A long
    result is cut, and a result with the status `finish` ends the episode."""
    tools = ",".join(f"my_tools.py:{name}" for name in ("convert", "tell", "conclude"))
    settings = config(tmp_path, tools, "format=tool_calls")
    script = replies(CONVERT, call("tell"), call("conclude", text="3000"), "No.")
    env = vf.load_environment(settings)
    with ScriptedServer(script, untrained.tokenizer) as server:
        ctx = context(untrained, server.url.removesuffix("/v1"), temperature=1.0, max_tokens=None)
        async with env.serving():
            tasks = list(env.taskset)
            group = await play_group(Source("s", 1.0, 1, env, tasks), tasks[0], ctx)
    (rollout,) = group.rollouts
    assert rollout.ok, rollout.error
    (branch,) = rollout.trace.branches
    text = untrained.tokenizer.decode(branch.token_ids)
    assert text.index(json.dumps(SCHEMA)) < text.index("How many m are 3 km?")
    assert "<tool_response>\n3000 m\n[" in text
    (trajectory,) = recorded(tmp_path)
    assert trajectory.start is not None
    assert trajectory.start.tools[0] == SCHEMA
    told = [str(step.observation) for step in trajectory.steps]
    assert told[:2] == ["3000 m", f"{'x' * 19}\n[… 961 characters cut …]\n{'x' * 19}"]
    assert [step.done for step in trajectory.steps] == [False, False, True]
    assert rollout.trace.reward == 1


async def test_a_text_format_writes_the_schema_into_the_instructions(tmp_path: Path) -> None:
    settings = config(tmp_path, "my_tools.py:convert", "format=react_input")
    said = 'Thought: Hm.\nAction: convert\nInput: {"value": 3, "unit": "km"}'
    async with played_by(replies(said, "Thought: So.\nAnswer: 3000"), settings) as play:
        episode = await play()
    assert episode.ok, episode.traces[0].errors
    (trajectory,) = recorded(tmp_path)
    assert trajectory.start is not None
    assert json.dumps(SCHEMA["function"]) in trajectory.start.system
    (tool,) = load_tools("my_tools.py:convert", tmp_path)
    assert (tool.schema, tool.text) == (SCHEMA, TEXT)
    assert trajectory.steps[0].observation == "3000 m"


@pytest.mark.full
def test_a_run_trains_with_a_tool_of_a_file_that_the_run_file_names(tmp_path: Path) -> None:
    options = "turns=3&format=hermes"
    model = asyncio.run(taught(tmp_path, options))
    task = question(tmp_path, "my_tools.py:convert", options)  # found in the working folder
    (tmp_path / "run.toml").write_text(
        f"""
max_steps = 1
seq_len = 1024
output_dir = "outputs"
[run]
name = "r"
[model]
name = "{model}"
[orchestrator]
batch_size = 8
group_size = 4
[orchestrator.train.sampling]
max_completion_tokens = 64
[[orchestrator.train.source]]
[orchestrator.train.source.env.taskset]
id = "air"
tasks = ["{task}"]
[orchestrator.train.source.env.agent.runtime]
type = "subprocess"
[orchestrator.train.source.env.agent.harness]
id = "air"
"""
    )
    ran = command("rl", "@", "run.toml", cwd=tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    run = tmp_path / "outputs" / "r"
    episodes = [load(path) for path in (run / "trajectories").glob("*.jsonl")]
    assert len(episodes) == 8
    assert all(one.end and one.end.ok for one in episodes)
    shown = [step.observation for one in episodes for step in one.steps]
    assert "3000 m" in shown


async def taught(folder: Path, options: str) -> Path:
    """A policy of 0.1 M weights that calls the tool `convert`, and then answers."""
    settings = config(folder, "my_tools.py:convert", options)
    async with played_by(replies(CONVERT, "3000"), settings) as play:
        (trace,) = (await play()).traces
    nodes = [node.message for node in trace.nodes]
    talk = [{"role": one.role, "content": str(one.content)} for one in nodes]
    return await asyncio.to_thread(warm, folder, [talk])


CELL = """
import os
print("seen" if "x" in globals() or os.path.exists("file") else "new")
x = 1
open("file", "w").close()
"""


@pytest.mark.parametrize(
    "runtime", ["subprocess", pytest.param("docker", marks=pytest.mark.docker)]
)
async def test_each_episode_has_a_code_interpreter_of_its_own(runtime: str, tmp_path: Path) -> None:
    """Three episodes are at the tool `meet` at once, so that each has its box at the same time."""
    cell = call("code_interpreter", code=CELL)
    tools = "code_interpreter,my_tools.py:meet"
    settings = config(tmp_path, tools, "format=hermes&turns=5", runtime, max_boxes=3)
    async with played_by(replies(cell, call("meet"), cell, "3000"), settings) as play:
        episodes = await asyncio.gather(*(play() for _ in range(3)))
    assert [one.ok for one in episodes] == [True] * 3
    for one in recorded(tmp_path):
        assert [step.observation for step in one.steps][:3] == ["new", "Met.", "seen"]
