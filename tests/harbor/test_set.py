"""The small Harbor tasks are valid folders that are not refused."""

from __future__ import annotations

from pathlib import Path

from air.tasks.sources.harbor import folder, unsupported_features
from tests.harbor.features import FEATURES
from tests.harbor.flaws import CLEAN_TWINS, FLAWED
from tests.harbor.folders import write
from tests.harbor.languages import LANGUAGES

CLEAN = (*LANGUAGES, *FEATURES, *CLEAN_TWINS)


def test_every_task_is_read_and_none_is_refused(tmp_path: Path) -> None:
    paths = write((*CLEAN, *FLAWED), tmp_path)
    refused = {path.name: unsupported_features.refusals(folder.read(path)) for path in paths}
    assert len(refused) == len(CLEAN) + len(FLAWED)
    assert not any(refused.values()), refused


def test_every_flaw_has_a_clean_twin() -> None:
    clean = {one.name for one in CLEAN}
    assert len(clean) >= 50
    assert not [one.name for one in CLEAN if one.caught]
    assert all(one.caught and one.twin in clean for one in FLAWED)
    assert len({one.caught for one in FLAWED}) >= 8
