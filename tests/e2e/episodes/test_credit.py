"""Credit in whole episodes: played by a scripted model in a real box, and trained on by a real one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import verifiers.v1 as vf

from air import tasks
from air.cli.main import main
from air.rewards.normalise import phi_on
from air.testing import replies
from air.train.loop.rollout import Rollout
from air.train.loop.samples import samples
from air.trajectories import read
from tests.e2e.commands.test_commands import command
from tests.e2e.conftest import attempt, played_by, research, run_toml
from tests.e2e.episodes.test_episode import copied_task
from tests.e2e.episodes.test_reward_terms import MISSING
from tests.e2e.train.test_train import rows

SEGMENT = ["--orchestrator.train.source.0.env.credit", "segment"]
SLOW = "Slow.\n```bash\nsleep 3\nvalidate\n```"
WEIGHTS = {
    "format_penalty": 0.25,
    "validate_penalty": 0.5,
    "time_penalty": 100.0,
    "test_weight": 2.0,
}


async def played(folder: Path, credit: str, *said: str, **settings: Any) -> Any:
    config = research(["titanic"], "subprocess", record_dir=folder, credit=credit, **settings)
    async with played_by(replies(*said), config) as play:
        return await play()


def value(trace: Any, name: str) -> float:
    return float(trace.rewards[name].value)


async def test_each_term_lies_in_the_segment_in_which_it_arose(tmp_path: Path) -> None:
    said = ("what?", attempt(1, 1), MISSING, "what?", "what?", SLOW, attempt(2, 3, "submit"))
    episode = await played(tmp_path, "segment", *said, max_turns=9, **WEIGHTS)
    assert episode.ok, episode.errors or episode.traces[0].errors
    traces = episode.traces
    assert [trace.num_turns for trace in traces] == [2, 1, 3, 1]
    assert [value(t, "format") for t in traces] == [-0.25, 0.0, -0.5, 0.0]
    assert [value(t, "failed_validates") for t in traces] == [0.0, -0.5, -0.5, 0.0]
    info = traces[-1].info["air"]
    assert [value(t, "delta") for t in traces] == pytest.approx(info["deltas"])
    metrics, task = traces[-1].metrics, tasks.load("titanic")
    test = 2 * phi_on(task, metrics["test_score"])
    assert [value(t, "test_score") for t in traces] == pytest.approx([0, 0, 0, test])
    times = [value(t, "time") for t in traces]
    assert sum(times) == pytest.approx(-100 * metrics["seconds_agent"] / 3600)
    assert times[2] <= -100 * 3 / 3600  # three seconds were slept away there
    assert max(times[0], times[1], times[3]) > times[2]
    # One record of the whole episode, whose terms the segments' add up to.
    lines = list(read(tmp_path / f"{info['episode']}.jsonl"))
    end = lines[-1]
    assert [line["type"] for line in lines].count("validate") == 4
    for name, term in end["terms"].items():
        assert sum(value(t, name) for t in traces) == pytest.approx(term), name
    assert sum(t.reward for t in traces) == pytest.approx(end["reward"])
    for trace in traces:  # offline scoring takes them from here
        noted = trace.info["air"]
        assert noted["terms"] == {name: value(trace, name) for name in trace.rewards}
        assert noted["metrics"] == trace.metrics
    assert {t.id.rsplit("-", 1)[0] for t in traces} == {lines[0]["trace"]}
    again = vf.WireEpisode.model_validate(json.loads(json.dumps(episode.to_record())))
    assert [t.reward for t in again.traces] == pytest.approx([t.reward for t in traces])


async def test_a_penalty_is_noted_at_its_reply(tmp_path: Path) -> None:
    said = (attempt(1, 1), "what?", "what?", attempt(2, 3, "submit"))
    (trace,) = (await played(tmp_path, "episode", *said, format_penalty=0.25)).traces
    paid = [(p["nodes"], p["terms"].get("format")) for p in trace.info["air"]["paid"]]
    # Reply n is node 2n, so that there are then 2n + 1.
    assert [one for one in paid if one[1]] == [(5, -0.25), (7, -0.25)]
    assert [p["nodes"] for p in trace.info["air"]["paid"] if p["ends"]] == [3, 9]


async def test_a_duration_is_noted_at_its_reply(tmp_path: Path) -> None:
    """Reply n is node 2n. A reply without an action and one with a `validate` alone have none."""
    said = (attempt(1, 1), "what?", "Again.\n```bash\nvalidate\n```", SLOW, attempt(2, 3, "submit"))
    episode = await played(tmp_path, "segment", *said, max_turns=9)
    assert episode.ok, episode.errors or episode.traces[0].errors
    for trace in episode.traces:  # each segment has the record of the whole episode
        noted = {one["node"]: one["seconds"] for one in trace.info["air"]["exec_seconds"]}
        assert list(noted) == [2, 8, 10]
        assert noted[8] >= 3
    lines = list(read(tmp_path / f"{episode.traces[-1].info['air']['episode']}.jsonl"))
    recorded = [line["exec_seconds"] for line in lines if line["type"] == "step"]
    assert [seconds for seconds in recorded if seconds] == list(noted.values())
    replies_of = [[n for n, node in enumerate(t.nodes) if node.sampled] for t in episode.traces]
    assert replies_of == [[2], [4, 6], [8], [10]]  # so each finds its own by its number


async def test_an_episode_stays_one_trace_by_default(tmp_path: Path) -> None:
    said = (attempt(1, 1), attempt(2, 3, "submit"))
    episode = await played(tmp_path, "episode", *said)
    (trace,) = episode.traces
    assert trace.reward == pytest.approx(sum(trace.info["air"]["deltas"]))


async def test_a_failure_after_the_first_validate_masks_all_of_the_episode(tmp_path: Path) -> None:
    root = copied_task(tmp_path, "exec_seconds = 9.0")
    grader = root / "titanic" / "grader" / "grade.py"
    fails = "import sys\nif 'test' in sys.argv: raise SystemExit(7)\n"
    text = grader.read_text()
    future = "from __future__ import annotations\n"
    grader.write_text(text.replace(future, future + fails) if future in text else fails + text)
    config = research(
        ["titanic"], "subprocess", credit="segment", record_dir=tmp_path / "r", task_roots=[root]
    )
    async with played_by(replies(attempt(1, 1), attempt(2, 3, "submit")), config) as play:
        episode = await play()
    assert not episode.ok
    assert episode.traces
    assert all(trace.has_error for trace in episode.traces)
    lines = [line for path in (tmp_path / "r").glob("*.jsonl") for line in read(path)]
    assert [line["type"] for line in lines].count("validate") == 2  # these had been paid
    assert lines[-1]["reward"] is None
    from air.train.algorithms import GRPOConfig
    from air.train.loop.rollout import Group

    failed = Rollout("s", "titanic", episode.traces, error="exit 7")
    assert samples([Group([failed])], GRPOConfig().build(), 1.0) == []
    assert failed.reward == 0


@pytest.mark.parametrize(
    "flags", [SEGMENT, ["--embedded.reward-to-go", "true"]], ids=["segment", "reward_to_go"]
)
def test_a_whole_training_step(flags: list[str], small: Path, tmp_path: Path) -> None:
    file = run_toml(tmp_path, small, "subprocess", max_steps=1)
    ran = command("rl", "@", file, *flags, cwd=tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    folder = tmp_path / "outputs" / "r"
    (row,) = rows(tmp_path)
    assert (row["episodes"], row["failed_episodes"]) == (8, 0)
    assert row["multi_branch_episodes"] == 0
    assert row["train/updated"] == 1
    assert row["mismatch_kl/all/mean"] < 1e-4
    assert 0 < row["train/tokens"] <= row["sampled_tokens"]
    shown = sum(value for name, value in row.items() if name.startswith("reward/"))
    assert row["reward"] == pytest.approx(shown)
    assert len(row["tasks"]["titanic"]["test_scores"]) <= 8
    assert (row["samples"] > 8) == (flags == SEGMENT)  # one a segment, or one an episode
    ends = [list(read(path))[-1] for path in (folder / "trajectories").glob("*.jsonl")]
    assert len(ends) == 8
    assert row["reward"] == pytest.approx(sum(end["reward"] for end in ends) / 8)
    if flags == SEGMENT:
        reported = command("air", "report", folder, "--json", cwd=tmp_path)
        (run,) = json.loads(reported.stdout)["runs"]
        assert run["episodes"] == {"well": 8, "failed": 0, "unfinished": 0}
        assert sum(run["terms"].values()) == pytest.approx(row["reward"])


def test_credits_that_contradict_each_other_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = run_toml(tmp_path, tmp_path, "subprocess")
    assert main(["rl", f"@{file}", *SEGMENT, "--embedded.reward-to-go", "true"]) == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("error: ")
    assert "\n" not in error
    assert "embedded.reward_to_go" in error
    assert 'credit = "episode"' in error
