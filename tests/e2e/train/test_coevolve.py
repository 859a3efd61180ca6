"""`air coevolve` with tiny models: one round; and runs that are killed at any stage or moment, and go on."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from air.tools import ToolSet, load
from air.train.loop.metrics import reproducible
from air.view.index.run_discovery import coevolutions, discover
from air.view.render import coevolution
from air.worlds.proposals.posed import WITH_TOOLS as INSTRUCTIONS
from air.worlds.proposals.whole_reply import WholeReply
from tests.e2e.commands.test_commands import bad, command
from tests.e2e.conftest import warm
from tests.fork_server import of_this_run
from tests.once import shared

SIDES = ("proposer", "executor")
KILLED = Path(__file__).parents[1] / "killed_coevolution.py"
PROPOSALS = 12
SYSTEM = "Put the final answer in \\boxed{…}."
WITH_TOOLS = WholeReply(ToolSet(load("calculator")).schemas, answers=True).instructions
CALL = '{"name": "calculator", "arguments": {"expression": "2 + 2"}}'
QUESTIONS = {"What is 3 + 4?": ("7", "8"), "What is 2 + 2?": ("4", "4")}
"""The proposer's only questions, and the executor's answers: half of those to the first are wrong."""
HELD_OUT_ANSWERS = ("7", "8", "4")
"""What counts as right. The executor answers so by chance: the accuracy depends on each episode."""


def conversation(prompt: str, *replies: str, system: str = SYSTEM) -> list[dict[str, str]]:
    """A conversation; a reply after the first answers the calculator's result, 4."""
    told = [prompt, "4\n[1 turns left]"]
    turns = [
        {"role": role, "content": text}
        for one in zip(told, replies, strict=False)
        for role, text in zip(("user", "assistant"), one, strict=True)
    ]
    return [{"role": "system", "content": system}, *turns]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A proposer that knows both questions, and an executor that is sure of one of them, for which it calls
    the calculator."""
    folder = shared(tmp_path_factory, "coevolution", policies)
    return {name: folder / name / "warm" for name in SIDES}


def policies(folder: Path) -> None:
    """Builds the proposer and the executor in this folder, and warm-starts both."""
    proposer = [
        conversation("Propose.", f"<question>{question}</question> \\boxed{{{right}}}")
        for question, (right, _) in QUESTIONS.items()
    ]
    executor = [
        conversation(
            f"{INSTRUCTIONS}\n\n{question}",
            *([CALL] if answers[0] == answers[1] else []),
            f"\\boxed{{{answer}}}",
            system=WITH_TOOLS,
        )
        for question, answers in QUESTIONS.items()
        for answer in answers
    ]
    for name, talks in zip(SIDES, (8 * proposer, 4 * executor), strict=True):
        (folder / name).mkdir()
        warm(folder / name, talks)


def coevolve_toml(folder: Path, models: Mapping[str, Path]) -> Path:
    held_out = folder / "held_out.jsonl"
    rows = [
        {"question": f"What is {number} + 1?", "answer": answer}
        for number, answer in enumerate(HELD_OUT_ANSWERS, 5)
    ]
    held_out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    sides = "".join(
        f"""
[{name}]
model = "{models[name]}"
run_files = ["configs/agent0/small_{name}.toml"]
[{name}.settings]
max_steps = 1
seq_len = 640
embedded.threads = 1
orchestrator.train.sampling.max_completion_tokens = 32
orchestrator.batch_size = 4
orchestrator.group_size = 4
"""
        for name in SIDES
    )
    path = folder / "coevolve.toml"
    path.write_text(
        f"""
name = "c"
output_dir = "{folder}"
rounds = 1
{sides}
orchestrator.algo = {{ type = "adpo", share = "p_hat" }}
trainer.loss.type = "ppo_clip"
[answers]
k = 4
max_tokens = 32
max_turns = 2
tools = ["calculator"]
[payment]
window = 4
instructions = "Propose."
[generation]
proposals = {PROPOSALS}
least = 0.0
most = 1.0
[held_out]
data = "{held_out}"
episodes = 2
"""
    )
    return path


ROUND_0 = {
    "answered.jsonl",
    "held_out",
    "held_out.json",
    "proposals.jsonl",
    "rows.jsonl",
    "sampling.json",
}
ROUND_1 = ROUND_0 | {"executor", "payment.json", "posed.json", "proposer"}
WRITTEN_EACH_TIME = {
    *("coevolve.json", "report.json", "report.txt"),
    *("round0/held_out.json", "round1/held_out.json", "round1/posed.json"),
}
"""The files that each process writes, with the same content as before."""


HELD = """
import asyncio
import dataclasses
from pathlib import Path

from air.tools import ToolContext, load

FOLDER = Path(__file__).parent
(shipped,) = load("calculator")

async def begin(context: ToolContext) -> None:
    while (FOLDER / "hold").exists() and (FOLDER / "c/round1/posed.json").exists():
        (FOLDER / "held").touch()
        await asyncio.sleep(0.01)

def compute(state: None, expression: str) -> str:
    return shipped.function(expression)

calculator = dataclasses.replace(shipped, function=compute, state=begin, state_seconds=3600.0)
"""
"""The shipped calculator, but no episode of the executor's training begins while there is a file `hold`."""


def test_a_round_that_is_killed_goes_on_and_is_recorded_shown_and_not_played_again(
    tmp_path: Path, models: dict[str, Path]
) -> None:
    """The first process gets SIGKILL while it trains the executor, whose first episode waits until then."""
    toml, folder = coevolve_toml(tmp_path, models), tmp_path / "c"
    toml.write_text(toml.read_text().replace('"calculator"', '"held.py:calculator"'))
    (tmp_path / "held.py").write_text(HELD)
    hold, held = tmp_path / "hold", tmp_path / "held"
    hold.touch()
    of_this_run().start()
    code = killed_when(held.exists, ["coevolve", "@", str(toml)], tmp_path)
    first = (tmp_path / "out").read_text()
    assert code == -signal.SIGKILL, first
    assert begun_stages(first) == STAGES[:-1]
    (begun,) = json.loads((folder / "report.json").read_text())["rounds"]
    assert begun["round"] == 0
    finished = stages(folder)
    hold.unlink()
    done = command("air", "coevolve", "@", toml, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert begun_stages(done.stdout) == STAGES[-2:]
    assert finished.items() <= stages(folder).items()
    assert (folder / "report.txt").read_text() in done.stdout
    for place, names in ((folder / "round0", ROUND_0), (folder / "round1", ROUND_1)):
        assert {path.name for path in place.iterdir()} == names
    report = json.loads((folder / "report.json").read_text())
    check(report, folder)
    runs = discover([folder])
    assert len(runs) == 4  # two trainings, and the held-out questions of two rounds
    assert coevolutions(runs) == {str(folder): report}
    assert coevolution.as_html(report).count('class="histogram"') == 2
    assert all(any(chart.curves.values()) for chart in coevolution.charts(report))
    contents, times = digests(folder), written(folder)
    again = command("air", "coevolve", "@", toml, cwd=tmp_path)
    assert again.returncode == 0, again.stdout + again.stderr
    assert begun_stages(again.stdout) == []
    assert digests(folder) == contents
    assert {name for name, _ in written(folder).items() - times.items()} <= WRITTEN_EACH_TIME


def test_a_seed_decides_what_is_sampled_before_the_first_training(
    tmp_path: Path, models: dict[str, Path]
) -> None:
    toml, more = coevolve_toml(tmp_path, models), tmp_path / "repeatable.toml"
    more.write_text(REPEATABLE)
    found = []
    for seed, name in ((0, "one"), (0, "equal"), (1, "other")):
        flags = ["--rounds", "0", "--seed", str(seed), "--name", name]
        done = command("air", "coevolve", "@", toml, "@", more, *flags, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        (report,) = json.loads((tmp_path / name / "report.json").read_text())["rounds"]
        texts = (tmp_path / name / "round0" / "answered.jsonl").read_text()
        found.append((texts, report))
    assert found[0] == found[1]
    assert found[0] != found[2]


def digests(folder: Path, *patterns: str) -> dict[str, str]:
    """A digest of each file that fits one of the patterns, by its path. Without patterns, of all files."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for pattern in patterns or ["**/*"]
        for path in folder.glob(pattern)
        if path.is_file()
    }


def written(folder: Path, *patterns: str) -> dict[str, int]:
    """When each file that fits one of the patterns was written, by its path. Without patterns, of all."""
    return {name: (folder / name).stat().st_mtime_ns for name in digests(folder, *patterns)}


STAGES = [
    *("[round 0/1] proposals", "[round 0/1] answers", "[round 0/1] held-out questions"),
    *("[round 1/1] proposer", "[round 1/1] proposals", "[round 1/1] answers"),
    *("[round 1/1] executor", "[round 1/1] held-out questions"),
]
"""How the line of each stage begins, in order. The filter, which is pure, says its line each time."""
KILLS = {
    # where the process is killed: the stages that it begins, and how many of these are finished
    "[round 0/1] answers": (2, 1),
    "[round 0/1] held-out questions": (2, 1),
    "[round 1/1] proposer": (2, 1),
    "end of round1/proposer": (1, 1),
    "[round 1/1] answers": (2, 1),
    "[round 1/1] filter": (1, 1),
    "[round 1/1] executor": (1, 0),
    "end of round1/executor": (1, 1),
    "[round 1/1] held-out questions": (1, 0),
}


@pytest.mark.full
def test_a_coevolution_that_is_killed_at_each_stage_goes_on(
    tmp_path: Path, models: dict[str, Path]
) -> None:
    """No finished stage is begun again, and no file of a finished stage changes or is lost."""
    toml, folder = coevolve_toml(tmp_path, models), tmp_path / "c"
    files: dict[str, int] = {}
    first = 0
    for point, (begun, finished) in KILLS.items():
        killed = command("python", str(KILLED), toml, point, cwd=tmp_path)
        assert killed.returncode == -signal.SIGKILL, killed.stdout + killed.stderr
        assert begun_stages(killed.stdout) == STAGES[first : first + begun], point
        assert files.items() <= stages(folder).items()
        first, files = first + finished, stages(folder)
    done = command("air", "coevolve", "@", toml, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert begun_stages(done.stdout) == STAGES[first:]
    after = stages(folder)
    assert files.items() <= after.items()
    check(json.loads((folder / "report.json").read_text()), folder)
    further = command("air", "coevolve", "@", toml, "--rounds", "2", cwd=tmp_path)
    assert further.returncode == 0, further.stdout + further.stderr
    assert after.items() <= stages(folder).items()
    report = json.loads((folder / "report.json").read_text())
    assert [one["round"] for one in report["rounds"]] == [0, 1, 2]
    shown = command("air", "coevolve", "@", toml, "--rounds", "2", "--report", cwd=tmp_path)
    assert (folder / "report.txt").read_text() in shown.stdout
    changed = command("air", "coevolve", "@", toml, "--answers.k", "3", cwd=tmp_path)
    bad(changed, "begun with another `answers`")


def begun_stages(output: str) -> list[str]:
    """The stages that a process has begun, as its lines say."""
    lines = output.splitlines()
    return [stage for line in lines for stage in STAGES if line.startswith(f"{stage}:")]


def stages(folder: Path) -> dict[str, int]:
    """When each file of a stage that is done was written."""
    return written(folder, "round*/*.jsonl", "round*/*/checkpoints/step_1/model.*")


def check(report: dict[str, Any], folder: Path) -> None:
    assert [one["round"] for one in report["rounds"]] == [0, 1]
    for one in report["rounds"]:
        lines = read(folder / f"round{one['round']}" / "answered.jsonl")
        assert len(lines) == one["proposals"] == PROPOSALS
        good = [line for line in lines if "malformed" not in line]
        assert one["malformed"] == PROPOSALS - len(good)
        assert all(len(line["answers"]) == 4 for line in good)
        called = {line["question"] for line in good if line["tool_calls"] > 0}
        assert "What is 2 + 2?" in called or one["round"]
        assert sum(one["histogram"]) == len(good)
        assert one["held_out"]["episodes"] == 2
        rows = read(folder / f"round{one['round']}" / "rows.jsonl")
        assert one["kept"] == len(rows) <= one["different"]
        for row in rows:
            labels = [line["answers"] for line in good if line["question"] == row["question"]]
            assert row["answer"] in labels[0]
    assert len(report["rounds"][1]["proposer_reward_by_step"]) == 1
    # The proposer knows nothing but two questions, so at least one of 12 proposals is one of them.
    assert {row["question"] for row in read(folder / "round0" / "rows.jsonl")} & set(QUESTIONS)
    assert (folder / "round1/executor/checkpoints/step_1/model.safetensors").is_file()


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


TRAINING = """
max_steps = 3
ckpt.interval = 1
embedded.deterministic = true
orchestrator.batch_size = 8
trainer.loss.entropy_coefficient = 0.01   # so that steps train whose rewards are all equal, too
"""
REPEATABLE = f"""
rounds = 2
[proposer.settings]
{TRAINING}
[executor.settings]
{TRAINING}
[answers]
equality = "forms"
[payment]
repetition = 0.0
[held_out]
episodes = 16
temperature = 1.0
"""
"""Settings with which a co-evolution can be repeated to the bit. The order in which proposals arrive decides
their repetition, and how busy the machine is decides whether a mathematical comparison reaches its limit."""
NOT_COMPARED = ("tasks", "sources", "world/cluster_share")
"""The metrics of a step that name the folder of the co-evolution, or depend on the order of proposals."""
RUNS, MOST_KILLS, KILL_SEED = 3, 8, 451
"""With this seed, the first kill of each run comes in its first fifth."""


@pytest.mark.full
def test_a_coevolution_killed_at_random_moments_ends_as_one_that_was_never_stopped(
    tmp_path: Path, models: dict[str, Path]
) -> None:
    """To the bit. Each process but the last of a run gets SIGKILL at a moment that is drawn uniformly from
    the duration of a whole run. After `MOST_KILLS`, a run may end: a machine that has become slow finishes no
    stage in time."""
    toml, more = coevolve_toml(tmp_path, models), tmp_path / "repeatable.toml"
    more.write_text(REPEATABLE)
    argv = ["coevolve", "@", str(toml), "@", str(more), "--output-dir"]
    of_this_run().start()
    began = time.monotonic()
    done = command("air", *argv, "whole", cwd=tmp_path)
    duration = time.monotonic() - began
    assert done.returncode == 0, done.stdout + done.stderr
    expected = results(tmp_path / "whole" / "c")
    draw = random.Random(KILL_SEED)
    print(f"seed {KILL_SEED}; a whole run takes {duration:.2f} s")
    kills = 0
    for number in range(RUNS):
        moments = [draw.uniform(0, duration) for _ in range(MOST_KILLS)]
        kills += kill_at(moments, [*argv, f"run{number}"], tmp_path)
        assert results(tmp_path / f"run{number}" / "c") == expected
    assert kills


def kill_at(moments: Sequence[float], argv: Sequence[str], folder: Path) -> int:
    """Starts `air` again and again, and kills its process group so many seconds after each start, until it
    has finished before. Returns the number of kills."""
    for kills, seconds in enumerate(moments):
        end = time.monotonic() + seconds
        code = killed_when(lambda end=end: time.monotonic() >= end, argv, folder)
        print(f"{argv[-1]}: {'killed' if code else 'ended'} within {seconds:.2f} s")
        if code == 0:
            return kills
        assert code == -signal.SIGKILL, (folder / "out").read_text()
    done = command("air", *argv, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return len(moments)


def killed_when(reached: Callable[[], bool], argv: Sequence[str], folder: Path) -> int:
    """Runs `air`, and kills its process group as soon as `reached` is true. Returns its exit code."""
    with (
        (folder / "out").open("wb") as log,
        of_this_run().spawn(
            ["air", *argv], cwd=folder, env=dict(os.environ), streams=[log, log]
        ) as process,
    ):
        while process.poll() is None and not reached():
            time.sleep(0.01)
        while process.poll() is None:
            # The group is not there yet if the process has just been forked, and gone if it has just ended.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            time.sleep(0.01)
        code = process.returncode
    assert code is not None
    return code


def results(folder: Path) -> dict[str, Any]:
    """What must be the same in each run, by its path: digests of files, and what the trainings computed."""
    weights = "round*/*/checkpoints/*/model.safetensors"
    found: dict[str, Any] = {**digests(folder, "report.*", "round*/*.jsonl", weights)}
    assert len(found) == 2 + 3 * 3 + 2 * 2, list(found)
    for file in folder.glob("round*/*/metrics.jsonl"):
        rows = [reproducible(row) for row in read(file)]
        assert [row["train/updated"] for row in rows] == [1, 1, 1]
        found[str(file.relative_to(folder))] = [
            {key: value for key, value in row.items() if key not in NOT_COMPARED} for row in rows
        ]
    return found
