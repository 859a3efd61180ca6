"""Every shipped task played in real containers, as `air tasks check` does it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from air.cli.main import main

pytestmark = pytest.mark.docker


@pytest.fixture(autouse=True)
def _fresh_grades(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIR_CACHE", str(tmp_path / "cache"))


def test_every_recorded_score_is_measured_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks", "check", "--all"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    for name in ("digits", "prisonersDilemma", "titanic"):
        assert len(re.findall(rf"^{name} .* ok$", shown.out, re.MULTILINE)) == 3
