"""Reads `table.toml`, which says what MLGym's own files do not say about each task, by config name.

A checkout may add or replace entries in a file `configs/air.toml` of the same form. This makes your own tasks
for MLGym playable. `air tasks check` runs the reference solutions of such a task that
`configs/air/<name>.toml` records.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from air.config import read_toml, validate
from air.errors import ConfigError
from air.tasks.spec import RewardScale, TaskLimits

SHIPPED = Path(__file__).resolve().parent / "table.toml"


class Entry(RewardScale):
    """The table's entry for one task. Its `baseline` is used if the task's config in MLGym states none."""

    metric: str = Field(min_length=1)
    """Name of the metric that is the task's score, as the evaluation script prints it."""
    artefact: tuple[str, ...] = Field(min_length=1)
    """The files and folders that are graded, relative to the workspace; a folder ends in `/`."""
    own_baseline: bool = False
    """Whether `baseline` is used even if the task's config in MLGym states one."""
    data: tuple[str, ...] = ()
    """Patterns of the files in the data folder that the agent may see; all others stay with the grader."""
    split: Literal["", "house-prices"] = ""
    """How data that the checkout lacks is made (`air.tasks.sources.mlgym.split`); empty if it is not made."""
    player: str = Field("", pattern=r"^(\w+:\w+)?$")
    """`module:function` of a strategy that plays in its own process, apart from the evaluation script."""
    probe: str = ""
    """A file of the checkout, relative to the workspace, that can be graded as the artefact. If an artefact
    and this file both fail, it counts as an infrastructure failure, not as the agent's fault."""
    image: str = "air-base"
    """The container image of the agent's box and the grader's box."""
    repeats: int = Field(1, ge=1, le=100)
    """How often an artefact is graded, each time with another seed; its score is the mean."""
    gpus: int = Field(0, ge=0)
    """Number of GPUs of a box; the evaluation of a language model runs one process on each."""
    hub: tuple[str, ...] = ()
    """Ids of what the task's code loads from a hub (such as Hugging Face's) besides its data sets."""
    caveat: str = ""
    """A warning about the task's scores, in one line."""
    limits: TaskLimits = TaskLimits()
    """Limits of the task's boxes; the time limits of commands and grading come from the task's config."""


def read_table(root: Path) -> dict[str, Entry]:
    """Returns the entries for a checkout by config name; its own entries replace those that ship with air.

    Args:
        root: the folder of the checkout.

    Raises:
        ConfigError: an entry is invalid; the message names the file, the entry and the key.
    """
    own = root / "configs" / "air.toml"
    entries = _entries(SHIPPED)
    return entries | _entries(own) if own.is_file() else entries


def _entries(file: Path) -> dict[str, Entry]:
    """Reads one file of entries. An entry with `like = "other"` inherits the keys of the entry `other`."""
    raw = read_toml(file)
    entries = {}
    for name, given in raw.items():
        where = f"{file}: {name}"
        if not isinstance(given, dict):
            raise ConfigError("is no table", where=where)
        entries[name] = validate(Entry, _inherited(raw, given, where), where=where)
    return entries


def _inherited(raw: dict[str, Any], given: dict[str, Any], where: str) -> dict[str, Any]:
    given = dict(given)
    like = given.pop("like", None)
    if like is None:
        return given
    if not isinstance(raw.get(like), dict) or "like" in raw[like]:
        raise ConfigError(f"`like`: there is no full entry {like!r} in this file", where=where)
    return dict(raw[like]) | given
