"""Whole episodes in MLGym's interface: a scripted model, verifiers, a real box, a real grader."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import verifiers.v1 as vf

from air.env.config import AirHarnessConfig
from air.errors import ConfigError
from air.testing import Message, ScriptedServer, replies
from air.train.config.run_config import RunConfig
from air.train.loop.rollout import context
from air.train.model import policy as policies
from air.trajectories import read
from air.trajectories.conversations import messages
from tests.e2e.conftest import containers_in_full, played_by, research
from tests.e2e.train.test_train import check_tokens

MLGYM = {"format": "mlgym", "max_observation_tokens": 4096}


def say(command: str, discussion: str = "Next.") -> str:
    return f"{discussion}\n```\n{command}\n```"


SOLVED = [
    say("ls data; cat config"),
    say('open "solve.py" 40'),
    say("search_file 'def main'"),
    say("edit 20:20\nprint(\nend_of_edit", "This will be refused."),
    say("validate", "What do the starter files score?"),
    say("open config"),
    say("edit 1:1\nmethod=2 level=2\nend_of_edit"),
    say("mkdir -p runs; cd runs; export WHERE=runs"),
    say("cd ..; python3 solve.py && wc -l < submission.csv; echo $WHERE"),
    say("validate"),
    say("submit", "Good."),
]


def shown(trace: Any) -> list[str]:
    """What the model was shown, prompt first."""
    return [str(m.content) for m in trace.messages if m.role == "user"]


async def test_titanic_is_solved_by_open_edit_run_validate_submit(
    runtime: str, tmp_path: Path
) -> None:
    config = research(["titanic"], runtime, harness=MLGYM, max_turns=15, record_dir=tmp_path)
    async with played_by(replies(*SOLVED), config) as play:
        episode = await play()
    (trace,) = episode.traces
    check_solved(trace)
    path = tmp_path / f"{trace.info['air']['episode']}.jsonl"
    steps = [line for line in read(path) if line["type"] == "step"]
    assert steps[1]["action"] == "open solve.py 40"
    assert steps[6]["action"] == "edit 1:1\nmethod=2 level=2\nend_of_edit"
    # A recorded episode is the conversation that was played.
    assert [m["content"] for m in messages(path)] == [str(m.content) for m in trace.messages]


def check_solved(trace: Any) -> None:
    """The episode of SOLVED: what was shown, what was scored, and one branch."""
    assert trace.ok, trace.errors
    assert trace.num_branches == 1
    assert trace.info["air"]["why_ended"] == "submit"
    first, *rest = shown(trace)
    assert first.endswith("]\n$")
    assert "[15 turns left] [open: none] [in: " in first
    assert "train.csv" in rest[0]
    assert "[14 turns left]" in rest[0]
    assert "def one_rule" in rest[1]
    assert "/solve.py, lines 1-145 of 145]" in rest[1]
    assert rest[2].splitlines()[1].endswith(":def main():")
    assert "Not edited. It would bring:\nline 20: E999" in rest[3]
    assert "[not scored]" in rest[4]
    assert "1:method=2 level=2" in rest[6]
    assert "/runs]\n$" in rest[7]
    assert rest[8].startswith("601\nruns\n[6 turns left]")
    assert rest[9].startswith("[accuracy] 0.8")
    assert "baseline 0.69)" in rest[9]
    missing, *scored = [x for x in trace.info["air"]["deltas"] if x]
    assert len(scored) == 1  # submitting the same again earns nothing
    assert trace.reward == pytest.approx(missing + scored[0]) == trace.info["air"]["phis"][-1]
    assert trace.reward > 0.5
    assert trace.metrics["format_errors"] == 0


@containers_in_full
async def test_an_episode_in_this_format_is_one_token_exact_sample(
    runtime: str, tmp_path: Path
) -> None:
    folder = policies.build(tmp_path / "policy", SOLVED, hidden=64, layers=1, max_length=16384)
    policy = policies.load(folder)
    harness = MLGYM | {"tokenizer": str(folder)}
    env = vf.load_environment(research(["titanic"], runtime, harness=harness, max_turns=15))
    with ScriptedServer(replies(*SOLVED), policy.tokenizer) as server:
        url = server.url.removesuffix("/v1")
        ctx = context(policy, url, temperature=1.0, max_tokens=512)
        async with env.serving():
            episode = await env.run_slot(env.slots(next(iter(env.taskset)))[0], ctx)
    (trace,) = episode.traces
    check_solved(trace)
    check_tokens(policy, trace)
    assert trace.num_turns == len(SOLVED)


@containers_in_full
async def test_format_errors_are_shown_and_asked_again_twice_in_a_row(runtime: str) -> None:
    config = research(["titanic"], runtime, harness=MLGYM, max_turns=20, format_penalty=0.1)
    script = replies("what?", "er", say("ls"), "one", "two", "three", say("submit"))
    async with played_by(script, config) as play:
        (trace,) = (await play()).traces
    assert trace.ok, trace.errors
    assert trace.info["air"]["why_ended"] == "format"
    told = shown(trace)
    assert "Format error: no fenced block" in told[1]
    assert "[19 turns left]" in told[1]
    assert "solve.py" in told[3]
    assert trace.metrics["turns"] == 6
    assert trace.metrics["format_errors"] == 5
    assert trace.rewards["format"].value == pytest.approx(-0.5)
    # It ended, and was graded.
    assert trace.metrics["validates"] == 1
    assert trace.metrics["submitted"] == 0


async def test_how_often_it_is_asked_again_can_be_set() -> None:
    harness = MLGYM | {"format_retries": 0}
    async with played_by(
        replies("x"), research(["titanic"], "subprocess", harness=harness)
    ) as play:
        (trace,) = (await play()).traces
    assert (trace.metrics["turns"], trace.info["air"]["why_ended"]) == (1, "format")
    async with played_by(replies("x"), research(["titanic"], "subprocess")) as play:
        (trace,) = (await play()).traces
    assert (trace.metrics["turns"], trace.info["air"]["why_ended"]) == (4, "turns")


async def test_running_out_of_turns_grades_and_notes_last_for_one_episode() -> None:
    script = replies(say("memory_write hello"), say("memory_read hello"))
    config = research(["titanic"], "subprocess", harness=MLGYM | {"memory": True}, max_turns=2)
    async with played_by(script, config) as play:
        traces = [(await play()).traces[0] for _ in range(2)]
    for trace in traces:
        assert "memory_read <query>" in str(trace.messages[0].content)
        assert shown(trace)[1].startswith("Noted as 1.")
        assert trace.info["air"]["why_ended"] == "turns"
        assert trace.metrics["validates"] == 1


async def test_old_observations_can_be_left_out_in_an_evaluation() -> None:
    seen: list[list[str]] = []
    script = replies(*(say(f"echo shown {n}") for n in range(4)), say("submit"))

    def spy(conversation: Sequence[Message]) -> str:
        seen.append([m["content"] for m in conversation if m["role"] == "user"])
        return script(conversation)

    config = research(["titanic"], "subprocess", harness=MLGYM | {"history": 2}, max_turns=9)
    async with played_by(spy, config) as play:
        (trace,) = (await play()).traces
    assert trace.ok, trace.errors
    last = seen[-1]
    assert last[0] == seen[0][0]
    assert last[1:3] == ["[3 lines left out]"] * 2
    assert [text.split("\n")[0] for text in last[3:]] == ["shown 2", "shown 3"]


async def test_leaving_out_old_observations_is_refused_where_it_is_trained_on(
    tmp_path: Path,
) -> None:
    source = {"env": {"taskset": {"id": "air"}, "agent": {"harness": {"id": "air", "history": 5}}}}
    with pytest.raises(ConfigError, match=r"env\.agent\.harness\.history: .* one sample"):
        RunConfig.model_validate({"max_steps": 1, "orchestrator": {"train": {"source": [source]}}})
    folder = policies.build(tmp_path / "policy", SOLVED, hidden=64, layers=1)
    ctx = context(policies.load(folder), "http://127.0.0.1:9", temperature=1.0, max_tokens=9)
    env = vf.load_environment(research(["titanic"], "subprocess", harness={"history": 5}))
    async with env.serving():
        episode = await env.run_slot(env.slots(next(iter(env.taskset)))[0], ctx)
    assert not episode.ok
    assert "history" in episode.traces[0].last_error.message


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"format": "mlgymm"}, "fenced, hermes, mlgym, react"),
        ({"memory": True}, "memory has no effect"),
        ({"window": 50}, "window has no effect"),
        ({"format": "mlgym", "window": 2}, "must be less than window"),
        ({"format": "mlgym", "history": 0}, "history"),
        ({"format": "mlgym", "format_retries": -1}, "format_retries"),
    ],
)
def test_settings_that_cannot_be_kept_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        AirHarnessConfig(**settings)
