"""By what settings recorded evaluations are recognised."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from air.env.config import ResearchEnvConfig
from air.train.evaluation.settings import (
    Change,
    Settings,
    read_evaluated_checkpoint,
    research_env,
    with_default_turn_limit,
)
from air.train.loop.run_folder import CONFIG_FILE


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


@pytest.mark.parametrize(
    ("taskset", "embedded"),
    [
        ({"weights": {"question:gsm8k": 3}}, {}),
        ({}, {"levels": [{"source": "s", "promote_at": 0.5}]}),
        ({}, {"rounds": {"max_turns": [1, 2]}}),
    ],
    ids=["weights", "levels", "rounds"],
)
def test_a_checkpoint_plays_other_tasks_than_those_it_was_trained_on(
    taskset: dict[str, Any], embedded: dict[str, Any], tmp_path: Path
) -> None:
    tasks = ["question:gsm8k", "question:sql"]
    env = {
        "taskset": {"id": "air", "tasks": tasks, **taskset},
        "agent": {"harness": {"id": "air"}},
    }
    config = {
        "max_steps": 1,
        "seq_len": 896,
        "model": {"name": "m"},
        "orchestrator": {
            "batch_size": 8,
            "group_size": 2,
            "train": {
                "sampling": {"max_completion_tokens": 8},
                "source": [{"name": "s", "env": env}],
            },
        },
        "embedded": embedded,
    }
    (tmp_path / CONFIG_FILE).write_text(json.dumps(config))
    changes = {"taskset.tasks": Change("--tasks", ["game:sokoban6"])}
    evaluated = read_evaluated_checkpoint(tmp_path, tmp_path / "step_1", changes, {}, {})
    (played,) = evaluated.settings.envs
    assert played.taskset.tasks == ["game:sokoban6"]  # type: ignore[attr-defined]
    own = read_evaluated_checkpoint(tmp_path, tmp_path / "step_1", {}, {}, {}).settings.envs[0]
    assert own.taskset.weights == taskset.get("weights", {})  # type: ignore[attr-defined]
