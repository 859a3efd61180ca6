"""`air eval` of a run: its own settings, its start model, and an evaluation that goes on."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from air.testing import ScriptedServer, replies
from air.trajectories import load, trajectory_files
from air.worlds.sources import VALIDATION_SEED
from tests.e2e.commands.test_commands import bad, command


def test_a_run_is_played_with_its_own_settings_beside_its_start(
    trained: Path, small: Path, tmp_path: Path
) -> None:
    run, folder = trained / "outputs" / "r", tmp_path / "e"
    flags = ["--episodes", "2", "--record-dir", folder]
    alone = command("air", "eval", run, *flags, "--no-start", cwd=tmp_path)
    assert alone.returncode == 0, alone.stdout + alone.stderr
    assert [path.name for path in folder.iterdir()] == ["step_2"]
    trajectories = [load(path) for path in trajectory_files(folder / "step_2")]
    (source,) = json.loads((run / "config.json").read_text())["orchestrator"]["train"]["source"]
    for one in trajectories:
        assert one.start is not None
        assert one.start.max_turns == source["env"]["agent"]["max_turns"]
        assert one.start.pay["format_penalty"] == source["env"]["format_penalty"]
        assert one.start.model == str(run / "checkpoints" / "step_2")
    # Interrupted: one episode is lost, and only that one is played again.
    lost, kept = trajectories
    lost.path.unlink()
    both = command("air", "eval", run / "checkpoints" / "step_2", *flags, cwd=tmp_path)
    assert both.returncode == 0, both.stdout + both.stderr
    assert "step_2: 1 of 2 episodes are recorded already" in both.stdout
    again = trajectory_files(folder / "step_2")
    assert len(again) == 2
    assert kept.path in again
    models = {one.start.model for one in map(load, trajectory_files(folder / "start")) if one.start}
    assert models == {str(small)}
    rows = {tuple(line.split()[:2]) for line in both.stdout.splitlines()}
    assert {("titanic", "start"), ("titanic", "step_2")} <= rows
    assert any(
        line.startswith("φ, all tasks") and " change " in line for line in both.stdout.splitlines()
    )
    shown = command("air", "show", folder / "start", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    other = [*flags, "--no-start", "--temperature", "0.5"]
    bad(command("air", "eval", run, *other, cwd=tmp_path), str(folder), "other settings")


@pytest.mark.parametrize("lost", [0, 2])
def test_the_episode_that_is_lost_is_played_again_with_its_seed(tmp_path: Path, lost: int) -> None:
    """Whichever it is: an interruption loses those that take longest, not those that begin last."""
    rows = [{"question": f"What is {n} + 1?", "answer": n + 1} for n in range(4)]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = ["--tasks", f"posed:{file}", "--record-dir", tmp_path / "e", "--runtime", "subprocess"]

    def seeds() -> dict[int, Path]:
        recorded = [load(path) for path in trajectory_files(tmp_path / "e")]
        numbers = {one.start.seed - VALIDATION_SEED: one.path for one in recorded if one.start}
        assert len(numbers) == len(recorded)
        return dict(sorted(numbers.items()))

    with ScriptedServer(replies("\\boxed{2}")) as server:
        argv = ["air", "eval", server.url, *flags, "--episodes"]
        first = command(*argv, "3", cwd=tmp_path)
        assert first.returncode == 0, first.stdout + first.stderr
        whole = seeds()
        assert list(whole) == [0, 1, 2]
        whole.pop(lost).unlink()
        again = command(*argv, "4", cwd=tmp_path)
        assert again.returncode == 0, again.stdout + again.stderr
    assert list(seeds()) == [0, 1, 2, 3]
    assert whole.items() <= seeds().items()


def test_an_evaluation_that_was_killed_early_does_not_hide_an_older_one(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"question": "What is 1 + 1?", "answer": 2}\n')
    with ScriptedServer(replies("\\boxed{2}")) as server:
        argv = ["air", "eval", server.url, "--model-name", "m", "--tasks", "posed:rows.jsonl"]
        argv += ["--runtime", "subprocess", "--episodes", "1"]
        first = command(*argv, cwd=tmp_path)
        assert first.returncode == 0, first.stdout + first.stderr
        done, killed = tmp_path / "outputs" / "eval-m", tmp_path / "outputs" / "eval-m-2"
        killed.mkdir()
        shutil.copy(done / "evaluation.json", killed)  # `--fresh`, killed while the model loaded
        (tmp_path / "outputs" / "eval-m-3").mkdir()  # killed before that
        again = command(*argv, cwd=tmp_path)
        assert again.returncode == 0, again.stdout + again.stderr
        assert "1 of 1 episodes are recorded already in outputs/eval-m " in again.stdout
        (record,) = trajectory_files(done)
        begun = killed / record.relative_to(done)
        begun.parent.mkdir()
        begun.write_text(record.read_text().splitlines(keepends=True)[0])  # killed in an episode
        last = command(*argv, cwd=tmp_path)
        assert last.returncode == 0, last.stdout + last.stderr
        assert "recorded already" not in last.stdout
    assert len(trajectory_files(killed)) == 2
    assert trajectory_files(done) == [record]


def test_a_start_model_that_is_gone_is_named(trained: Path, tmp_path: Path) -> None:
    run = tmp_path / "outputs" / "r"
    shutil.copytree(trained / "outputs" / "r", run)
    config = json.loads((run / "config.json").read_text())
    config["model"]["name"] = str(tmp_path / "gone")
    (run / "config.json").write_text(json.dumps(config))
    bad(command("air", "eval", run, cwd=tmp_path), str(tmp_path / "gone"), "--no-start")
    shutil.rmtree(run / "checkpoints")
    bad(command("air", "eval", run, cwd=tmp_path), "no checkpoint yet")  # killed before the first
    (run / "checkpoints").mkdir()
    bad(command("air", "eval", run, cwd=tmp_path), "no checkpoint yet")
    nothing = command("air", "eval", run, "--episodes", "0", cwd=tmp_path)
    assert nothing.returncode == 2
    assert "--episodes: must be 1 or more, not 0" in nothing.stderr


def test_a_model_that_cannot_be_loaded_leaves_no_evaluation(small: Path, tmp_path: Path) -> None:
    cut = shutil.copytree(small, tmp_path / "cut")
    os.truncate(cut / "model.safetensors", 1000)
    flags = ["--tasks", "titanic", "--runtime", "subprocess", "--episodes", "1"]
    bad(command("air", "eval", cut, *flags, cwd=tmp_path), str(cut), "cannot be loaded")
    assert not (tmp_path / "outputs").exists()
