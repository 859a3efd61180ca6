"""`air coevolve`: two rounds with tiny models; killed at any stage, it goes on, and does no stage twice."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from air.tools import ToolSet, load
from air.worlds.proposals.posed import WITH_TOOLS as INSTRUCTIONS
from air.worlds.proposals.whole_reply import WholeReply
from tests.e2e.commands.test_commands import bad, command
from tests.e2e.conftest import warm

KILLED = Path(__file__).parents[1] / "killed_coevolution.py"
PROPOSALS = 12
SYSTEM = "Put the final answer in \\boxed{…}."
WITH_TOOLS = WholeReply(ToolSet(load("calculator")).schemas, answers=True).instructions
CALL = '{"name": "calculator", "arguments": {"expression": "2 + 2"}}'
QUESTIONS = {"What is 3 + 4?": ("7", "8"), "What is 2 + 2?": ("4", "4")}
"""The proposer's only questions, and the executor's answers: half of those to the first are wrong."""


def conversation(prompt: str, *replies: str, system: str = SYSTEM) -> list[dict[str, str]]:
    """A conversation; a reply after the first answers the calculator's result, 4."""
    told = [prompt, "4\n[1 turns left]"]
    turns = [
        {"role": role, "content": text}
        for one in zip(told, replies, strict=False)
        for role, text in zip(("user", "assistant"), one, strict=True)
    ]
    return [{"role": "system", "content": system}, *turns]


def policies(folder: Path) -> dict[str, Path]:
    """A proposer that knows both questions, and an executor that is sure of one of them, for which it calls
    the calculator."""
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
    for name in ("proposer", "executor"):
        (folder / name).mkdir()
    return {
        "proposer": warm(folder / "proposer", 8 * proposer),
        "executor": warm(folder / "executor", 4 * executor),
    }


def coevolve_toml(folder: Path) -> Path:
    held_out = folder / "held_out.jsonl"
    rows = [{"question": "What is 5 + 1?", "answer": "6"}]
    held_out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    models = policies(folder)
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
        for name in ("proposer", "executor")
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
def test_a_coevolution_that_is_killed_at_each_stage_goes_on(tmp_path: Path) -> None:
    """No finished stage is begun again, and no file of a finished stage changes or is lost."""
    toml, folder = coevolve_toml(tmp_path), tmp_path / "c"
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
    found = [*folder.glob("round*/*.jsonl"), *folder.glob("round*/*/checkpoints/step_1/model.*")]
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in found}


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
