"""Replay: whole recorded runs played again in real boxes, and every kind of difference found."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from air.cli.main import main
from air.errors import ConfigError
from air.replay.comparison import ReplayResult
from air.replay.options import ReplayOptions
from air.replay.regrade import rescore
from air.replay.replayer import Replayer
from air.testing import replies
from air.train.evaluation.scripted_agent import demonstrate
from air.trajectories import load, trajectory_files
from tests import once
from tests.e2e.commands.test_commands import cold
from tests.e2e.conftest import attempt, containers_in_full, played_by, research


async def replayed(path: Path, **options: Any) -> ReplayResult:
    async with Replayer(ReplayOptions(**options)) as replayer:
        return await replayer.replay(load(path))


async def recorded(
    folder: Path, runtime: str, *texts: str, tasks: tuple[str, ...] = ("titanic",), **settings: Any
) -> Path:
    """One episode of a scripted model; its trajectory."""
    config = research(tasks, runtime, record_dir=folder, **settings)
    async with played_by(replies(*texts), config) as play:
        await play()
    return trajectory_files(folder)[0]


def copied(
    folder: Path,
    factory: pytest.TempPathFactory,
    name: str,
    runtime: str,
    *texts: str,
    **settings: Any,
) -> Path:
    """The trajectory of an episode that the test run plays once, copied into `folder` with its artefacts."""

    def record(shared: Path) -> None:
        with ThreadPoolExecutor(1) as thread:  # pytest-asyncio has an event loop in this one
            thread.submit(asyncio.run, recorded(shared, runtime, *texts, **settings)).result()

    shutil.copytree(once.shared(factory, name, record), folder, dirs_exist_ok=True)
    return trajectory_files(folder)[0]


def changed(path: Path, number: int, change: Callable[[dict[str, Any]], None]) -> Path:
    """A copy in which one line is another."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    change(lines[number])
    other = path.with_name("changed.jsonl")
    other.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return other


def one_character(text: str) -> str:
    """`text` with its last letter or digit turned into another one."""
    at = max(n for n, c in enumerate(text) if c.isalnum())
    return text[:at] + ("7" if text[at] != "7" else "1") + text[at + 1 :]


async def test_every_trajectory_of_a_run_replays_with_all_scores_equal(
    runtime: str, tmp_path: Path
) -> None:
    tasks = ["titanic", "digits", "prisonersDilemma"]
    folder = tmp_path / "run" / "trajectories"
    seed = 5 if runtime == "docker" else 6
    await demonstrate(tasks, 1, folder, seed=seed, runtime=runtime)
    files = trajectory_files(tmp_path / "run")
    assert len(files) == 3
    async with Replayer(ReplayOptions(), at_once=2) as replayer:
        done = [await replayer.replay(load(file)) for file in files]
    assert [d.differences for d in done] == [[]] * len(files)
    assert all(d.equal_scores == d.scores >= 2 for d in done)
    assert sum(d.steps for d in done) == sum(len(load(f).steps) for f in files)
    assert not [d.notes for d in done if d.notes]


MLGYM = (
    "Look.\n```\ncd data && export N=3 && ls\n```",
    "Open.\n```\nopen ../solve.py\n```",
    "No action at all.",
    "Where?\n```\npwd; echo $N; date; mktemp; python3 -c 'import time; print(time.time())'\n```",
    "Note.\n```\nmemory_write method 2 is best\n```",
    'Write.\n```\ncd .. && echo "method=2 level=2" > config && python3 solve.py\n```',
    "Score.\n```\nvalidate\n```",
    "Recall.\n```\nmemory_read method\n```",
    "Missing.\n```\nrm submission.csv\n```",
    "Done.\n```\nsubmit\n```",
)


@pytest.fixture
def mlgym(runtime: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An episode with tools, a kept shell, a malformed reply, clocks, and a missing artefact."""
    settings = {"harness": {"format": "mlgym", "memory": True}, "max_turns": 12}
    return copied(tmp_path, tmp_path_factory, f"mlgym-{runtime}", runtime, *MLGYM, **settings)


@containers_in_full
async def test_tools_shell_and_clocks_replay(mlgym: Path) -> None:
    done = await replayed(mlgym)
    assert done.differences == []
    assert done.steps == len(MLGYM)
    # The rules are what makes the clock's line equal, and nothing else is hidden by them.
    exact = await replayed(mlgym, exact=True)
    assert {d.turn for d in exact.differences} == {4}


async def test_a_record_that_says_steps_left_is_replayed_too(tmp_path: Path) -> None:
    """As the format `mlgym` did before it said `turns left`, like the other formats."""
    harness = {"format": "mlgym"}
    path = await recorded(tmp_path, "subprocess", *MLGYM[:3], harness=harness, max_turns=3)
    text = path.read_text()
    assert text.count("turns left] [open: ") == 4  # after the prompt and three steps
    old = path.with_name("old.jsonl")
    old.write_text(text.replace("turns left] [open: ", "steps left] [open: "))
    assert (await replayed(old)).differences == []
    other = path.with_name("other.jsonl")
    other.write_text(text.replace("turns left] [open: ", "tries left] [open: "))
    assert [d.turn for d in (await replayed(other)).differences] == [0, 1, 2, 3]


@containers_in_full
async def test_from_a_step_on_by_snapshot(mlgym: Path) -> None:
    for step in (4, 7, 10):
        done = await replayed(mlgym, from_step=step)
        assert done.differences == [], step
        assert done.steps == len(MLGYM) - step + 1
    with pytest.raises(ConfigError, match="there is no step 99"):
        await replayed(mlgym, from_step=99)


@pytest.mark.parametrize(
    ("field", "line", "turn", "what"),
    [
        ("observation", 1, 1, "observation"),
        ("observation", 5, 3, "observation"),
        ("shown", 5, 3, "shown"),
        ("action", 3, 2, "action"),
        ("reply", 3, 2, "action"),
        ("code", 3, 2, "exit code"),
        ("score", 4, 2, "score"),
        ("delta", 4, 2, "delta"),
        ("phi", 4, 2, "phi"),
        ("prompt", 0, 0, "prompt"),
        ("system", 0, 0, "system prompt's end"),
        ("reward", -1, 3, "reward"),
        ("truncated", 3, 2, "truncated"),
        ("floor", 4, 2, "floor"),
        ("problem", 4, 2, "problem with the artefact"),
    ],
)
async def test_one_changed_character_is_caught_at_its_step(
    episode: Path, field: str, line: int, turn: int, what: str
) -> None:
    def change(data: dict[str, Any]) -> None:
        old = data[field]
        if field == "reply":
            data[field] = old.replace("method=2", "method=3")
        elif isinstance(old, str):
            data[field] = one_character(old) if old else "x"
        else:
            data[field] = old + 1

    done = await replayed(changed(episode, line, change))
    first = done.differences[0]
    assert first.turn == turn
    assert first.what.split(",")[0] == what
    assert first.recorded != first.replayed


async def test_the_standard_error_of_the_test_is_compared(episode: Path) -> None:
    done = await replayed(changed(episode, -1, lambda data: data["test"].update(stderr=0.5)))
    assert [(d.turn, d.what) for d in done.differences] == [(3, "test standard error")]


async def test_a_reply_that_was_no_action_is_compared(tmp_path: Path) -> None:
    """Lines: the first, a reply that is no action, a whole attempt, its grade, another reply that is none."""
    texts = ("no action", attempt(1, 1), "none either")
    path = await recorded(tmp_path, "subprocess", *texts, max_turns=3)
    assert (await replayed(path)).matched
    for line, fields, found in (
        (1, {"shown": ""}, (1, "shown, line 1")),
        (1, {"problem": "length"}, (1, "problem")),
        (1, {"problem": "x"}, (1, "problem")),
        (1, {"observation": "x"}, (1, "observation")),
        (1, {"turn": 2}, (1, "turn")),
        (2, {"problem": "x"}, (2, "problem")),
        (4, {"problem": "length"}, (3, "shown")),
    ):
        done = await replayed(changed(path, line, updated(fields)))
        assert [(d.turn, d.what) for d in done.differences][:1] == [found]
    # What the token limit cut is recorded so, and is the last.
    cut = changed(path, 4, updated({"problem": "length", "shown": ""}))
    assert (await replayed(cut)).differences == []


def updated(fields: dict[str, Any]) -> Callable[[dict[str, Any]], None]:
    return lambda data: data.update(fields)


def inside(name: str, **fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda data: data[name].update(fields)


ODD: tuple[tuple[int, Callable[[dict[str, Any]], None], str], ...] = (
    (0, inside("scale", direction="highes"), "`direction`"),
    (0, inside("scale", surprise=1), "no key `surprise`"),
    (0, inside("pay", delta="besx"), "`delta`"),
    (0, inside("settings", max_observation_tokens="x"), "`max_observation_tokens`"),
    (0, inside("settings", window=0), "`window`"),
    (0, inside("settings", tokenizer=5), "`tokenizer`"),
    (0, updated({"format": "fencef"}), "fencef"),
    (0, updated({"image": "air\ud800"}), "is no image"),
    (3, inside("call", tool={"name": "open"}), "step 2: fenced has no tool 'open'"),
)
"""A line of `episode`, how it is changed, and what is said of it."""


async def test_odd_files_are_named_and_the_others_are_replayed(
    episode: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, (line, change, _) in enumerate(ODD):
        changed(episode, line, change).rename(episode.with_name(f"odd{number}.jsonl"))
    looks = ("Look.\n```\nopen solve.py\n```", "Done.\n```\nsubmit\n```")
    tool = await recorded(tmp_path / "tool", "subprocess", *looks, harness={"format": "mlgym"})
    changed(tool, 1, lambda data: data["call"]["tool"].update(name="opem"))
    folders = [str(episode.parent), str(tool.parent)]
    assert await asyncio.to_thread(main, ["replay", *folders, "--at-once", "4"]) == 2
    said = capsys.readouterr()
    assert "2 of 2 matched" in said.out
    assert f"{len(ODD) + 1} could not be replayed" in said.out
    errors = said.err.splitlines()
    for number, (_, _, what) in enumerate(ODD):
        (line_of,) = [one for one in errors if f"odd{number}.jsonl" in one]
        assert what in line_of
    assert [one for one in errors if "step 1: mlgym has no tool 'opem'" in one]


async def test_from_a_step_on_by_the_command(
    episode: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await asyncio.to_thread(main, ["replay", str(episode), "--from", "3"]) == 0
    assert f"matched {episode} titanic: 1 steps, 2/2 scores equal" in capsys.readouterr().out


async def test_a_tokenizer_that_is_not_here_is_noted_and_asked_of_nobody(episode: Path) -> None:
    other = changed(episode, 0, inside("settings", tokenizer="nobody/nothing"))
    began = time.monotonic()
    # A process of its own: the hub's switch is read when its package is imported.
    done = await asyncio.to_thread(cold, "air", "replay", other, cwd=other.parent)
    assert time.monotonic() - began < 180  # a hub that does not answer is tried for longer
    assert done.returncode == 0, done.stderr
    assert "cut observations are not compared: tokenizer nobody/nothing" in done.stdout


async def test_a_score_that_is_none_is_named_where_it_is_only_taken_over(episode: Path) -> None:
    odd = changed(episode, 2, updated({"score": float("nan")}))
    with pytest.raises(ConfigError, match="step 1"):
        await replayed(odd, from_step=3)


def without_line(path: Path, number: int) -> Path:
    """A copy that lacks one line."""
    other = path.with_name("less.jsonl")
    lines = path.read_text().splitlines(keepends=True)
    other.write_text("".join(lines[:number] + lines[number + 1 :]))
    return other


async def test_a_grading_that_is_not_there_is_a_difference(episode: Path) -> None:
    done = await replayed(without_line(episode, 4))
    assert (done.differences[0].turn, done.differences[0].what) == (2, "gradings")


async def test_a_seed_in_an_action_is_compared(tmp_path: Path) -> None:
    text = "Go.\n```bash\necho hi # --seed 1\n```\n"
    path = await recorded(tmp_path, "subprocess", text, attempt(1, 1, "submit"))
    same = load(path)
    assert same.steps[0].action is not None, same.steps[0].shown
    bad = changed(path, 1, lambda data: data.update(reply=text.replace("seed 1", "seed 2")))
    assert (await replayed(bad)).differences[0].what == "action, line 1"


async def test_another_reward_than_recorded_is_a_difference(episode: Path) -> None:
    wrong = load(changed(episode, -1, lambda data: data.update(reward=data["reward"] + 1)))
    async with Replayer(ReplayOptions()) as replayer:
        done = await rescore(wrong, replayer.grader_of(wrong), {}, ReplayOptions())
    assert [d.what for d in done.differences] == ["reward"]


@pytest.fixture
def episode(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three attempts in a process box."""
    texts = (attempt(1, 1), attempt(2, 3), attempt(3, 2, "submit"))
    return copied(tmp_path, tmp_path_factory, "replay", "subprocess", *texts)


async def test_the_artefact_that_counted_counts_again(tmp_path: Path) -> None:
    """With `delta = "best"` the best one; in a file of an older air, which does not say so, the last one."""
    texts = (attempt(4, 2), attempt(1, 1, "submit"))
    path = await recorded(tmp_path, "subprocess", *texts, delta="best")
    assert (await replayed(path)).matched
    assert (await replayed(path, from_step=2)).matched
    one = load(path)
    assert one.end is not None
    async with Replayer(ReplayOptions()) as replayer:
        grader = replayer.grader_of(one)
        same = await rescore(one, grader, {}, ReplayOptions())
        last = await rescore(one, grader, {"delta": "previous"}, ReplayOptions())
    assert (same.scores, same.equal_scores, last.scores) == (3, 3, 2)
    old = await replayed(changed(path, 0, lambda data: data.pop("counts")))
    assert [d.what for d in old.differences] == ["test score"]


async def test_a_changed_call_is_done_as_it_is_recorded(episode: Path) -> None:
    def change(data: dict[str, Any]) -> None:
        data["call"]["script"] = data["call"]["script"].replace("level=3", "level=4")

    done = await replayed(changed(episode, 3, change))
    assert (done.differences[0].turn, done.differences[0].what) == (2, "action, line 1")
    assert "level=4" in done.differences[0].recorded


def cut_off(path: Path) -> Path:
    """A copy that ends within the second grading."""
    other = path.with_name("cut.jsonl")
    lines = path.read_text().splitlines(keepends=True)
    other.write_text("".join(lines[:4]) + lines[4][:20])
    return other


async def test_an_episode_that_was_cut_off_is_compared_as_far_as_it_goes(episode: Path) -> None:
    done = await replayed(cut_off(episode))
    assert done.matched
    assert done.steps == 2
    assert done.scores == 1  # the second grading was the running step's
    assert any("no end" in note for note in done.notes)


OF_VERSION_1 = {
    "start": "episode task task_hash metric direction baseline seed isolation image gpus system prompt "
    "model told_step",  # which version 1 did not have, for it always told four decimals
    "step": "turn reply action code exec_seconds",
    "validate": "turn score phi delta stderr floor problem metrics artefact seconds remembered automatic",
    "end": "ok why error reward terms metrics branches",
}


def as_version_1(path: Path, spoilt: bool) -> Path:
    """A copy with only what version 1 recorded; with one character changed in step 2, or not."""
    lines = []
    for text in path.read_text().splitlines():
        line = json.loads(text)
        kept = {key: line[key] for key in ("type", "t", *OF_VERSION_1[line["type"]].split())}
        if line["type"] == "step":
            kept["observation"] = line["shown"]
            if spoilt and line["turn"] == 2:
                kept["observation"] = line["shown"].replace("[accuracy] 0.", "[accuracy] 1.")
        lines.append({"v": 1, **kept})
    other = path.with_name("v1.jsonl")
    other.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return other


async def test_version_1_is_replayed_too(episode: Path) -> None:
    done = await replayed(as_version_1(episode, spoilt=False))
    assert done.differences == []
    assert (done.steps, done.scores) == (3, 4)
    assert (await replayed(as_version_1(episode, spoilt=True))).differences[0].turn == 2
    shown = "[… 9 tokens cut …]"
    cut = changed(as_version_1(episode, spoilt=False), 1, lambda d: d.update(observation=shown))
    done = await replayed(cut)
    assert done.matched
    assert done.notes == ["step 1: what was shown was cut, and is not compared"]


async def test_a_task_that_was_changed_since_is_refused(episode: Path, tmp_path: Path) -> None:
    from air import tasks

    root = tmp_path / "tasks"
    shutil.copytree(tasks.load("titanic").folder, root / "titanic")
    with (root / "titanic" / "README.md").open("a") as file:
        file.write("\nchanged\n")
    with pytest.raises(ConfigError, match="has changed since"):
        await replayed(episode, task_roots=(root,))
    assert (await replayed(episode, task_roots=(root,), changed_task=True)).matched


async def test_kept_artefacts_are_paid_again(episode: Path) -> None:
    one = load(episode)
    assert one.end is not None
    async with Replayer(ReplayOptions()) as replayer:
        grader = replayer.grader_of(one)
        same = await rescore(one, grader, {}, ReplayOptions())
        assert same.matched
        assert same.scores == same.equal_scores == 4
        assert same.reward == one.end.reward
        assert same.terms == dict(one.end.terms or {})
        other = await rescore(
            one, grader, {"delta": "best", "target": 2.0, "test_weight": 0.5}, ReplayOptions()
        )
        assert other.matched
        assert all(delta >= 0 for delta in other.deltas)
        assert other.reward == pytest.approx(sum(other.deltas) + other.terms["test_score"])
        wrong = changed(episode, 2, lambda data: data.update(score=0.1))
        again = await rescore(load(wrong), grader, {}, ReplayOptions())
        assert [d.turn for d in again.differences] == [1]
        odd = changed(episode, -1, lambda data: data["metrics"].update(seconds_agent=-1))
        with pytest.raises(ConfigError, match="its counts and times"):
            await rescore(load(odd), grader, {}, ReplayOptions())
        shutil.rmtree(episode.parent / "artefacts")
        with pytest.raises(ConfigError, match="cannot be read"):
            await rescore(one, grader, {}, ReplayOptions())


def test_the_command_says_by_its_exit_code_whether_all_matched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert (
        main(
            ["demos", str(run), "--tasks", "titanic", "--episodes", "2", "--runtime", "subprocess"]
        )
        == 0
    )
    assert main(["replay", str(run)]) == 0
    assert "2 of 2 matched" in capsys.readouterr().out
    assert main(["replay", str(run), "--rescore", "--reward", "delta=best"]) == 0
    path = trajectory_files(run)[0]
    bad = changed(path, 1, lambda d: d.update(observation=one_character(d["observation"])))
    assert main(["replay", str(run), "--at-once", "3"]) == 1
    out = capsys.readouterr().out
    assert f"DIFFERS {bad}" in out
    assert "step 1: observation" in out
    assert "recorded: " in out
    assert main(["replay", str(bad), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["matched"] is False
    (run / "trajectories" / "other.jsonl").write_text("{}\n{}\n")
    assert main(["replay", str(run)]) == 2
    assert "other.jsonl" in capsys.readouterr().err
    for wrong in (
        ["replay", str(tmp_path / "none")],
        ["replay"],
        ["replay", str(path), "--reward", "delta=best"],
        ["replay", str(path), "--rescore", "--reward", "nonsense=1"],
        ["replay", str(path), "--rescore", "--tolerance", "0.1"],
        ["replay", str(path), "--rescore", "--exact"],
        ["replay", str(path), "--rescore", "--from", "1"],
        ["replay", str(path), "--rescore", "--image", "air-base"],
        ["replay", str(path), "--rescore", "--reward", "delta"],
    ):
        assert main(wrong) == 2
    assert main(["replay", "--rules"]) == 0
    rules = capsys.readouterr().out
    assert "seconds since 1970" in rules
    assert "the reason of the end" in rules


@pytest.mark.docker
async def test_another_image_and_another_kind_of_box(tmp_path: Path) -> None:
    import docker

    path = await recorded(tmp_path, "docker", attempt(1, 1), attempt(2, 2, "submit"))
    start = load(path).start
    assert start is not None
    assert start.image_digest.startswith("sha256:")
    assert (await replayed(path, provider="process")).matched
    client = docker.from_env()
    try:
        client.images.get("air-base").tag("air-test-replay", "again")
        assert (await replayed(path, image="air-test-replay:again")).matched
    finally:
        client.images.remove("air-test-replay:again")
        client.close()
