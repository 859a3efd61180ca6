"""Questions are played, recorded, replayed and trained on as any other task."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from air.env.config import ResearchEnvConfig
from air.paths import shipped
from air.testing import replies
from air.trajectories import Trajectory, load
from air.worlds.questions.arithmetic import problems
from air.worlds.questions.shop import players as shop
from air.worlds.questions.sql import players as sql
from air.worlds.questions.sql import questions
from air.worlds.sources import VALIDATION_SEED
from tests.e2e.commands.test_commands import command
from tests.e2e.conftest import played_by


def reply(answer: str, thought: str = "") -> str:
    return f"<think>{thought}</think><answer>{answer}</answer>"


def buying() -> Sequence[str]:
    player = shop.perfect(None, 0)
    return [player("") for _ in range(3 + len(shop.goal(None, 0).options))]


NUMBER = problems.generated(None)(0).answer
QUERY = sql.block(questions.generated(None)(0).gold)


@pytest.mark.parametrize(
    ("task", "said", "rewards"),
    [
        ("gsm8k5", [reply("-1", thought=NUMBER), reply(f"It is {NUMBER}.")], [-0.1, 10.0]),
        ("sql5", [reply("SELECT 0", thought=QUERY), reply(QUERY)], [0.0, 0.5]),
        ("shop", [reply(" || ".join(buying()))], [1.0]),
    ],
)
async def test_a_question_is_played_recorded_and_replayed(
    task: str, said: list[str], rewards: list[float], tmp_path: Path
) -> None:
    settings = {
        "taskset": {"id": "air", "tasks": [f"question:{task}"]},
        "agent": {"harness": {"id": "air"}, "runtime": {"type": "docker"}},
        "record_dir": tmp_path,
    }
    async with played_by(replies(*said), ResearchEnvConfig.model_validate(settings)) as play:
        episode = await play()
    assert episode.ok, episode.traces[0].errors
    assert episode.traces[0].rewards["world"].value == pytest.approx(sum(rewards))
    assert episode.traces[0].rewards["format"].value == 0
    path = only(tmp_path)
    recorded = load(path)
    assert [step.reward for step in recorded.steps] == rewards
    assert recorded.end
    assert recorded.end.why == "done"
    again = command("air", "replay", path, cwd=tmp_path)
    assert again.returncode == 0, again.stdout + again.stderr


def only(folder: Path) -> Path:
    (path,) = folder.glob("*.jsonl")
    return path


def trajectories(folder: Path) -> list[Trajectory]:
    return [load(path) for path in folder.rglob("*.jsonl") if path.parent.name == "trajectories"]


@pytest.mark.full
def test_the_shipped_run_file_trains_and_evaluates(small: Path, tmp_path: Path) -> None:
    result = command(
        *("rl", "@", shipped("configs") / "questions" / "small.toml", "--model.name", small),
        *("--max-steps", "1", "--orchestrator.batch-size", "12"),
        *("--orchestrator.eval.interval", "1", "--ckpt.interval", "1"),
        *("--output-dir", tmp_path / "outputs", "--run.name", "r"),
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    run = tmp_path / "outputs" / "r"
    trained = [one.start for one in trajectories(run / "trajectories") if one.start]
    kinds = {"question:gsm8k5-level1", "question:sql5-level1", "question:shop-level1"}
    assert {start.task for start in trained} == kinds
    evaluated = [one.start for one in trajectories(run / "evaluations") if one.start]
    assert {start.task for start in evaluated} == {"question:gsm8k-level1", "question:sql-level1"}
    assert min(start.seed for start in evaluated) >= VALIDATION_SEED
    assert all(one.end and one.end.ok for one in trajectories(run))
