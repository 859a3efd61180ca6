"""Tasks that need GPUs: whole episodes in process boxes, over declared GPUs."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
import verifiers.v1 as vf

from air import tasks
from air.cli.main import main
from air.env.config import ResearchEnvConfig
from air.errors import ConfigError
from air.sandbox.pool import file_locks, gpu_leases
from air.sandbox.pool.gpus import INVENTORY_ENV, inventory
from air.testing import replies
from air.trajectories import read
from tests.e2e.conftest import played_by, research

LOOK = "Look.\n```bash\necho mine: $CUDA_VISIBLE_DEVICES\nsubmit\n```"


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks and an inventory of the test's own."""
    monkeypatch.setenv(file_locks.FOLDER_ENV, str(tmp_path / "locks"))
    monkeypatch.setenv(INVENTORY_ENV, "0=GPU-e2e-a,1=GPU-e2e-b,7=GPU-e2e-c")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def config(folder: Path, gpus: Any, needs: int = 1, **settings: Any) -> ResearchEnvConfig:
    """One task that needs so many GPUs, and a run that has these."""
    task = folder / "tasks" / "titanic"
    if not task.exists():
        shutil.copytree(tasks.load("titanic").folder, task)
        toml = (task / "task.toml").read_text()
        (task / "task.toml").write_text(f"gpus = {needs}\n{toml}")
    made = research(["titanic"], "subprocess", max_turns=1, gpus=gpus, **settings)
    taskset = made.taskset.model_copy(update={"task_roots": [task.parent]})
    return made.model_copy(update={"taskset": taskset})


async def test_each_box_has_a_gpu_of_its_own_and_the_record_names_it(tmp_path: Path) -> None:
    records = tmp_path / "records"
    settings = config(tmp_path, ["7", "GPU-e2e-a"], record_dir=records)
    async with played_by(replies(LOOK), settings) as play:
        episodes = await asyncio.gather(*(play() for _ in range(3)))
    assert all(episode.ok for episode in episodes)
    assert len(list(records.glob("*.jsonl"))) == 3
    for path in records.glob("*.jsonl"):
        lines = list(read(path))
        (gpu,) = lines[0]["gpus"]
        assert gpu in ("GPU-e2e-c", "GPU-e2e-a")
        (step,) = (x for x in lines if x["type"] == "step")
        assert f"mine: {gpu}\n" in step["observation"]
    assert not any(gpu_leases.holders(gpu) for gpu in inventory())


def test_an_episode_with_a_gpu_is_replayed_on_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = config(tmp_path, ["7"], record_dir=tmp_path / "records")

    async def episode() -> None:
        async with played_by(replies(LOOK), settings) as play:
            await play()

    asyncio.run(episode())
    command = ["replay", str(tmp_path / "records")]
    assert main([*command, "--gpus", "0,1"]) == 0, capsys.readouterr()
    assert main([*command, "--gpus", "auto"]) == 0, capsys.readouterr()
    assert main(command) == 2
    assert "--gpus auto" in capsys.readouterr().err
    assert main([*command, "--gpus", "5"]) == 2
    assert "there is no GPU '5'" in capsys.readouterr().err
    assert not any(gpu_leases.holders(gpu) for gpu in inventory())


def test_a_task_with_a_gpu_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config(tmp_path, [])
    root = str(tmp_path / "tasks")
    command = ["tasks", "--task-root", root, "check", "titanic", "--provider", "process"]
    assert main([*command, "--gpus", "0"]) == 0, capsys.readouterr()
    assert main(command) == 2
    assert "none are given to boxes" in capsys.readouterr().err


async def test_graders_have_gpus_of_their_own(tmp_path: Path) -> None:
    settings = config(tmp_path, ["0", "7"])
    with (tmp_path / "tasks" / "titanic" / "task.toml").open("a") as toml:
        toml.write("gpus = 1\n")  # its last table is `[grader]`
    async with played_by(replies(LOOK), settings) as play:
        episodes = await asyncio.gather(*(play() for _ in range(3)))
    assert all(episode.ok for episode in episodes)
    few = config(tmp_path, ["0"])
    with pytest.raises(ConfigError, match="a box needs 1 GPUs, graders 1, and the run has 1: 0 ="):
        async with vf.load_environment(few).serving():
            pass


async def test_boxes_that_name_a_gpu_of_the_trainer_are_refused_at_the_start(
    tmp_path: Path,
) -> None:
    env = vf.load_environment(config(tmp_path, ["0", "7"], trainer_gpus=["0"]))
    with pytest.raises(ConfigError, match="boxes: 0 = GPU-e2e-a, 7 = GPU-e2e-c; trainer: 0 = GPU"):
        async with env.serving():
            pass


@pytest.mark.parametrize(
    ("gpus", "needs", "said"),
    [
        ([], 1, "env.gpus: task titanic needs 1 cpu, 512 MiB, 1 gpu, but boxes have no GPU"),
        (
            ["0"],
            2,
            "env.gpus: a box needs 2 GPUs, graders 0, and the run has 1: 0 = GPU-e2e-a — na",
        ),
        (["3"], 1, "gpus: there is no GPU '3' — there are: 0 = GPU-e2e-a, 1 = GPU-e2e-b, 7 = "),
    ],
)
async def test_what_a_task_cannot_get_is_refused_at_the_start(
    gpus: Any, needs: int, said: str, tmp_path: Path
) -> None:
    env = vf.load_environment(config(tmp_path, gpus, needs))
    with pytest.raises(ConfigError) as caught:
        async with env.serving():
            pass
    assert str(caught.value).startswith(said)


def test_the_keys_of_the_run_file(tmp_path: Path) -> None:
    assert config(tmp_path, "auto", slots_per_gpu=2).gpus == "auto"
    for bad in ("7", [7]):
        with pytest.raises(ValueError, match='must be "auto" or a list of names such as'):
            config(tmp_path, bad)
    with pytest.raises(ValueError, match="slots_per_gpu"):
        config(tmp_path, "auto", slots_per_gpu=0)
