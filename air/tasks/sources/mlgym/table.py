"""What MLGym's files do not say of its tasks: the entries of `table.toml`, by config name.

A checkout may add entries, or replace ours, in a file `configs/air.toml` of the same form: that is how
tasks of one's own, written for MLGym, become playable. `air tasks check` plays the solvers of such a
task that `configs/air/<name>.toml` records.
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
    """One task of the table. `baseline` holds where the task's config states none."""

    metric: str = Field(min_length=1)
    """The primary metric, by the name under which the evaluation script prints it."""
    artefact: tuple[str, ...] = Field(min_length=1)
    """What is graded, relative to the workspace; a folder ends in `/`."""
    own_baseline: bool = False
    """Whether `baseline` holds even where the task's config states one."""
    data: tuple[str, ...] = ()
    """Files of the data folder that the agent may see (patterns); all others are answers."""
    split: Literal["", "house-prices"] = ""
    """How absent data is made from other files of the checkout (`air.tasks.sources.mlgym.split`)."""
    player: str = Field("", pattern=r"^(\w+:\w+)?$")
    """`module:function` of a strategy that plays apart from the evaluation script."""
    probe: str = ""
    """A file of the checkout's that must be gradable as the artefact, relative to the workspace: where
    neither it nor the agent's is, the failure is ours."""
    image: str = "air-base"
    """The image of its boxes."""
    repeats: int = Field(1, ge=1, le=100)
    """How often one artefact is graded, each time under another seed; its score is the mean."""
    gpus: int = Field(0, ge=0)
    """GPUs of a box; the evaluation of language models runs one process on each."""
    hub: tuple[str, ...] = ()
    """What its code loads from a hub by itself, beside its data sets."""
    caveat: str = ""
    """What a reader must know of its scores."""
    limits: TaskLimits = TaskLimits()
    """Limits of its boxes; the time limits come from the task's config."""


def read_table(root: Path) -> dict[str, Entry]:
    """The entries for a checkout, its own in front of ours.

    Raises:
        ConfigError: an entry is bad; names the file, the entry and the key.
    """
    own = root / "configs" / "air.toml"
    entries = _entries(SHIPPED)
    return entries | _entries(own) if own.is_file() else entries


def _entries(file: Path) -> dict[str, Entry]:
    """Reads one file; `like = "other"` in an entry takes over what it does not say itself."""
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
