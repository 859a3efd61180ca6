"""A module from outside the package, that of `docs/extend.md`, adds a reward term, a format and a setting."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from air.cli.main import main
from air.config import read_toml
from air.env.config import ResearchEnvConfig
from air.paths import shipped
from air.testing import replies
from air.train.config import overrides
from air.train.config.run_config import RunConfig
from air.train.prime_rl import schema
from air.trajectories import load, trajectory_files
from tests.docs.blocks import ROOT, blocks
from tests.docs.test_blocks import merged
from tests.e2e.conftest import played_by

BLOCKS = {block.language: block.text for block in blocks(ROOT / "docs/extend.md")}
REPLIES = ("```bash\nls\n```", "sleep 30", "python3 solve.py\nsubmit")
"""No action in this format; a command that is too long; the end."""


@pytest.fixture
def module(tmp_path: Path) -> Iterator[Path]:
    """The page's module, as a file in a folder that is on `sys.path`."""
    folder = tmp_path / "lab"
    folder.mkdir()
    (folder / "my_lab.py").write_text(BLOCKS["python"])
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))
    sys.modules.pop("my_lab", None)


def run_config(folder: Path) -> RunConfig:
    """The quickstart's run with the page's settings, in process boxes."""
    env: dict[str, Any] = {
        "record_dir": str(folder),
        "credit": "segment",
        "agent": {"runtime": {"type": "subprocess"}, "max_turns": 4},
        "taskset": {"id": "air", "tasks": ["titanic"]},
    }
    changes = {"orchestrator": {"train": {"source": {"env": env}}}}
    base = merged(read_toml(shipped("configs") / "quickstart.toml"), changes)
    whole = merged(base, tomllib.loads(BLOCKS["toml"].replace("20.0", "0.5")))
    assert schema.problems(whole, "rl") == []
    return overrides.build(RunConfig, overrides.MergedSettings(whole))


async def play(folder: Path) -> list[Any]:
    """One episode; its traces."""
    env = run_config(folder).orchestrator.train.source[0].env
    assert isinstance(env, ResearchEnvConfig)
    async with played_by(replies(*REPLIES), env) as play_one:
        episode = await play_one()
    assert episode.ok, episode.errors
    return list(episode.traces)


async def test_each_addition_acts_and_is_recorded(module: Path, tmp_path: Path) -> None:
    traces = await play(tmp_path / "run")
    trajectory = load(trajectory_files(tmp_path / "run")[0])
    start, end, steps = trajectory.start, trajectory.end, trajectory.steps
    assert start is not None
    assert end is not None
    assert end.terms is not None
    assert start.format == "my_lab:Bare"
    assert "Reply with a bash script." in start.system
    assert [step.problem for step in steps] == ["format", "", ""]
    assert start.settings["command_seconds"] == 0.5
    assert steps[1].timed_out
    env = run_config(tmp_path).orchestrator.train.source[0].env
    field = type(env).model_fields["command_seconds"]
    assert field.description.startswith("Longest command")
    assert start.pay["terms"] == {"my_lab:turns_saved": 0.1}
    assert end.terms["turns_saved"] == pytest.approx(0.1 * (1 - 3 / 10))
    assert end.reward == pytest.approx(sum(end.terms.values()))
    assert sum(t.rewards["turns_saved"].value for t in traces) == pytest.approx(0.07)


def test_a_recorded_episode_is_rescored_with_the_module_and_refused_without(
    module: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(play(tmp_path / "run"))
    path = str(trajectory_files(tmp_path / "run")[0])
    assert main(["replay", path, "--rescore", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["terms"]["turns_saved"] == pytest.approx(0.07)
    (module / "my_lab.py").unlink()
    del sys.modules["my_lab"]
    importlib.invalidate_caches()
    assert main(["replay", path, "--rescore"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "'my_lab:turns_saved' cannot be imported" in line
    assert "PYTHONPATH" in line


def test_a_missing_module_is_named_with_what_to_do() -> None:
    settings = {"env": {"terms": {"my_lab:turns_saved": 0.1}}}
    changes = {"orchestrator": {"train": {"source": settings}}}
    whole = merged(read_toml(shipped("configs") / "quickstart.toml"), changes)
    with pytest.raises(Exception, match=r"'my_lab:turns_saved' cannot be imported.*PYTHONPATH"):
        overrides.build(RunConfig, overrides.MergedSettings(whole))
