"""Whole episodes: a scripted model, verifiers, a real box, a real grader."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from air import tasks
from air.env.environment import ResearchEnv
from air.errors import GradingError, MissingError
from air.rewards.delta import DeltaReward
from air.testing import Message, reasoned, replies
from air.trajectories import load, read
from air.trajectories.conversations import messages
from tests.e2e.conftest import attempt, containers_in_full, played_by, research


def phi(score: float) -> float:
    return DeltaReward(tasks.load("titanic").reward_scale())(score).phi


async def one(script: Any, config: Any) -> Any:
    async with played_by(script, config) as play:
        return await play()


async def test_two_validates_and_a_submit_are_paid_by_the_deltas(
    runtime: str, tmp_path: Path
) -> None:
    script = replies(attempt(1, 1), attempt(2, 3), attempt(3, 2, "submit"))
    episode = await one(script, research(["titanic"], runtime, record_dir=tmp_path))
    assert episode.ok, episode.errors or episode.traces[0].errors
    (trace,) = episode.traces
    info = trace.info["air"]
    assert info["why_ended"] == "submit"
    assert info["isolation"] == ("container" if runtime == "docker" else "process")
    assert len(info["phis"]) == 3
    assert trace.reward == pytest.approx(info["phis"][-1])
    assert sum(info["deltas"]) == pytest.approx(trace.reward)
    assert trace.metrics["validates"] == 3
    assert trace.metrics["submitted"] == 1
    assert 0 < trace.metrics["test_score"] < 1
    assert trace.metrics["score"] == pytest.approx(trace.metrics["best_score"]) or (
        phi(trace.metrics["score"]) < phi(trace.metrics["best_score"])
    )
    check_record(tmp_path, trace)


def check_record(folder: Path, trace: Any) -> None:
    (path,) = folder.glob("*.jsonl")
    lines = list(read(path))
    assert [x["type"] for x in lines] == [
        "start",
        *["step", "validate"] * 3,
        "end",
    ]
    assert lines[0]["trace"] == trace.id
    assert lines[-1]["reward"] == pytest.approx(trace.reward)
    assert sum(x["delta"] for x in lines if x["type"] == "validate") == pytest.approx(trace.reward)
    # Labels and graders are nowhere in what is recorded.
    text = path.read_text() + json.dumps(trace.to_record())
    assert "grade.py" not in text
    assert "AIR_SECOND_UID" not in text


NAMES = ("reasoning_content", "reasoning", "reasoning_content")
"""Of the field with the reasoning of each reply: servers differ."""


async def test_reasoning_is_sent_back_and_recorded_but_never_run(tmp_path: Path) -> None:
    """Under the name that the server gave it."""
    quoted = "Not yet:\n```bash\nsubmit\n```"
    talk: list[Message] = []

    def script(conversation: Sequence[Message]) -> Message:
        talk[:] = conversation
        turn = len([m for m in conversation if m["role"] == "assistant"])
        content = ("", "Look.\n```bash\necho $((6 * 7))\n```")[turn] if turn < 2 else "End."
        reply = reasoned(f"{quoted} {turn}", content)
        reply[NAMES[turn]] = reply.pop("reasoning_content")
        return reply

    config = research(["titanic"], "subprocess", max_turns=3, record_dir=tmp_path)
    trace = (await one(script, config)).traces[0]
    assert trace.info["air"]["why_ended"] == "turns"
    replied = [m for m in talk if m["role"] == "assistant"]
    assert [m[name] for m, name in zip(replied, NAMES, strict=False)] == [
        f"{quoted} 0",
        f"{quoted} 1",
    ]
    assert trace.num_branches == 1
    check_reasoning(tmp_path, quoted)


async def test_reasoning_that_prompts_leave_out_does_not_fill_the_context() -> None:
    """The scripted server counts no reasoning in its prompts."""
    script = replies(reasoned("Hm. " * 6000, "Look.\n```bash\necho hi\n```"))
    harness = {"max_context_tokens": 5000}
    config = research(["titanic"], "subprocess", max_turns=2, harness=harness)
    trace = (await one(script, config)).traces[0]
    assert (trace.info["air"]["why_ended"], trace.metrics["turns"]) == ("turns", 2)


def check_reasoning(folder: Path, quoted: str) -> None:
    (path,) = folder.glob("*.jsonl")
    steps = load(path).steps
    assert [step.problem for step in steps] == ["format", "", "format"]
    assert steps[1].observation == "42"
    said = [
        (m["content"], m["reasoning_content"]) for m in messages(path) if m["role"] == "assistant"
    ]
    assert said == [(step.reply, f"{quoted} {n}") for n, step in enumerate(steps)]


@containers_in_full
async def test_the_same_artefact_again_earns_nothing(runtime: str) -> None:
    script = replies(attempt(2, 2), "Again.\n```bash\nvalidate\n```", "Done.\n```bash\nsubmit\n```")
    trace = (await one(script, research(["titanic"], runtime))).traces[0]
    first, second, third = trace.info["air"]["deltas"]
    assert first != 0
    assert (second, third) == (0, 0)


@containers_in_full
async def test_running_out_of_turns_submits_by_itself(runtime: str) -> None:
    config = research(["titanic"], runtime, max_turns=2)
    trace = (await one(replies(attempt(2, 2)), config)).traces[0]
    assert trace.ok
    assert trace.info["air"]["why_ended"] == "turns"
    assert trace.metrics["turns"] == 2
    assert trace.metrics["validates"] == 3
    assert trace.metrics["test_score"] > 0


@containers_in_full
async def test_replies_that_are_no_action_are_told_and_cost(runtime: str) -> None:
    script = replies("what?", attempt(2, 2, "submit"))
    trace = (await one(script, research(["titanic"], runtime, format_penalty=0.25))).traces[0]
    assert trace.metrics["format_errors"] == 1
    assert trace.rewards["format"].value == -0.25
    shown = trace.messages[3].content
    assert "Format error" in shown
    assert "[3 turns left]" in shown


@containers_in_full
async def test_a_missing_artefact_is_told_and_costs_but_is_no_failure(runtime: str) -> None:
    script = replies("Go.\n```bash\nrm -f submission.csv; echo gone\nvalidate\n```", "x")
    config = research(["titanic"], runtime, validate_penalty=0.1, max_turns=2)
    trace = (await one(script, config)).traces[0]
    assert trace.ok
    assert "gone" in trace.messages[3].content
    assert "[not scored]" in trace.messages[3].content
    assert trace.rewards["failed_validates"].value == pytest.approx(-0.2)
    assert trace.rewards["delta"].value == tasks.load("titanic").phi_clip[0]
    assert trace.metrics["valid"] == 0
    assert "score" not in trace.metrics


@containers_in_full
async def test_a_command_that_hangs_is_ended_and_told(runtime: str, tmp_path: Path) -> None:
    folder = copied_task(tmp_path, "exec_seconds = 5.0")
    config = research(["titanic"], runtime, max_turns=2, task_roots=[folder])
    script = replies("Wait.\n```bash\necho begun; sleep 600\n```", attempt(1, 1, "submit"))
    trace = (await one(script, config)).traces[0]
    assert trace.ok
    assert "begun" in trace.messages[3].content
    assert "timed out after 5 s" in trace.messages[3].content
    assert trace.metrics["valid"] == 1


def copied_task(folder: Path, limits: str) -> Path:
    """A root of tasks with a titanic of other limits, under the same id."""
    import re
    import shutil

    root = folder / "tasks"
    shutil.copytree(tasks.load("titanic").folder, root / "titanic")
    toml = root / "titanic" / "task.toml"
    text = toml.read_text()
    text = re.sub(r"^exec_seconds.*\n", "", text, flags=re.MULTILINE)
    text = (
        text.replace("[limits]", f"[limits]\n{limits}")
        if "[limits]" in text
        else (text + f"\n[limits]\n{limits}\n")
    )
    toml.write_text(text)
    return root


@containers_in_full
async def test_long_output_is_capped_and_counted(runtime: str) -> None:
    script = replies("Loud.\n```bash\nseq 100000\n```", attempt(1, 1, "submit"))
    config = research(["titanic"], runtime, harness={"max_observation_tokens": 100})
    trace = (await one(script, config)).traces[0]
    shown = trace.messages[3].content
    assert "tokens cut" in shown
    assert len(shown) < 500
    assert trace.metrics["cut_observations"] == 1


@containers_in_full
async def test_the_episode_ends_and_is_graded_before_the_context_overflows(runtime: str) -> None:
    config = research(["titanic"], runtime, harness={"max_context_tokens": 64}, max_turns=10)
    trace = (await one(replies(attempt(2, 2)), config)).traces[0]
    assert trace.ok
    assert trace.info["air"]["why_ended"] == "context"
    assert trace.metrics["context_ends"] == 1
    assert trace.metrics["turns"] == 1
    assert trace.metrics["valid"] == 1


@containers_in_full
async def test_a_grader_that_fails_on_the_test_split_masks_the_episode_and_stops_the_run(
    runtime: str, tmp_path: Path
) -> None:
    root = copied_task(tmp_path, "exec_seconds = 9.0")
    fails_where(root / "titanic", "'test' in sys.argv")
    config = research(["titanic"], runtime, task_roots=[root])
    async with played_by(replies(attempt(1, 1)), config) as play:
        episode, refused = await play(), await play()
    assert not episode.ok
    assert not refused.ok
    assert "task titanic: exit 7" in refused.errors[-1].message
    assert "mend the grader" in refused.errors[-1].message
    trace = episode.traces[0]
    assert not trace.ok
    assert trace.rewards == {} or all(r is None for r in trace.rewards.values())
    assert "exit 7" in trace.last_error.message
    # The agent never saw it.
    assert all("exit 7" not in str(m.content) for m in trace.messages)


async def test_a_grader_that_fails_by_itself_is_refused_at_the_start(tmp_path: Path) -> None:
    root = copied_task(tmp_path, "exec_seconds = 9.0")
    fails_where(root / "titanic", "True")
    config = research(["titanic"], "subprocess", task_roots=[root])
    with pytest.raises(GradingError, match=r"exit 7.*on an empty artefact, where it must"):
        await one(replies(attempt(1, 1)), config)


@pytest.mark.parametrize(("task", "known"), [("titanic", "titanic"), ("game:sokoban6", "none")])
async def test_an_unknown_research_task_is_one_line_that_names_those_of_the_run(
    task: str, known: str
) -> None:
    env = ResearchEnv(research([task], "subprocess"))
    async with env.serving():
        with pytest.raises(MissingError, match=rf"^the run has no .* 'titanik' — .*: {known}$"):
            env.spec("titanik")


def fails_where(task: Path, condition: str) -> None:
    """Makes the grader of this task, a copy of titanic, end with 7 where the condition holds."""
    grader = task / "grader" / "grade.py"
    text = grader.read_text().replace("from __future__ import annotations\n", "")
    grader.write_text(f"import sys\nif {condition}: raise SystemExit(7)\n{text}")


async def test_what_one_episode_writes_the_next_does_not_see(runtime: str, tmp_path: Path) -> None:
    leave = "Leave.\n```bash\necho mine > /tmp/left-$PPID; echo mine > left; cat left\n```"
    look = "Look.\n```bash\ncat left /tmp/left-*; ls\n```"
    config = research(["titanic"], runtime, max_turns=1, warm_boxes=1, record_dir=tmp_path)
    texts = iter([leave, look])
    shown = []
    async with played_by(lambda _: next(texts), config) as play:
        for _ in range(2):
            trace = (await play()).traces[0]
            path = tmp_path / f"{trace.info['air']['episode']}.jsonl"
            shown += [x["observation"] for x in read(path) if x["type"] == "step"]
    assert "mine" in shown[0]
    assert "No such file" in shown[1]
    assert "mine" not in shown[1] or runtime == "subprocess"  # /tmp is the host's there


async def test_a_task_whose_score_can_be_forged_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """At the start of a run, and in the record of each episode."""
    root = copied_task(tmp_path, "exec_seconds = 20")
    file = root / "titanic" / "task.toml"
    file.write_text('trust = "evaluator"\n' + file.read_text())
    config = research(["titanic"], "subprocess", record_dir=tmp_path / "r", task_roots=[root])
    async with played_by(replies(attempt(2, 2, "submit")), config) as play:
        assert (await play()).ok
    assert "evaluation of titanic imports the artefact" in caplog.text
    (path,) = (tmp_path / "r").glob("*.jsonl")
    assert next(iter(read(path)))["trust"] == "evaluator"


@pytest.mark.docker
async def test_a_box_that_is_reset_shows_nothing_of_the_episode_before(tmp_path: Path) -> None:
    """Of three episodes, each with a grading, the first two play in one container. The second leaves a
    process, so the third has a new one."""
    seen: list[list[str]] = []
    marks = "secret.txt /tmp/secret /dev/shm/secret"
    look = f"cut -d' ' -f22 /proc/1/stat; ls {marks} 2>/dev/null; echo x | tee {marks} >/dev/null"

    def script(conversation: Sequence[Message]) -> str:
        if len([m for m in conversation if m["role"] == "assistant"]) == 0:
            return f"Look.\n```bash\n{look}\n```"
        seen.append(str(conversation[-1]["content"]).splitlines()[:-1])
        leave = "setsid sleep 1000 >/dev/null 2>&1 &\n" if len(seen) == 2 else ""
        return f"Done.\n```bash\n{leave}echo x > submission.csv\nsubmit\n```"

    config = research(
        ["titanic"], "docker", reuse_boxes=True, max_boxes=1, max_turns=3, record_dir=tmp_path
    )
    async with played_by(script, config) as play:
        for _ in range(3):
            episode = await play()
            assert episode.ok, episode.errors or episode.traces[0].errors
    (first,), (second,), (third,) = seen  # the start of each container, and no file
    assert first == second != third
    assert resets_of(tmp_path) == [0, 1, 0]


def resets_of(folder: Path) -> list[int]:
    """Returns how often the box of each recorded episode was reset before, in the order of their starts."""
    starts = sorted((next(iter(read(f))) for f in folder.glob("*.jsonl")), key=lambda x: x["t"])
    return [line["box_resets"] for line in starts]
