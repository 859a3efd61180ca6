"""With which tools and in which format `air serve evaluate` lets the checkpoint of a run answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from air.env.config import AirHarnessConfig
from air.errors import UsageError
from air.serve.evaluate.settings import EvaluateConfig
from air.train.loop import run_folder

CALCULATOR = {"name": "calculator"}
OWN = '''
from air.tools import tool


@tool
def total(text: str) -> str:
    """Adds."""
    return text
'''


def run_with(folder: Path, *tasks: str) -> str:
    """A run with these tasks and one checkpoint."""
    env = {"taskset": {"id": "air", "tasks": list(tasks)}}
    train = {"source": [{"env": env}]}
    config = {"max_steps": 1, "model": {"name": "m"}, "orchestrator": {"train": train}}
    checkpoint = run_folder.step_folder(folder / "run" / "checkpoints", 3)
    checkpoint.mkdir(parents=True)
    (checkpoint / run_folder.CONFIG_FILE).write_text("{}")
    (folder / "run" / run_folder.CONFIG_FILE).write_text(json.dumps(config))
    return str(folder / "run")


def posed(path: Path, **settings: Any) -> str:
    """A task whose file names tools."""
    path.write_text(json.dumps({"rows": "rows.jsonl", **settings}))
    return f"posed:{path}"


def answers(model: str, **changes: Any) -> tuple[list[str], str | None]:
    """The names of the tools and the action format."""
    config = EvaluateConfig(model=model, **changes)
    _, settings = config.model_and_settings()
    harness = settings.envs[0].agent.harness or AirHarnessConfig()
    assert isinstance(harness, AirHarnessConfig)
    return list(config.tool_set(settings).tools), harness.format


def test_the_tools_and_format_of_the_runs_task_hold(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    task = posed(tmp_path / "a.json", tools=["calculator", "own.py:total"], format="hermes")
    run = run_with(tmp_path, task, "game:sokoban6")
    assert answers(run) == (["calculator", "total"], "hermes")
    assert answers(run, format="tool_calls") == (["calculator", "total"], "tool_calls")


def test_given_tools_replace_those_of_the_run(tmp_path: Path) -> None:
    run = run_with(tmp_path, posed(tmp_path / "a.json", tools=[CALCULATOR], format="hermes"))
    assert answers(run, tools=["code_interpreter"]) == (["code_interpreter"], None)
    assert answers(run, tools=[]) == ([], None)
    (tmp_path / "a.json").unlink()
    assert answers(run, tools=[]) == ([], None)
    with pytest.raises(UsageError, match=r"a\.json"):
        answers(run)


def test_tasks_with_different_tools_leave_the_choice_to_the_user(tmp_path: Path) -> None:
    tasks = [posed(tmp_path / f"{n}.json", tools=[CALCULATOR]) for n in "ab"]
    assert answers(run_with(tmp_path / "equal", *tasks)) == (["calculator"], None)
    run = run_with(tmp_path / "different", *tasks, posed(tmp_path / "c.json"))
    with pytest.raises(UsageError, match=r"run: .*different tools .*--tools"):
        answers(run)


def test_other_runs_and_models_have_no_tools(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"question": "1 + 1", "answer": "2"}\n')
    run = run_with(tmp_path, f"posed:{tmp_path}/rows.jsonl", "titanic")
    assert answers(run) == ([], None)
    assert answers("org/model") == ([], None)
