"""A resumed run: what it made after the step it goes on from becomes a branch, and nothing is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from air.errors import MissingError, UsageError
from air.train.config import overrides
from air.train.config.run_config import ResumeConfig, RunConfig
from air.train.loop.resume_branches import metrics, move_later_results
from air.train.loop.run_folder import remove_unfinished, start_from, steps
from air.train.monitors import wandb_file
from air.trajectories import Recorder, evaluations, trained_tokens
from air.trajectories.run_comparison import read_run

RUN = """
max_steps = 9
[run]
name = "r"
[[orchestrator.train.source]]
"""

START = {
    "task": "x",
    "model": "m",
    "isolation": "container",
    "metric": "accuracy",
    "direction": "higher",
    "baseline": 0.4,
    "task_hash": "h",
}
END = {"reward": 0.3, "terms": {}, "metrics": {}}


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    (tmp_path / "run.toml").write_text(RUN)
    argv = ["@", str(tmp_path / "run.toml"), "--output-dir", str(tmp_path / "outputs")]
    return overrides.build(RunConfig, overrides.parse(argv, RunConfig))


@pytest.fixture
def folder(config: RunConfig) -> Path:
    """A run of four steps of two episodes, killed in the fifth; a checkpoint after every second step.
    The first attempt at an episode of step 2 failed, and was repeated."""
    for step in range(1, 5):
        if step == 2:
            play(config.folder, step, "failed", t=10 * step)
        names = [play(config.folder, step, letter, t=10 * step + 1) for letter in "ab"]
        add(config.folder / "groups.jsonl", step=step, episodes=[{"episode": n} for n in names])
        add(config.folder / "metrics.jsonl", step=step, reward=0.1)
    play(config.folder, 5, "a", t=51)
    for step in (2, 4):
        save(config.folder, step)
        trained_tokens.file_of(config.folder, step).parent.mkdir(exist_ok=True)
        trained_tokens.file_of(config.folder, step).touch()
    for step in (0, 2, 4):  # that of step 4 was interrupted
        (config.folder / "evaluations" / f"step_{step}").mkdir(parents=True)
        if step < 4:
            add(config.folder / "evaluations.jsonl", step=step, reward=0.2)
    (config.folder / "config.json").write_text(overrides.dump(config))
    return config.folder


def play(folder: Path, step: int, letter: str, *, t: float) -> str:
    name = f"{letter}{step}"
    kept = "artefacts/ab/abcd.tar.gz"
    with Recorder(folder / "trajectories", name) as recorder:
        recorder.write("start", t=t, episode=name, **START)
        if step == 5:
            return name
        recorder.write("validate", t=t + 1, score=0.5, kept=kept)
        trace = folder / "trajectories" / "traces" / f"{name}.jsonl"
        trace.parent.mkdir(exist_ok=True)
        trace.write_text("{}\n")
        recorder.write(
            "end", t=t + 5, ok=letter != "failed", **END, trace_file=f"traces/{name}.jsonl"
        )
    (folder / "trajectories" / kept).parent.mkdir(parents=True, exist_ok=True)
    (folder / "trajectories" / kept).write_bytes(b"artefact")
    return name


def add(path: Path, **line: Any) -> None:
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def save(folder: Path, step: int, content: str = "") -> None:
    checkpoint = folder / "checkpoints" / f"step_{step}"
    checkpoint.mkdir(parents=True)
    (checkpoint / "config.json").write_text(content)


def recorded(folder: Path) -> set[str]:
    return {path.stem for path in (folder / "trajectories").glob("*.jsonl")}


def resumed(config: RunConfig, step: int | None = None) -> RunConfig:
    return config.model_copy(update={"resume": ResumeConfig(step=step)})


def test_what_came_later_becomes_a_branch(config: RunConfig, folder: Path) -> None:
    branch = move_later_results(folder, 2)
    assert branch == folder / "branches" / "after_step_2"
    assert steps(folder / "checkpoints") == [2]
    assert steps(branch / "checkpoints") == [4]
    assert trained_tokens.recorded_steps(folder) == [2]
    assert trained_tokens.recorded_steps(branch) == [4]
    assert [row["step"] for row in metrics(folder)] == [1, 2]
    assert [row["step"] for row in metrics(branch)] == [3, 4]
    assert recorded(folder) == {"a1", "b1", "failed2", "a2", "b2"}
    assert recorded(branch) == {"a3", "b3", "a4", "b4", "a5"}
    for place, step in ((folder, 2), (branch, 4)):
        assert (place / "trajectories" / "traces" / f"a{step}.jsonl").is_file()
        assert (place / "trajectories" / "artefacts" / "ab" / "abcd.tar.gz").is_file()
    assert not (folder / "trajectories" / "traces" / "a4.jsonl").exists()
    assert move_later_results(folder, 2) is None


def test_evaluations_go_with_their_steps(folder: Path) -> None:
    branch = move_later_results(folder, 4)
    assert branch is not None
    assert evaluated(branch) == ["step_4"]
    second = move_later_results(folder, 1)
    assert second is not None
    assert (evaluated(folder), evaluated(second)) == (["step_0"], ["step_2"])
    assert [row["step"] for row in evaluations.rows(folder)] == [0]
    assert [row["step"] for row in evaluations.rows(second)] == [2]
    everything = move_later_results(folder, 0)
    assert everything is not None
    assert (evaluated(folder), evaluated(everything)) == ([], ["step_0"])


def test_an_episode_that_began_during_the_step_before_goes_with_its_own_step(folder: Path) -> None:
    """With overlap, episodes of step 5 begin before those of step 4 have ended; an attempt is repeated."""
    for name, step in (("early", 5), ("again", 4)):
        with Recorder(folder / "trajectories", name) as recorder:
            recorder.write("start", t=42.0, episode=name, training_step=step, **START)
    branch = move_later_results(folder, 4)
    assert branch is not None
    assert recorded(branch) == {"early", "a5"}
    assert "again" in recorded(folder)


def evaluated(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "evaluations").iterdir())


@pytest.mark.parametrize(("step", "moves"), [(4, False), (2, True)])
def test_only_a_run_that_repeats_steps_is_a_new_run_on_weights_and_biases(
    step: int, moves: bool, folder: Path
) -> None:
    """Step 5 was interrupted before it had metrics."""
    wandb_file(folder).parent.mkdir()
    wandb_file(folder).write_text("1234abcd\n")
    branch = move_later_results(folder, step)
    assert branch is not None
    assert (wandb_file(folder).is_file(), wandb_file(branch).is_file()) == (not moves, moves)


def test_a_branch_is_a_run_that_can_be_read_and_resumed(folder: Path) -> None:
    branch = move_later_results(folder, 2)
    assert branch is not None
    argv = ["@", str(branch / "config.json"), "--resume"]
    config = overrides.build(RunConfig, overrides.parse(argv, RunConfig))
    assert config.folder == branch
    assert start_from(config) == branch / "checkpoints" / "step_4"
    assert read_run(branch).counts()["unfinished"] == 1
    assert len(read_run(folder).steps) == 2


def test_a_later_resume_takes_the_newest_branch(config: RunConfig, folder: Path) -> None:
    assert start_from(resumed(config, 2)) == folder / "checkpoints" / "step_2"
    move_later_results(folder, 2)
    save(folder, 3)
    add(folder / "metrics.jsonl", step=3)
    assert start_from(resumed(config)) == folder / "checkpoints" / "step_3"
    assert move_later_results(folder, 2) == folder / "branches" / "after_step_2-2"
    assert start_from(resumed(config)) == folder / "checkpoints" / "step_2"


def test_a_process_killed_while_it_sets_aside_loses_nothing(folder: Path) -> None:
    """As it is after the checkpoint and one trajectory were moved."""
    half = folder / "branches" / "after_step_2"
    (half / "checkpoints").mkdir(parents=True)
    (half / "trajectories").mkdir()
    for name in ("checkpoints/step_4", "trajectories/a3.jsonl"):
        (folder / name).rename(half / name)
    rest = move_later_results(folder, 2)
    assert rest == folder / "branches" / "after_step_2-2"
    assert recorded(rest) == {"b3", "a4", "b4", "a5"}
    assert [row["step"] for row in metrics(rest)] == [3, 4]
    assert [row["step"] for row in metrics(folder)] == [1, 2]


def test_half_a_line_is_dropped_and_no_line_is_appended_to_it(folder: Path) -> None:
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "rew')
    assert move_later_results(folder, 4) is not None  # the episode of step 5
    add(folder / "metrics.jsonl", step=5)
    assert [row["step"] for row in metrics(folder)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("line", ['{"reward": 1.0}', '{"step": "two"}', "[1]"])
def test_a_line_without_its_step_is_named(line: str, folder: Path) -> None:
    file = folder / "metrics.jsonl"
    file.write_text(f'{{"step": 1}}\n{line}\n{{"step": 3}}\n')
    with pytest.raises(UsageError, match=r"metrics\.jsonl.*2.*`step`") as caught:
        move_later_results(folder, 2)
    assert "\n" not in str(caught.value)
    assert len(file.read_text().splitlines()) == 3
    assert steps(folder / "checkpoints") == [2, 4]


def test_a_run_without_a_checkpoint_starts_again_or_resumes_from_the_start(
    config: RunConfig, folder: Path
) -> None:
    with pytest.raises(UsageError, match="or --resume to continue it"):
        start_from(config)
    (folder / "checkpoints").rename(folder.parent / "elsewhere")
    assert start_from(config) is None
    assert start_from(resumed(config)) is None
    with pytest.raises(MissingError, match="no checkpoint to resume from"):
        start_from(resumed(config, 2))
    branch = move_later_results(folder, 0)
    assert branch is not None
    assert (recorded(folder), metrics(folder)) == (set(), [])
    assert len(recorded(branch)) == 10


def test_a_row_before_the_first_step_goes_with_the_whole_run(folder: Path) -> None:
    (folder / "metrics.jsonl").write_text('{"step": 0, "val_loss": 2.0}\n')
    (folder / "checkpoints").rename(folder.parent / "elsewhere")
    branch = move_later_results(folder, 0)
    assert branch is not None
    assert (metrics(folder), len(metrics(branch))) == ([], 1)


def test_a_mistyped_name_is_no_run_to_resume(config: RunConfig) -> None:
    with pytest.raises(MissingError, match=r"no checkpoint.*check run\.name"):
        start_from(resumed(config))


def test_the_folder_of_a_policy_is_never_taken_for_a_run(config: RunConfig) -> None:
    config.folder.mkdir(parents=True)
    (config.folder / "config.json").write_text('{"model_type": "qwen3"}')
    with pytest.raises(UsageError, match=r"there already — give another --run\.name$"):
        start_from(config)


def test_unfinished_saves_are_removed(folder: Path) -> None:
    root = folder / "checkpoints"
    (root / ".step_6.4194305").mkdir()
    (root / ".step_2.4194305.old").mkdir()
    (root / "step_4").rename(root / ".step_4.4194305.old")  # killed between two renames
    (root / ".notes").mkdir()
    remove_unfinished(folder)
    assert sorted(path.name for path in root.iterdir()) == [".notes", "step_2", "step_4"]
