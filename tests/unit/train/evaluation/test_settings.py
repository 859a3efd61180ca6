"""By what settings recorded evaluations are recognised."""

from __future__ import annotations

from air.env.config import ResearchEnvConfig
from air.train.evaluation.play import research_env
from air.train.evaluation.settings import Settings, with_default_turn_limit


def identity(env: ResearchEnvConfig) -> dict[str, object]:
    (data,) = Settings([env], temperature=1.0, max_tokens=None, context=4096).identity()["envs"]
    return dict(data)


def test_evaluations_that_were_recorded_before_worlds_still_count() -> None:
    data = identity(research_env(["titanic"], runtime="docker", max_turns=10))
    assert not {"weights", "purpose"} & set(data["taskset"])  # type: ignore[call-overload]
    assert data["agent"]["harness"]["format"] == "fenced"  # type: ignore[index]
    assert "reuse_boxes" not in data


def test_research_tasks_with_the_settings_of_worlds_have_their_usual_turns() -> None:
    env = research_env(["titanic"], runtime="docker", max_turns=None)
    assert with_default_turn_limit(env).agent.max_turns == 10
    env = research_env(["game:sokoban6"], runtime="docker", max_turns=None)
    assert with_default_turn_limit(env).agent.max_turns is None
    env = research_env(["titanic"], runtime="docker", max_turns=3)
    assert with_default_turn_limit(env).agent.max_turns == 3


def test_a_world_keeps_the_format_of_its_own() -> None:
    data = identity(research_env(["game:sokoban6"], runtime="docker", max_turns=None))
    assert data["agent"]["harness"]["format"] is None  # type: ignore[index]
