"""Every shipped task played in real containers, as `air tasks check` does it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from air import tasks
from air.cli.main import main
from air.tasks.check import read_solvers
from air.tasks.missing import missing

pytestmark = pytest.mark.docker


@pytest.fixture(autouse=True)
def _fresh_grades(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIR_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("name", [n for n in tasks.available() if not missing(tasks.load(n))])
def test_every_recorded_score_is_measured_again(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tasks", "check", name]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    solvers = read_solvers(tasks.load(name))
    assert len(solvers) >= 2
    assert len(re.findall(rf"^{name} .* ok$", printed.out, re.MULTILINE)) == len(solvers)
