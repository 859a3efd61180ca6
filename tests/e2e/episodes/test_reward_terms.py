"""Every term of a reward is shown by its name, and the reward is the sum of what is shown."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from air import tasks
from air.aio import run_concurrently
from air.env.overfitting_alarm import WINDOW
from air.rewards.normalise import phi_on
from air.rewards.terms import EpisodeFacts
from air.testing import Message, replies
from air.train.loop.metrics import of_rollouts
from air.train.loop.rollout import Rollout
from air.trajectories import read, trajectory_files
from tests.e2e.conftest import attempt, played_by, research
from tests.unit.tasks.conftest import DATA, GRADER, REFUSE, SCORE, TOML

TERMS = ["delta", "format", "failed_validates", "time", "test_score", "holdout"]
ENDS = [(1, "validate"), (2, "validate"), (3, "submit")]
ROUNDING = 0.01
MISSING = "Gone.\n```bash\nsleep 0.5; rm -f submission.csv\nvalidate\n```"


async def played(folder: Path, *said: str, **settings: Any) -> tuple[Any, list[dict[str, Any]]]:
    """One episode of titanic: its trace and its record."""
    config = research(["titanic"], "subprocess", record_dir=folder, **settings)
    async with played_by(replies(*said), config) as play:
        episode = await play()
    assert episode.ok, episode.errors or episode.traces[0].errors
    (trace,) = episode.traces
    return trace, list(read(folder / f"{trace.info['air']['episode']}.jsonl"))


async def test_the_reward_is_the_sum_of_the_terms_that_are_shown(tmp_path: Path) -> None:
    weights = {
        "format_penalty": 0.25,
        "validate_penalty": 0.5,
        "time_penalty": 1000.0,
        "test_weight": 2.0,
    }
    said = ("what?", MISSING, attempt(2, 3, "submit"))
    trace, lines = await played(tmp_path, *said, **weights)
    task, end = tasks.load("titanic"), lines[-1]
    values = {name: term.value for name, term in trace.rewards.items()}
    assert list(values) == TERMS
    assert values["delta"] == pytest.approx(phi_on(task, trace.metrics["score"]))
    assert values["format"] == -0.25
    assert values["failed_validates"] == -0.5
    assert values["time"] == pytest.approx(-1000 * trace.metrics["seconds_agent"] / 3600)
    assert 0.5 <= trace.metrics["seconds_agent"] < end["t"] - lines[0]["t"]
    assert values["test_score"] == pytest.approx(2 * phi_on(task, trace.metrics["test_score"]))
    assert end["terms"] == values
    assert end["reward"] == pytest.approx(sum(values.values()))
    assert trace.reward == pytest.approx(end["reward"])
    row = of_rollouts([Rollout("research", "titanic", [trace])])
    assert {name: row[f"reward/{name}"] for name in TERMS} == pytest.approx(values)
    shown = sum(value for name, value in row.items() if name.startswith("reward/"))
    assert row["reward"] == pytest.approx(shown)


async def test_by_default_only_deltas_are_paid(tmp_path: Path) -> None:
    trace, lines = await played(tmp_path, "what?", MISSING, attempt(2, 3, "submit"))
    terms = lines[-1]["terms"]
    assert list(terms) == TERMS
    assert trace.reward == terms["delta"] != 0
    assert not any(terms[name] for name in TERMS[1:])


async def test_with_best_the_test_score_is_that_of_the_best_artefact(tmp_path: Path) -> None:
    """A holdout pays for it, and each segment would get what its own artefact earned."""
    said = (attempt(4, 2), attempt(1, 1, "submit"))
    trace, lines = await played(tmp_path, *said, delta="best", final="holdout", test_weight=2.0)
    start, end = lines[0], lines[-1]
    first, second = (line for line in lines if line["type"] == "validate")
    assert first["score"] > second["score"]
    assert (start["counts"], end["test"]["artefact"]) == ("best", first["artefact"])
    task = tasks.load("titanic")
    test = phi_on(task, trace.metrics["test_score"])
    assert trace.rewards["test_score"].value == pytest.approx(2 * test)
    assert trace.reward == pytest.approx(3 * test)
    gap = phi_on(task, first["score"]) - test
    assert trace.metrics["validation_test_gap"] == pytest.approx(gap)
    paid = trace.info["air"]["paid"]
    assert ["test_score" in one["terms"] for one in paid if one["ends"]] == [True, False]


def fragile(facts: EpisodeFacts) -> float:
    """A term that an agent can make fail, by a reply that is not an action."""
    return 1 / (1 - facts.format_errors)


async def test_a_term_that_fails_stops_the_run_instead_of_masking_episodes(tmp_path: Path) -> None:
    path = "tests.e2e.episodes.test_reward_terms:fragile"
    config = research(["titanic"], "subprocess", record_dir=tmp_path, terms={path: 1.0})
    well = (attempt(1, 1, "submit"),)
    async with played_by(replies("what?", *well, *well), config) as play:
        first, second = await play(), await play()
    assert not first.ok
    assert path in first.traces[0].last_error.message
    assert not second.ok
    assert second.traces == []
    assert path in second.errors[0].message
    assert "division by zero" in second.errors[0].message
    (trajectory,) = trajectory_files(tmp_path)
    end = list(read(trajectory))[-1]
    assert (end["ok"], end["reward"], end["terms"]) == (False, None, None)


async def test_the_share_of_time_is_of_the_limit_that_the_run_sets(tmp_path: Path) -> None:
    config = research(["titanic"], "subprocess", record_dir=tmp_path, time_penalty=1.0)
    config.agent.timeout.rollout = 100.0
    async with played_by(replies(MISSING, attempt(1, 1, "submit")), config) as play:
        (trace,) = (await play()).traces
    used = trace.metrics["seconds_agent"]
    assert trace.rewards["time"].value == pytest.approx(-used / 100)


def tiny(folder: Path, grade: str) -> Path:
    """A root of tasks with a task `tiny` whose grader ends with these lines."""
    files = {"task.toml": TOML, "data.py": DATA, "starter/answer.txt": "1"}
    files["grader/grade.py"] = GRADER.replace("BODY", grade)
    for name, text in files.items():
        path = folder / "tasks" / "tiny" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "tasks"


async def test_the_agents_time_is_without_the_graders(tmp_path: Path) -> None:
    """A grader that takes a second; the agent writes a line."""
    root = tiny(tmp_path, "import time; time.sleep(1)\n" + SCORE)
    config = research(["tiny"], "subprocess", task_roots=[root])
    script = [f"Go.\n```bash\necho 1.{n} > answer.txt\n{end}\n```" for n, end in ENDS]
    async with played_by(replies(*script), config) as play:
        began = time.monotonic()
        (trace,) = (await play()).traces
        whole = time.monotonic() - began
    values = trace.metrics
    assert values["seconds_grading"] >= 4  # three validates, then the test split
    assert values["seconds_model"] + values["seconds_exec"] <= values["seconds_agent"]
    # On a machine of any speed: gradings that were also the agent's time would be counted twice here.
    parts = [values[f"seconds_{name}"] for name in ("box", "agent", "grading", "recording")]
    assert sum(parts) <= whole + ROUNDING


OVERFITS = (
    REFUSE
    + """val, test = map(float, given.split())
end(0, json.dumps({"metrics": {"score": test if args.split == "test" else val}}))
"""
)
"""A grader of artefacts that say how well they do on either split."""


async def test_agents_that_overfit_are_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """At first they do equally well on both splits, then only on that whose scores they see."""
    told = "1.5 1.5"

    def script(messages: Sequence[Message]) -> str:
        return f"Go.\n```bash\necho {told} > answer.txt\nsubmit\n```"

    roots = [tiny(tmp_path, OVERFITS)]
    config = research(["tiny"], "subprocess", task_roots=roots, final="holdout", max_boxes=4)
    async with played_by(script, config) as play:
        fair = await run_concurrently([play() for _ in range(WINDOW)], 4)
        assert not alarms(caplog)
        told = "2.0 1.5"
        overfitted = await run_concurrently([play() for _ in range(WINDOW + 2)], 4)
    for episodes, gap in ((fair, 0.0), (overfitted, 0.5)):
        for episode in episodes:
            (trace,) = episode.traces
            assert trace.metrics["validation_test_gap"] == pytest.approx(gap)
            assert trace.reward == pytest.approx(0.5)  # of the test split
    (alarm,) = alarms(caplog)
    assert "task tiny: validation scores have risen by φ 0.50 more than test scores" in alarm


def alarms(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name == "verifiers.v1.air.gap"]
