"""`make matrix`: the policy that all trainings begin with."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

from air.errors import UsageError

GAME = "blocksworld-1d-blocks4-level1-turns2"


@pytest.fixture
def matrix() -> ModuleType:
    return importlib.import_module("bench.learning.matrix")


def test_a_policy_of_other_settings_is_refused_and_kept(matrix: ModuleType, tmp_path: Path) -> None:
    policy = tmp_path / "warm" / "config.json"
    policy.parent.mkdir()
    policy.write_text("{}")
    with pytest.raises(UsageError, match="other settings"):  # nothing says how it was made
        matrix.prepare(tmp_path, [GAME], demos=8, steps=30)
    (tmp_path / "settings.json").write_text(matrix.made_with([GAME], demos=8, steps=30))
    matrix.prepare(tmp_path, [GAME], demos=8, steps=30)
    with pytest.raises(UsageError, match="other settings"):
        matrix.prepare(tmp_path, [GAME], demos=8, steps=31)
    assert policy.read_text() == "{}"
