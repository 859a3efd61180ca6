"""`air.train.load` and `air.train.run`: training without the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from air import train
from air.errors import ConfigError, MissingError

SOURCE: dict[str, Any] = {"env": {"taskset": {"id": "air", "tasks": ["titanic"]}}}
SETTINGS: dict[str, Any] = {
    "max_steps": 3,
    "orchestrator": {"batch_size": 8, "group_size": 4, "train": {"source": [SOURCE]}},
}


def test_later_sources_win_key_by_key(tmp_path: Path) -> None:
    file = tmp_path / "more.toml"
    file.write_text("max_steps = 5\n[orchestrator]\ngroup_size = 2\n")
    config = train.load(SETTINGS, file, {"seq_len": 512})
    assert (config.max_steps, config.seq_len) == (5, 512)
    assert (config.orchestrator.batch_size, config.orchestrator.group_size) == (8, 2)
    assert config.run.name  # one is made up
    assert SETTINGS["orchestrator"]["group_size"] == 4
    assert SOURCE == {"env": {"taskset": {"id": "air", "tasks": ["titanic"]}}}, "it was changed"


def test_a_list_replaces_the_list() -> None:
    other = {"env": {"taskset": {"id": "air", "tasks": ["digits"]}}}
    config = train.load(SETTINGS, {"orchestrator": {"train": {"source": [other]}}})
    assert [s.env.taskset.tasks for s in config.orchestrator.train.source] == [["digits"]]


def test_shipped_files_are_found_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert train.load("configs/quickstart.toml", {"max_steps": 4}).max_steps == 4


@pytest.mark.parametrize(
    ("source", "kind", "words"),
    [
        ({"max_step": 1}, ConfigError, ("settings", "max_step")),
        ("missing.toml", MissingError, ("missing.toml",)),
        ({"orchestrator": {"group_size": 3}}, ConfigError, ("multiple",)),
    ],
)
def test_bad_sources_are_named(source: Any, kind: type[Exception], words: tuple[str, ...]) -> None:
    with pytest.raises(kind) as caught:
        train.load(SETTINGS, source)
    for word in words:
        assert word in str(caught.value)


def test_a_plan_that_makes_no_sense_is_refused() -> None:
    slow = {"env": {**SOURCE["env"], "max_boxes": 1}}
    huge = {"batch_size": 4096, "group_size": 4, "train": {"source": [slow]}}
    with pytest.raises(ConfigError, match="plan"):
        train.load({"max_steps": 1000, "orchestrator": huge})


def test_verifiers_finds_one_plugin_of_each_kind() -> None:
    import air

    assert air.__all__ == ["AirHarness", "AirTaskset", "ResearchEnv"]
