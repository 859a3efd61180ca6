"""Worlds in a box: each episode has a box of its own, and keeps what it earned if its agent ends the box."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import verifiers.v1 as vf
from websockets.asyncio.client import connect

from air.actions.base import Action, ToolCall
from air.env.config import ResearchEnvConfig
from air.env.environment import ResearchEnv
from air.env.world_boxes import WorldBoxes
from air.errors import ConfigError, MissingError
from air.manual.world_session import ManualWorld
from air.sandbox.contract.box import BoxSpec
from air.sandbox.docker import engine
from air.testing import Message, Script, ScriptedServer, replies
from air.trajectories import Trajectory, load
from air.worlds import conformance, sources
from tests.box_world import SPEC, Scripts
from tests.e2e.conftest import containers_in_full, played_by
from tests.e2e.episodes.test_attribution import STAY, broken_at, end_guest
from tests.episodes_server import serving
from tests.until import until

WORLD = "tests.box_world:scripts"
OF_BOXES = (
    "closes_at_any_time",
    "a_cancelled_reset_leaves_a_world_that_closes",
    "a_cancelled_step_leaves_a_world_that_closes",
    "many_play_at_once",
)
MOST_RESETS = 20
"""After so many resets that were refused, no load of the machine is the cause."""


def config(name: str, runtime: str, **settings: Any) -> ResearchEnvConfig:
    agent = {"harness": {"id": "air"}, "runtime": {"type": runtime}}
    taskset = {"id": "air", "tasks": [f"tests.box_world:{name}"]}
    return ResearchEnvConfig.model_validate({"taskset": taskset, "agent": agent, **settings})


@asynccontextmanager
async def opened(
    script: Script, settings: ResearchEnvConfig
) -> AsyncIterator[tuple[WorldBoxes, Any]]:
    """The boxes of the environment, and a function that plays an episode, as `played_by`."""
    env = vf.load_environment(settings)
    assert isinstance(env, ResearchEnv)
    with ScriptedServer(script) as server:
        client = vf.EvalClientConfig(base_url=server.url, api_key_var="AIR_TEST_KEY")
        ctx = vf.ModelContext(model="scripted", client=client)
        async with env.serving():
            assert env._boxes is not None
            task = next(iter(env.taskset))

            async def play() -> Any:
                return await env.run_slot(env.slots(task)[0], ctx)

            yield env._boxes, play


def recorded_in(folder: Path) -> list[Trajectory]:
    return [load(path) for path in folder.glob("*.jsonl")]


async def test_an_episode_in_a_box_is_played_and_recorded(tmp_path: Path, runtime: str) -> None:
    script = replies("echo here > file", "cat file seed", "cat nothing", "true")
    async with played_by(script, config("scripts", runtime, record_dir=tmp_path)) as play:
        episode = await play()
        again = await play()
    assert episode.ok, episode.traces[0].errors
    assert again.ok, again.traces[0].errors
    (trace,) = episode.traces
    assert trace.rewards["world"].value == 3.0
    assert (trace.metrics["lost_boxes"], trace.metrics["scripts"]) == (0.0, 4.0)
    assert trace.metrics["process_isolation"] == float(runtime == "subprocess")
    recorded = recorded_in(tmp_path)
    for one in recorded:  # each in a box of its own, in which nothing had run
        assert one.start is not None
        assert one.start.isolation == ("process" if runtime == "subprocess" else "container")
        assert one.start.world is not None
        assert bool(one.start.image_digest) == (runtime == "docker")
        assert "here" in str(one.steps[1].observation)


ENDS = {
    "kill-all": "trap '' TERM; kill -9 -1; kill -9 1",
    "memory": "python3 -c 'a = bytearray(10**9); print(len(a))'",
    "forks": "f() { f | f & }; f; sleep 1",
    "disk": 'head -c 999999999 /dev/zero > big; python3 -c \'open("more", "w").write("x" * 10**7)\'',
}


@pytest.mark.docker
@pytest.mark.parametrize("name", ENDS)
async def test_an_agent_that_wrecks_its_box_keeps_what_it_earned(tmp_path: Path, name: str) -> None:
    script = replies("true", ENDS[name], "echo still", "echo still")
    async with played_by(script, config("scripts", "docker", record_dir=tmp_path)) as play:
        episode = await play()
    (trace,) = episode.traces
    assert episode.ok, trace.errors
    assert 1.0 <= trace.rewards["world"].value <= 4.0
    (recorded,) = recorded_in(tmp_path)
    end = recorded.end
    assert end is not None
    assert end.ok
    assert end.why == ("box" if trace.metrics["lost_boxes"] else "turns")


async def test_a_box_that_its_commands_ended_ends_the_episode(tmp_path: Path, runtime: str) -> None:
    script = broken_at(3, "true", STAY.split("\n")[2], "true", "never asked")
    async with played_by(script, config("owing", runtime, record_dir=tmp_path)) as play:
        episode = await play()
    (trace,) = episode.traces
    assert episode.ok, trace.errors
    assert trace.rewards["world"].value == 2.0 - 3.0  # ending the box is no way to earn more
    assert trace.rewards["unanswered"].value == 0.0  # it is the last action's reward already
    assert trace.metrics["lost_boxes"] == 1
    (recorded,) = recorded_in(tmp_path)
    assert recorded.end is not None
    assert recorded.end.why == "box"
    assert str(recorded.steps[-1].observation) == "[the box has ended]"
    assert recorded.steps[-1].reward == -3.0


@pytest.mark.parametrize(("script", "earned"), [("false", 0.0), ("true", 4.0)])
@containers_in_full
async def test_commands_are_no_answers(script: str, earned: float, runtime: str) -> None:
    """The world's actions are texts, as answers are. All turns pass without its end."""
    async with played_by(replies(*[script] * 4), config("owing", runtime)) as play:
        episode = await play()
    (trace,) = episode.traces
    assert episode.ok, trace.errors
    assert trace.rewards["world"].value == earned
    assert trace.rewards["unanswered"].value == -3.0


@pytest.mark.docker
async def test_a_box_that_something_outside_ended_masks_the_episode(tmp_path: Path) -> None:
    doomed: list[str] = []

    def script(messages: Sequence[Message]) -> str:
        if any(message["role"] == "assistant" for message in messages):
            engine.client().kill(doomed.pop())
        return "true"

    async with opened(script, config("scripts", "docker", record_dir=tmp_path)) as (boxes, play):
        playing = asyncio.create_task(play())
        await until(lambda: doomed.extend(box.id for box in boxes.agents._lent) or doomed)
        episode = await playing
    assert not episode.ok
    assert not episode.traces[0].rewards
    (recorded,) = recorded_in(tmp_path)
    assert recorded.end is not None
    assert recorded.end.reward is None


@pytest.mark.parametrize("name", ["checked", "only_checked"])
async def test_a_check_has_a_fresh_box(tmp_path: Path, name: str, runtime: str) -> None:
    script = replies("touch mark", "answer ls -a; test ! -e mark")
    async with played_by(script, config(name, runtime, record_dir=tmp_path)) as play:
        episode = await play()
    (trace,) = episode.traces
    assert episode.ok, trace.errors
    assert trace.rewards["world"].value == (3.0 if name == "checked" else 2.0)


@pytest.mark.docker
async def test_an_answer_that_ends_its_check_is_a_wrong_answer(tmp_path: Path) -> None:
    script = replies("answer kill -9 -1; kill -9 1; python3 -c 'bytearray(10**9)'")
    async with played_by(script, config("only_checked", "docker", record_dir=tmp_path)) as play:
        episode = await play()
    (trace,) = episode.traces
    assert episode.ok, trace.errors
    assert trace.rewards["world"].value == 0.0


@pytest.mark.docker
async def test_a_check_that_something_outside_ended_masks_the_episode() -> None:
    settings = config("checked", "docker")
    async with opened(replies("true", "answer sleep 600"), settings) as (boxes, play):
        playing = asyncio.create_task(play())
        await until(lambda: boxes.checks._lent)
        (box,) = boxes.checks._lent
        await asyncio.to_thread(engine.client().kill, box.id)
        episode = await playing
    assert not episode.ok
    assert not episode.traces[0].rewards


async def test_a_cancelled_episode_leaves_no_box(runtime: str) -> None:
    asked: list[int] = []

    def script(messages: Sequence[Message]) -> str:
        asked.append(len(messages))
        return "true" if len(asked) == 1 else "sleep 600"

    async with opened(script, config("scripts", runtime)) as (boxes, play):
        playing = asyncio.create_task(play())
        await until(lambda: len(asked) == 2)
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)
        await until(lambda: boxes.agents.stats.live == 0)


@pytest.mark.docker
async def test_a_box_is_used_again_without_what_the_agent_left(tmp_path: Path) -> None:
    settings = config("scripts", "docker", reuse_boxes=True, record_dir=tmp_path)
    script = replies("ls -a . /tmp", "echo mine > left; echo mine > /tmp/left", "ls", "true")
    async with opened(script, settings) as (boxes, play):
        stats, episodes = boxes.agents.stats, [await play()]
        await until(lambda: stats.reused + stats.refused.total() == 1)
        while not stats.reused:  # a reset has a time limit, which a loaded machine can exceed
            assert len(episodes) < MOST_RESETS, stats.refused
            episodes.append(await play())
            await until(lambda: stats.reused + stats.refused.total() == len(episodes))
        episodes.append(await play())
    for episode in episodes:
        assert episode.ok, episode.traces[0].errors
    recorded = recorded_in(tmp_path)
    resets = [one.start.box_resets for one in recorded if one.start is not None]
    assert sorted(resets) == [*[0] * (len(episodes) - 1), 1]
    for one in recorded:
        assert "left" not in str(one.steps[0].observation)


@containers_in_full
async def test_a_person_plays_in_the_box(runtime: str) -> None:
    async with ManualWorld(config("scripts", runtime), seed=7) as manual:
        lines = await manual.act(manual.written("cat seed"))
        assert lines[-1]["observation"] == "7"
        assert (await manual.bash("cat seed")).text == "7"
        with pytest.raises(Exception, match="does not replay exactly"):
            await manual.undo()
    assert manual.outside


async def test_a_person_plays_with_the_tools_of_a_box(runtime: str) -> None:
    async with ManualWorld(config("tools", runtime)) as manual:
        for text, observation in (
            ('code_interpreter {"code": "x = 6\\nx * 7"}', "42"),
            ('bash {"command": "echo hi > f; cat f"}', "hi"),
            ('view {"path": "f"}', "1:hi"),
            ('code_interpreter {"code": "open(\'f\').read() * x"}', repr("hi\n" * 6)),
        ):
            lines = await manual.act(manual.written(text))
            (step,) = [line for line in lines if line["type"] == "step"]
            assert step["observation"] == observation
        steps = [line for line in manual.lines if line["type"] == "step"]
        assert [step["reward"] for step in steps] == [1.0] * 4


@pytest.mark.parametrize("tool", ["code_interpreter", "bash"])
async def test_a_box_that_ends_under_its_tools_ends_the_episode(runtime: str, tool: str) -> None:
    async with ManualWorld(config("tools", runtime)) as manual:
        stay = STAY.split("\n")[2]
        await manual.act(manual.written("bash " + json.dumps({"command": stay})))
        await asyncio.to_thread(end_guest)
        value = {"code": "1"} if tool == "code_interpreter" else {"command": "true"}
        await manual.act(manual.written(f"{tool} {json.dumps(value)}"))
        assert manual.episode.why_ended == "box"
        assert manual.episode.rewards["world"] == 1.0
        assert manual.episode.world.close_error == ""


async def test_a_server_offers_a_world_in_a_box() -> None:
    async with (
        serving(WORLD, max_sessions=1, provider="process") as served,
        connect(served.url.replace("http", "ws") + "/ws", proxy=None) as socket,
    ):
        await socket.send(json.dumps({"type": "reset", "data": {"seed": 3}}))
        await socket.recv()
        await socket.send(json.dumps({"type": "step", "data": {"message": "cat seed"}}))
        answer = json.loads(await socket.recv())["data"]
    assert answer["observation"]["text"] == "3"
    assert answer["reward"] == 1.0


async def test_without_docker_the_usual_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(MissingError, match="Docker boxes cannot be started"):
        await ResearchEnv(config("scripts", "docker")).start()


@pytest.mark.docker
async def test_a_missing_image_is_the_usual_error() -> None:
    with pytest.raises(MissingError, match="no-such-image"):
        await ResearchEnv(config("no_image", "docker")).start()


async def test_contradictions_about_boxes_are_refused() -> None:
    task = sources.load(WORLD)
    with pytest.raises(ConfigError, match="needs boxes"):
        task.world()
    for change in (
        {"make": lambda: Scripts(None)},
        {"make_in": None},
        {"box": None},
        {"replays": True},
        {"check_box": SPEC},
        {"box": BoxSpec(second_user=True)},
        {"box": BoxSpec(gpus=1)},
    ):
        with pytest.raises(ConfigError):
            replace(task, **change)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="give the parameter `opened`"):
        await conformance.check(task)


@containers_in_full
async def test_questions_with_tools_and_hidden_tests_in_boxes_conform(
    tmp_path: Path, runtime: str
) -> None:
    rows = [
        {
            "question": f"Write a program that prints {n}.",
            "tests": [{"stdin": "", "stdout": f"{n}"}],
        }
        for n in range(20)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    task_id = f"rows:{tmp_path}/rows.jsonl#checker=code_tests&tools=bash,code_interpreter&turns=3"
    settings = config("scripts", runtime)
    settings.taskset.tasks = [task_id]
    env = vf.load_environment(settings)
    assert isinstance(env, ResearchEnv)
    actions = [
        Action(tool=ToolCall("bash", arguments={"command": "echo $RANDOM; pwd"})),
        Action(answer="```python\nprint(3)\n```"),
    ]
    # In containers only what concerns boxes, since each of the many episodes needs its own.
    checks = [name for name in conformance.CHECKS if runtime == "subprocess" or name in OF_BOXES]
    async with env.serving():
        assert env._boxes is not None
        problems = await conformance.check(
            sources.load(task_id), actions, checks, at_once=4, opened=env._boxes.world
        )
    assert not problems


SQUARE = """\
import os, pathlib, sys, tempfile

assert "AIR_TEST_VARIABLE" not in os.environ
pathlib.Path(tempfile.gettempdir(), "here").touch(exist_ok=False)  # fails in a box that was used

def square(n):
    return n * n

if __name__ == "__main__":
    print(square(int(input())))
"""


async def test_hidden_tests_in_fresh_boxes_decide_the_reward_of_a_program(
    tmp_path: Path, runtime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIR_TEST_VARIABLE", "a variable that no box has")
    tests = [{"call": "square(3)", "value": 9}, {"stdin": "4\n", "stdout": "16"}]
    row = {"question": "Write a program that squares a number.", "tests": tests}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    (tmp_path / "task.toml").write_text(
        'data = "rows.jsonl"\nmetrics = ["tests_passed"]\nsplit = "all"\n'
        'checker = {name = "code_tests", seconds = 100}\n'
    )
    settings = config("scripts", runtime, record_dir=tmp_path / "records")
    settings.taskset.tasks = [f"rows:{tmp_path}/task.toml"]
    # A process box has the Python of this process; a container has its image's.
    ours = runtime == "subprocess"
    right = f"{SQUARE}\nassert (sys.prefix == {sys.prefix!r}) is {ours}\n"
    # The wrong program passes the first of the two tests.
    programs = {right: (1.0, 1.0), right.replace("n * n", "n * 3"): (0.0, 0.5)}
    said = iter([f"<answer>\n```python\n{program}```\n</answer>" for program in programs])
    async with played_by(lambda messages: next(said), settings) as play:
        episodes = [await play() for _ in programs]
    for episode, (reward, passed) in zip(episodes, programs.values(), strict=True):
        (trace,) = episode.traces
        assert episode.ok, trace.errors
        assert trace.rewards["world"].value == trace.reward == reward
        assert trace.metrics["answer_tests_passed"] == passed
        assert (trace.metrics["answered"], trace.metrics["success"]) == (1.0, reward)
    recorded = sorted(one.steps[0].reward for one in recorded_in(tmp_path / "records"))
    assert recorded == [0.0, 1.0]
