"""Worlds without a box: played, recorded, trained and evaluated as research tasks are, and beside them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import verifiers.v1 as vf

from air.cli.main import main
from air.env.config import AirTasksetConfig, ResearchEnvConfig
from air.testing import Letters, replies
from air.trajectories import Trajectory, load
from air.worlds.sources import VALIDATION_SEED
from tests.e2e.commands.test_commands import bad, command
from tests.e2e.conftest import played_by

LETTERS = "air.testing:letters"


def config(*tasks: str, max_turns: int | None = None, **settings: Any) -> ResearchEnvConfig:
    taskset = {"id": "air", "tasks": list(tasks), **settings.pop("taskset", {})}
    agent = {"harness": {"id": "air"}, "runtime": {"type": "docker"}}
    agent |= {} if max_turns is None else {"max_turns": max_turns}
    return ResearchEnvConfig.model_validate({"taskset": taskset, "agent": agent, **settings})


def only(folder: Path) -> Trajectory:
    (path,) = folder.glob("*.jsonl")
    return load(path)


async def test_a_world_is_played_and_recorded_without_a_box(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    async with played_by(replies("aeiou", "", "xyz"), config(LETTERS, record_dir=tmp_path)) as play:
        episode = await play()
    assert episode.ok, episode.traces[0].errors
    (trace,) = episode.traces
    assert {n: t.value for n, t in trace.rewards.items()} == {
        "world": 1.0,
        "unanswered": 0.0,
        "format": -0.5,
        "time": 0.0,
    }
    assert trace.metrics["success"] == 0
    assert trace.metrics["num_actions"] == 2
    recorded = only(tmp_path)
    start, end = recorded.start, recorded.end
    assert start is not None
    assert end is not None
    assert start.world is not None
    assert (start.task, start.isolation, start.max_turns) == (LETTERS, "none", Letters.TURNS)
    assert start.format == "air.testing:WholeReplyFormat"
    assert start.world.replays
    assert start.prompt.endswith(start.world.first)
    assert start.world.first.startswith("Write the letter")
    assert [step.reward for step in recorded.steps] == [1.0, None, 0.0]
    assert [step.call and step.call.answer for step in recorded.steps] == ["aeiou", None, "xyz"]
    assert (end.why, end.reward, end.facts["num_actions"]) == ("turns", 0.5, 2)
    # Reply n is node 2n; the second is no action, so it took no time.
    noted = trace.info["air"]["exec_seconds"]
    assert [one["node"] for one in noted] == [2, 6]
    assert [one["seconds"] for one in noted] == [recorded.steps[n].exec_seconds for n in (0, 2)]


async def test_every_action_with_a_reward_ends_a_segment(tmp_path: Path) -> None:
    settings = config(LETTERS, credit="segment", record_dir=tmp_path, max_turns=5)
    async with played_by(replies("aeiou", "", "xyz", "aeiou"), settings) as play:
        episode = await play()
    assert [trace.rewards["world"].value for trace in episode.traces] == [1.0, 1.0]
    assert [trace.rewards["format"].value for trace in episode.traces] == [0.0, -0.5]
    assert [sum(node.sampled for node in trace.nodes) for trace in episode.traces] == [1, 3]


async def test_a_failure_of_the_world_masks_the_episode(tmp_path: Path) -> None:
    settings = config("air.testing:unreachable", record_dir=tmp_path)
    async with played_by(replies("a"), settings) as play:
        episode = await play()
    assert not episode.ok
    assert not episode.traces[0].rewards
    end = only(tmp_path).end
    assert end is not None
    assert not end.ok
    assert end.reward is None
    assert "does not answer" in str(end.error)
    assert end.failed_action == "a"


async def test_a_failure_of_the_model_server_is_at_no_action(tmp_path: Path) -> None:
    def gone(_: object) -> str:
        raise ConnectionResetError

    async with played_by(gone, config(LETTERS, record_dir=tmp_path)) as play:
        assert not (await play()).ok
    end = only(tmp_path).end
    assert end is not None
    assert (end.ok, end.failed_action) == (False, None)


def tasks_of(**taskset: Any) -> list[vf.Task]:
    return list(vf.load_environment(config(*taskset.pop("tasks"), taskset=taskset)).taskset)


def test_weights_give_each_task_its_share() -> None:
    tasks = tasks_of(tasks=["titanic", LETTERS], weights={LETTERS: 3}, examples_per_task=4)
    names = [task.data.task_id for task in tasks]
    assert [names.count(name) for name in ("titanic", LETTERS)] == [2, 6]
    assert {names[:4].count(LETTERS), names[4:].count(LETTERS)} == {3}
    assert [t.data.seed for t in tasks if t.data.task_id == LETTERS] == list(range(6))


def test_seeds_of_training_and_evaluation_never_meet() -> None:
    train = tasks_of(tasks=[LETTERS], examples_per_task=2, first_seed=7)
    evaluate = tasks_of(tasks=[LETTERS], examples_per_task=2, first_seed=7, purpose="evaluation")
    assert [task.data.seed for task in train] == [7, 8]
    assert [task.data.seed for task in evaluate] == [VALIDATION_SEED + 7, VALIDATION_SEED + 8]
    with pytest.raises(ValueError, match="first seed of evaluations"):
        AirTasksetConfig(tasks=[LETTERS], first_seed=VALIDATION_SEED - 1, examples_per_task=2)
    AirTasksetConfig(tasks=["titanic"], first_seed=VALIDATION_SEED)  # not held apart, as ever


def test_a_run_in_worlds_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def play() -> None:
        settings = config(LETTERS, record_dir=tmp_path / "run" / "trajectories")
        for reply in ("aeiou", "xyz"):
            async with played_by(replies(reply), settings) as episode:
                await episode()

    asyncio.run(play())
    assert main(["report", str(tmp_path / "run"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    (row,) = report["rows"]["last_submission"]
    assert (row["task"], row["n"], row["mean"], row["best"], row["test"]) == (
        LETTERS,
        2,
        0.5,
        1,
        0.5,
    )


def test_turns_are_the_worlds_own_unless_the_settings_limit_them() -> None:
    assert config(LETTERS).agent.max_turns is None
    assert config(LETTERS, max_turns=4).agent.max_turns == 4
    mixed = config(LETTERS, "titanic")
    again = ResearchEnvConfig.model_validate(json.loads(mixed.model_dump_json()))
    assert [one.research_turns for one in (mixed, again, config("titanic"))] == [10, 10, 10]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"agent": {"harness": {"id": "bash"}}}, "runs a program in a box"),
        ({"test_weight": 1.0}, "test_weight has no effect"),
        ({"taskset": {"weights": {"digits": 2}}}, "which is not in tasks"),
    ],
)
def test_settings_that_a_world_cannot_honour_are_refused(
    settings: dict[str, Any], message: str
) -> None:
    taskset = {"id": "air", "tasks": [LETTERS], **settings.pop("taskset", {})}
    agent = {"runtime": {"type": "docker"}, **settings.pop("agent", {})}
    with pytest.raises(ValueError, match=message):
        ResearchEnvConfig.model_validate({"taskset": taskset, "agent": agent, **settings})


def run_toml(folder: Path, model: Path) -> Path:
    """A run on letters and on a research task in a process box, evaluated on letters."""
    path = folder / "run.toml"
    path.write_text(
        f"""
max_steps = 2
seq_len = 896
output_dir = "{folder / "outputs"}"
[run]
name = "r"
[model]
name = "{model}"
[ckpt]
interval = 2
[orchestrator]
batch_size = 12
group_size = 4
[orchestrator.train.sampling]
max_completion_tokens = 24
[[orchestrator.train.source]]
[orchestrator.train.source.env]
credit = "segment"
[orchestrator.train.source.env.taskset]
id = "air"
tasks = ["{LETTERS}", "titanic"]
weights = {{ "{LETTERS}" = 2 }}
examples_per_task = 3
[orchestrator.train.source.env.agent]
max_turns = 2
[orchestrator.train.source.env.agent.runtime]
type = "subprocess"
[orchestrator.train.source.env.agent.harness]
id = "air"
[orchestrator.eval]
interval = 2
[[orchestrator.eval.source]]
num_examples = 2
[orchestrator.eval.source.env.taskset]
id = "air"
tasks = ["{LETTERS}"]
examples_per_task = 2
"""
    )
    return path


def recorded(folder: Path) -> list[Trajectory]:
    return [load(path) for path in folder.rglob("*.jsonl") if path.parent.name == "trajectories"]


def test_a_run_trains_on_a_world_and_a_research_task_and_evaluates(
    small: Path, tmp_path: Path
) -> None:
    result = command("rl", "@", run_toml(tmp_path, small), cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    run = tmp_path / "outputs" / "r"
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 2
    trained = recorded(run / "trajectories")
    tasks = [one.start.task for one in trained if one.start]
    assert {LETTERS, "titanic"} == set(tasks)
    assert all(one.end and one.end.ok for one in trained)
    seeds = {one.start.seed for one in trained if one.start}
    evaluated = {one.start.seed for one in recorded(run / "evaluations") if one.start}
    assert evaluated == {VALIDATION_SEED, VALIDATION_SEED + 1}
    assert max(seeds) < VALIDATION_SEED
    told = command("air", "eval", run, "--episodes", "2", "--no-start", cwd=tmp_path)
    assert told.returncode == 0, told.stdout + told.stderr
    assert LETTERS in told.stdout


def test_a_person_plays_a_world_and_the_record_replays(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(
        "nothing\n:expect reward of the step +0.0000\n:undo\naeiou\n:expect reward of the step +1.0000\n"
        ":diff\n:reply\naeiou\n.\n:reward\n:expect world +2.0000\naeiou\n:expect success 1\n:save a.jsonl\n"
    )
    played = command("air", "shell", LETTERS, "--exec", script, "--seed", "3", cwd=tmp_path)
    assert played.returncode == 0, played.stdout + played.stderr
    again = command("air", "replay", "a.jsonl", cwd=tmp_path)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "matched" in again.stdout
    lines = (tmp_path / "a.jsonl").read_text()
    (tmp_path / "b.jsonl").write_text(
        lines.replace('"reward": 1.0, "done"', '"reward": 0.5, "done"')
    )
    differs = command("air", "replay", "b.jsonl", cwd=tmp_path)
    assert differs.returncode == 1
    assert "reward" in differs.stdout
    (tmp_path / "c.jsonl").write_text(lines.replace('"replays": true', '"replays": false'))
    bad(command("air", "replay", "c.jsonl", cwd=tmp_path), "cannot be replayed")
    script.write_text(":expect after step 2\naeiou\n:expect success 1\n")
    on = command("air", "shell", "--from", "a.jsonl", "--turn", "2", "--exec", script, cwd=tmp_path)
    assert on.returncode == 0, on.stdout + on.stderr
    told = command("air", "show", "a.jsonl", cwd=tmp_path)
    assert told.returncode == 0, told.stdout + told.stderr
    assert "aeiou" in told.stdout


def test_tasks_lists_worlds(tmp_path: Path) -> None:
    told = command("air", "tasks", cwd=tmp_path)
    assert told.returncode == 0, told.stdout + told.stderr
    assert "question:gsm8k5" in told.stdout
