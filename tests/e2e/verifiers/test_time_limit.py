"""Time that runs out, which verifiers 0.3 and 0.4 treat differently, ends an episode in one way."""

from __future__ import annotations

import shutil
from pathlib import Path

from air import tasks
from air.testing import replies
from tests.e2e.conftest import attempt, played_by, research

HANG = "Wait.\n```bash\nsleep 600\n```"
SECONDS = 5.0
"""Time of an episode: more than ten times what its first turn takes."""


async def test_an_episode_whose_time_runs_out_is_graded_as_it_is() -> None:
    config = research(["titanic"], "subprocess")
    config.agent.timeout.rollout = SECONDS
    async with played_by(replies(attempt(2, 2), HANG), config) as play:
        trace = (await play()).traces[0]
    assert trace.ok, trace.errors
    assert trace.info["air"]["why_ended"] == "agent_timeout"
    assert trace.stop_condition == "agent_timeout"
    assert trace.metrics["validates"] == 2
    assert trace.metrics["test_score"] > 0
    assert trace.reward > 0


async def test_time_that_runs_out_while_we_grade_does_not_undo_the_grade(tmp_path: Path) -> None:
    root = tmp_path / "tasks"
    shutil.copytree(tasks.load("titanic").folder, root / "titanic")
    grader = root / "titanic" / "grader" / "grade.py"
    slow = f"import sys, time\nif 'val' in sys.argv: time.sleep({SECONDS + 1})\n"
    grader.write_text(slow + grader.read_text().replace("from __future__ import annotations\n", ""))
    config = research(["titanic"], "subprocess", task_roots=[root])
    config.agent.timeout.rollout = SECONDS
    async with played_by(replies(attempt(2, 2)), config) as play:
        trace = (await play()).traces[0]
    assert trace.ok, trace.errors
    assert trace.stop_condition == "agent_timeout"
    assert trace.metrics["valid"] == 1
    assert trace.metrics["test_score"] > 0
    assert trace.reward == trace.info["air"]["phis"][-1] > 0
