"""Reads air's file `table.toml`, which holds the settings of MLGym's tasks that MLGym's own files lack.

`configs/air.toml` in the checkout can add or replace entries. `configs/air/<name>.toml` there can contain
reference solutions for `air tasks check`.
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
    """The entry of one MLGym task in `table.toml`: settings that MLGym's own files lack.

    `baseline` is used only if the task's config in MLGym states no baseline, or if `own_baseline` is set.
    """

    metric: str = Field(min_length=1)
    """Name of the metric that is the task's score, as the evaluation script prints it."""
    artefact: tuple[str, ...] = Field(min_length=1)
    """The files and folders that are graded, relative to the workspace; a folder ends in `/`."""
    own_baseline: bool = False
    """Whether `baseline` is used even if the task's config in MLGym states a baseline."""
    data: tuple[str, ...] = ()
    """Shell patterns (such as `*.csv`) for the files in the data folder that the agent gets. Only the grader
    gets the others."""
    split: Literal["", "house-prices"] = ""
    """The method by which `air.tasks.sources.mlgym.house_prices_split` makes split data that the checkout
    lacks; empty if there is no such method for the task."""
    generate: Literal["", "3-sat"] = ""
    """The method by which `air.tasks.sources.mlgym.sat` generates data that the checkout lacks; empty if
    there is no such method for the task."""
    downloads: dict[str, str] = Field(default_factory=dict)
    """Files that the task's code loads from Hugging Face or expects in the checkout: the address of each, by
    its path in the workspace. `air tasks fetch` downloads them. If a path begins with the name of a data set
    on Hugging Face, the workspace gets a folder of that name, and libraries load this folder instead of the
    data set. Data in the checkout take precedence over downloads."""
    player: str = Field("", pattern=r"^(\w+:\w+)?$")
    """The function that the agent writes as `module:function`, if the evaluation script does no more with the
    artefact than call it: a strategy in a game, or a heuristic. It runs in its own process, apart from the
    evaluation script, and gets copies of its positional arguments: numbers, texts, lists, tuples and dicts.
    If the only argument is a list, this is the history of a game, which may only grow at its end. Empty for
    other tasks."""
    probe: str = ""
    """A file of the checkout, as a path relative to the workspace, with which the grader shows that its
    evaluation works. It is evaluated after the evaluation of an agent's artefact (files to grade) failed. If
    this fails too, air or the machine counts as the cause, not the artefact. Empty: there is no such file."""
    image: str = "air-base"
    """The container image of the agent's box (sandbox) and of the grader's box."""
    repeats: int = Field(1, ge=1, le=100)
    """Number of times that each artefact (an agent's files) is graded, each time with another seed; its score
    is the mean."""
    gpus: int = Field(0, ge=0)
    """Number of GPUs of the agent's box (sandbox) and, if the artefact (what the agent hands in) is a model,
    of the grader's box. The evaluation of a language model runs one process on each GPU."""
    without_gpu: str = ""
    """Text that is appended to the task's description if this machine has no GPU. The boxes (sandboxes) then
    have no GPU either. Empty if the task needs GPUs."""
    note: str = ""
    """Text that is appended to the task's description: what differs from MLGym. Empty if nothing that the
    agent must know does."""
    caveat: str = ""
    """A warning about the task's scores, in one line."""
    limits: TaskLimits = TaskLimits()
    """Limits of the task's boxes (sandboxes); the time limits of commands and grading come from the task's
    config."""


def read_table(root: Path) -> dict[str, Entry]:
    """Returns the entries of `table.toml` and of the checkout's `configs/air.toml`, by config name.

    Raises ConfigError, naming file, entry and key, if an entry is invalid.
    """
    own = root / "configs" / "air.toml"
    entries = _entries(SHIPPED)
    return entries | _entries(own) if own.is_file() else entries


def _entries(file: Path) -> dict[str, Entry]:
    """Returns the entries in one file, by config name. An entry with `like = "other"` inherits the keys of
    the entry `other`."""
    raw = read_toml(file)
    entries = {}
    for name, fields in raw.items():
        where = f"{file}: {name}"
        if not isinstance(fields, dict):
            raise ConfigError("is no table", where=where)
        entries[name] = validate(Entry, _inherited(raw, fields, where), where=where)
    return entries


def _inherited(raw: dict[str, Any], fields: dict[str, Any], where: str) -> dict[str, Any]:
    fields = dict(fields)
    like = fields.pop("like", None)
    if like is None:
        return fields
    if not isinstance(raw.get(like), dict) or "like" in raw[like]:
        raise ConfigError(f"`like`: there is no full entry {like!r} in this file", where=where)
    return dict(raw[like]) | fields
