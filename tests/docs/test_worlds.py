"""The world that `docs/worlds.md` shows can be played from outside the package, and keeps the rules."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from air.worlds import conformance, sources
from tests.docs.blocks import ROOT, blocks
from tests.e2e.commands.test_commands import command

PAGE = ROOT / "docs/worlds.md"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    code = [b.text for b in blocks(PAGE) if b.language == "python" and "SOURCE =" in b.text]
    (tmp_path / "my_worlds.py").write_text(code[0])
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_the_world_of_the_page_conforms(module: Path) -> None:
    assert asyncio.run(conformance.check(sources.load("my_worlds:guess"))) == {}


def test_the_world_of_the_page_is_played_by_its_id(module: Path) -> None:
    (module / "script").write_text("1\n10\n:expect turns left\nten\n:expect no number\n:reward\n")
    path = {"PYTHONPATH": str(module)}
    played = command("air", "shell", "my_worlds:guess", "--exec", "script", cwd=module, **path)
    assert played.returncode == 0, played.stdout + played.stderr
