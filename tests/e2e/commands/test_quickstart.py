"""The whole way, in small: demonstrations, a policy built and warm-started, one step of training."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from tests import once
from tests.e2e.commands.test_commands import command

SMALL = ["--demos", "2", "--sft-steps", "3", "--max-steps", "1"]
SMALL += ["--orchestrator.batch-size", "6", "--orchestrator.group-size", "2"]


def test_the_whole_way_without_docker(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    settings = {
        "AIR_CACHE": str(once.cache(tmp_path_factory)),
        "DOCKER_HOST": "unix:///nowhere.sock",
    }
    first = command("air", "quickstart", *SMALL, cwd=tmp_path, **settings)
    assert first.returncode == 0, first.stdout + first.stderr
    assert first.stdout.count("NOT isolated") == 1
    assert "6 demonstrations" in first.stdout
    (run,) = (tmp_path / "outputs").iterdir()
    (row,) = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    assert row["episodes"] == 6
    assert row["failed_episodes"] == 0
    assert f"air eval {Path('outputs') / run.name / 'checkpoints' / 'step_1'}" in first.stdout
    line = next(line for line in first.stdout.splitlines() if "step into it:" in line)
    (tmp_path / "script").write_text("ls\n:expect solve.py\n")  # an action: it is not over
    _, *printed = shlex.split(line.partition("step into it:")[2])  # after the path of `air`
    flags = [*printed, "--exec", "script"]
    entered = command("air", *flags, cwd=tmp_path, **settings)
    assert entered.returncode == 0, entered.stdout + entered.stderr
    again = command("air", "quickstart", *SMALL, "--prepare", cwd=tmp_path, **settings)
    assert again.returncode == 0
    assert "cached" in again.stdout
