"""Worlds on other machines, played, recorded and trained on by a run file as any other task."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import verifiers.v1 as vf
from websockets.asyncio.client import connect

from air.env.config import ResearchEnvConfig
from air.serve.ors.protocol import Ors
from air.testing import ScriptedServer, replies
from air.trajectories import Trajectory, load
from tests.docker.serve import serving as processes
from tests.e2e.commands.test_commands import command
from tests.e2e.conftest import played_by
from tests.e2e.episodes.test_attribution import STAY, end_guest
from tests.episodes_server import serving
from tests.faulty_proxy import between

TASK = "question:gsm8k5"


def settings(task: str, folder: Path) -> ResearchEnvConfig:
    table = {
        "taskset": {"id": "air", "tasks": [task]},
        "agent": {"harness": {"id": "air"}, "runtime": {"type": "docker"}, "max_turns": 3},
        "record_dir": folder,
    }
    return ResearchEnvConfig.model_validate(table)


def reply(answer: str) -> str:
    return f"<think>so</think><answer>{answer}</answer>"


def only(folder: Path) -> Trajectory:
    (path,) = folder.glob("*.jsonl")
    return load(path)


@pytest.mark.parametrize("kind", ["openenv", "ors"])
async def test_an_episode_of_a_server(kind: str, tmp_path: Path) -> None:
    protocol = {"protocol": Ors} if kind == "ors" else {}
    async with serving(TASK, **protocol) as served:
        config = settings(f"{kind}:{served.url}", tmp_path)
        async with played_by(replies(reply("x"), "no answer", reply("y")), config) as play:
            episode = await play()
    assert episode.ok, episode.traces[0].errors
    recorded = only(tmp_path)
    assert [step.reward for step in recorded.steps] == [-0.1, None, -0.1]
    assert episode.traces[0].metrics["action_is_valid"] == 1.0


async def test_a_fault_of_the_server_masks_the_episode(tmp_path: Path) -> None:
    async with serving(TASK) as served, between(served.url, share=0.0, seed=0) as (address, proxy):
        config = settings(f"openenv:{address}#field=message&tools=false&wait=0", tmp_path)

        def drop(conversation: object) -> str:
            proxy.share, proxy.kinds = 1.0, ["drop"]  # the next observation is lost
            return reply("x")

        async with played_by(drop, config) as play:
            episode = await play()
    assert not episode.ok
    assert not episode.traces[0].rewards
    end = only(tmp_path).end
    assert end is not None
    assert (end.ok, end.reward) == (False, None)


async def test_a_server_that_an_action_ends_for_good_stops_the_run_by_name(tmp_path: Path) -> None:
    """Nothing is left that could show who caused it. So the episode is masked, and the run stops although
    another task is well."""
    async with serving(TASK) as served, between(served.url, share=0.0, seed=0) as (address, proxy):
        proxy.acts, proxy.refusals = {"escape": "die"}, sys.maxsize
        remote = f"openenv:{address}#field=message&tools=false&wait=0"
        config = settings(remote, tmp_path)
        config = config.model_copy(
            update={
                "max_failures": 3,
                "taskset": config.taskset.model_copy(
                    update={"tasks": [remote, TASK], "examples_per_task": 4}
                ),
            }
        )
        env = vf.load_environment(config)
        with ScriptedServer(replies(*[reply("escape")] * 3)) as model:
            client = vf.EvalClientConfig(base_url=model.url, api_key_var="AIR_TEST_KEY")
            ctx = vf.ModelContext(model="scripted", client=client)
            async with env.serving():
                episodes = [await env.run_slot(env.slots(t)[0], ctx) for t in env.taskset]
    assert [episode.ok for episode in episodes] == [False, True] * 2 + [False] * 4
    for refused in episodes[5:]:
        said = refused.errors[-1].message
        assert f"3 episodes of the task {remote} in a row failed" in said
    assert failed_actions(tmp_path) == ["None", "None", "escape"]


def failed_actions(folder: Path) -> list[str]:
    ends = [end for path in folder.glob("*.jsonl") if (end := load(path).end) and not end.ok]
    return sorted(str(end.failed_action) for end in ends)


@pytest.mark.full
def test_a_run_trains_on_a_server_in_its_own_process(small: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    with processes.serving(TASK, "--max-sessions", "8", what="openenv") as served:
        path.write_text(
            f"""
max_steps = 2
seq_len = 896
output_dir = "{tmp_path / "outputs"}"
[run]
name = "r"
[model]
name = "{small}"
[orchestrator]
batch_size = 8
group_size = 4
[orchestrator.train.sampling]
max_completion_tokens = 24
[[orchestrator.train.source]]
[orchestrator.train.source.env.taskset]
id = "air"
tasks = ["openenv:{served.url}#max_turns=2"]
examples_per_task = 4
[orchestrator.train.source.env.agent]
max_turns = 2
[orchestrator.train.source.env.agent.runtime]
type = "docker"
[orchestrator.train.source.env.agent.harness]
id = "air"
"""
        )
        result = command("rl", "@", path, cwd=tmp_path)
        assert result.returncode == 0, result.stdout + result.stderr
    run = tmp_path / "outputs" / "r"
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 2
    folders = (path for path in (run / "trajectories").rglob("*.jsonl"))
    ends = [load(path).end for path in folders if path.parent.name == "trajectories"]
    assert ends
    assert all(end and end.ok for end in ends)


async def test_an_agent_that_ends_its_box_gets_the_lowest_reward() -> None:
    async with (
        serving("titanic", max_sessions=1, provider="process") as served,
        connect(served.url.replace("http", "ws") + "/ws", proxy=None) as socket,
    ):

        async def ask(**message: object) -> dict[str, Any]:
            await socket.send(json.dumps(message))
            return dict(json.loads(await socket.recv())["data"])

        await ask(type="reset", data={})
        first = await ask(type="step", data={"message": STAY.split("\n")[2]})
        assert (first["done"], first["reward"]) == (False, None)
        await asyncio.to_thread(end_guest)
        last = await ask(type="step", data={"message": "true"})
        assert (last["done"], last["reward"]) == (True, -1.0)
    assert served.ended("done") == 1
