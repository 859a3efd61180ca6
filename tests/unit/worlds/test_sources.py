"""What a task id of a world means: mistyped sources and modules without a source get one clear line."""

from __future__ import annotations

from pathlib import Path

import pytest

from air.errors import UsageError
from air.worlds import sources


@pytest.mark.parametrize(
    ("task_id", "message"),
    [
        ("gmae:sokoban6", "no source of tasks 'gmae'"),
        (":sokoban6", "no source of tasks ''"),
        ("..:sokoban6", "no source of tasks '..'"),
        ("my worlds:maze", "no source of tasks 'my worlds'"),
        ("no_source_here:maze", "no attribute 'SOURCE'"),
        ("odd_source:maze", "is no source of tasks"),
        ("game:sokban6", "there is no game 'sokban6'"),
        ("air.testing:lettrs", "there is no world 'lettrs'"),
    ],
)
def test_an_id_that_names_nothing_is_refused_in_one_line(
    task_id: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "no_source_here.py").write_text("")
    (tmp_path / "odd_source.py").write_text("SOURCE = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert sources.is_world(task_id)
    with pytest.raises(UsageError, match=message):
        sources.load(task_id)
