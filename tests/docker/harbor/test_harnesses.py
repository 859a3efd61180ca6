"""Harbor tasks played by verifiers' own harnesses, whose programs run in the box."""

from __future__ import annotations

from pathlib import Path

import pytest
import verifiers.v1 as vf

from air.env.config import AirTasksetConfig, ResearchEnvConfig
from air.env.start_checks import check_rules
from air.errors import ConfigError
from air.tasks.sources.harbor.settings import HarborSettings
from air.testing import tool_calls
from air.trajectories import load
from tests.docker.harbor.test_grading import Make
from tests.docker.harbor.test_steps import make
from tests.docker.tasks.test_harnesses import IMAGE, _needs_image
from tests.e2e.conftest import played_by

__all__ = ["make"]
pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("image builds")]


def config(task: str, tmp_path: Path, harness: str, verifier: str) -> ResearchEnvConfig:
    file = tmp_path / "task" / "task.toml"
    file.write_text(file.read_text().replace('"air-base"', f'"{IMAGE}"'))
    harbor = HarborSettings(root=tmp_path, verifier=verifier)  # type: ignore[arg-type]
    given = {"harness": {"id": harness}, "runtime": {"type": "docker"}, "max_turns": 5}
    return ResearchEnvConfig(
        taskset=AirTasksetConfig(tasks=[task], harbor=harbor),
        agent=vf.AgentConfig.model_validate(given),
        record_dir=tmp_path / "record",
    )


@pytest.mark.parametrize(
    "harness", ["bash", pytest.param("mini_swe_agent", marks=pytest.mark.full)]
)
async def test_a_program_in_the_box_plays_every_step(
    make: Make, tmp_path: Path, harness: str
) -> None:
    _needs_image()
    settings = config(make(), tmp_path, harness, "separate")
    script = tool_calls("echo done > one.txt; submit", "ls; echo done > two.txt; submit")
    async with played_by(script, settings) as play:
        [trace] = (await play()).traces
    assert trace.ok, trace.errors
    assert (trace.reward, trace.info["air"]["why_ended"]) == (1.0, "submit")
    [recorded] = [load(file) for file in (tmp_path / "record").glob("*.jsonl")]
    assert [validation.score for validation in recorded.validations] == [1.0, 1.0]
    first = next(step for step in recorded.steps if step.action)
    assert "Step two." in first.shown
    assert "scored" not in recorded.start.prompt  # `validate` scores nothing


def test_a_program_that_shared_tests_would_end_is_refused(make: Make, tmp_path: Path) -> None:
    settings = config(make(), tmp_path, "bash", "shared")
    with pytest.raises(ConfigError, match="end its program"):
        check_rules(settings.taskset.research_task("harbor:task"), settings)
