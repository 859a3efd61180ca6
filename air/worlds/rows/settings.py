"""The settings of a task of rows, from a `.toml` file, or from the text after the `#` of a task id."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from air.config import BaseConfig, read_toml, toml_or_text, validate
from air.errors import ConfigError
from air.worlds.rows.reading import ANSWER, MESSAGES, QUESTION, READERS
from air.worlds.rows.splits import Chosen, Condition, SplitRule

_LISTS = ("tools", "public", "metrics")
"""The keys whose values are lists, also in a task id."""


class SplitFiles(BaseConfig):
    """One file of rows for each split."""

    train: str
    """The file of the rows for training."""
    validation: str
    """The file of the rows that are held out."""


class RowsSettings(BaseConfig):
    """The settings of a task of rows."""

    data: str | SplitFiles
    """The file of rows (.json, .jsonl or .parquet), or one for each split. Relative to the `.toml`."""
    checker: str | dict[str, Any] | None = None
    """The answer checker: a name, a function as `FILE.py:NAME` or `MODULE:NAME`, or a table with the key
    `name` and settings. A task needs one; `air tasks rows:PATH` does not."""
    tools: tuple[str | dict[str, Any], ...] = ()
    """The tools: names, functions as `FILE.py:NAME` or `MODULE:NAME`, or tables with the key `name` and
    settings."""
    turns: int | None = Field(default=None, ge=1)
    """The number of turns of an episode. Without it: 8 with tools, else 1."""
    format: str = ""
    """The action format. Empty: `tool_calls` with tools, else `think_answer`."""
    instructions: str = ""
    """The text of the first prompt before the question. Empty: one sentence that asks for an answer."""
    format_penalty: float = Field(default=0.0, ge=0.0)
    """The penalty for a reply that is not an action."""
    seconds: float = Field(default=600.0, gt=0.0)
    """The time limit of an episode, in seconds."""
    metrics: tuple[str, ...] = ()
    """The checker's metrics that become facts of the episode, as `answer_NAME`."""
    success_at: float = 1.0
    """The smallest reward of an answer that counts as `success`."""
    check_image: str = "air-base"
    """The image of the fresh box in which a checker runs an answer's code, if it runs code."""
    public: tuple[str, ...] = ()
    """The fields of a row that its tools may read, such as the position of a game. Never the answer: the
    checker alone reads the others."""
    where: Mapping[str, Condition] = Field(default_factory=dict)
    """Keeps only rows that fulfil all these conditions: by field a value, a list of values, or a table with
    `least` and `most`."""
    splits: SplitRule = SplitRule()
    """The rule that says which split a row belongs to."""
    split: Chosen = "seed"
    """The rows that seeds ask. `seed`: training seeds ask rows for training, evaluation seeds held-out rows.
    `train`, `validation`: every seed asks rows of this split. `all`: every seed asks rows of both."""

    @model_validator(mode="after")
    def _checked(self) -> RowsSettings:
        for name in self.public:
            if name in (ANSWER, QUESTION, MESSAGES):
                fault = "is never public" if name == ANSWER else "is public anyway"
                raise ValueError(f"`public` names `{name}`, which {fault}")
        if isinstance(self.data, SplitFiles) and "splits" in self.model_fields_set:
            raise ValueError("`splits` needs one file, but `data` has a file for each split")
        return self


def of(name: str, task_id: str) -> tuple[RowsSettings, Path]:
    """Returns the settings that a task name `PATH#KEY=VALUE&…` stands for, and the folder at which relative
    paths begin. Raises MissingError if the file is absent, and ConfigError if a key is wrong."""
    written, _, options = name.partition("#")
    if not written:
        raise ConfigError("the path is missing", where=task_id, remedy="write rows:PATH")
    path = Path(written).expanduser().absolute()
    given = _options(options, task_id)
    if path.suffix == ".toml":
        table = read_toml(path)
        _merge(table, given)
        return validate(RowsSettings, table, where=str(path)), path.parent
    if path.suffix not in READERS:
        remedy = f"its name must end in {', '.join([*READERS, '.toml'])}"
        raise ConfigError(f"{written!r} is no file of rows", where=task_id, remedy=remedy)
    if "data" in given:
        raise ConfigError("`data` is the path before the #", where=task_id, remedy="remove it")
    return validate(RowsSettings, {"data": str(path), **given}, where=task_id), Path.cwd()


def _options(text: str, task_id: str) -> dict[str, Any]:
    """Returns the settings after the `#`: `KEY=VALUE&KEY=VALUE`. A key may be in a table: `where.level=1`."""
    table: dict[str, Any] = {}
    for part in text.split("&") if text else ():
        key, equals, value = part.partition("=")
        *above, last = key.split(".")
        if not (equals and all([*above, last])):
            raise ConfigError(
                f"{part!r:.60} is malformed",
                where=task_id,
                remedy="write KEY=VALUE, with & between several",
            )
        inner = table
        for name in above:
            inner = inner.setdefault(name, {})
            if not isinstance(inner, dict):
                raise ConfigError(
                    f"`{name}` has a value and keys", where=task_id, remedy="name one"
                )
        if last in inner:
            raise ConfigError(f"`{key}` is named twice", where=task_id, remedy="name it once")
        inner[last] = _value(key, value)
    return table


def _value(key: str, text: str) -> Any:
    top = key.partition(".")[0]
    if top in _LISTS:
        return text.split(",") if text else []
    if top == "where":  # the file tells whether a field is a text or a number
        return text.split(",") if not key.endswith((".least", ".most")) else toml_or_text(text)
    if key in ("splits.train", "splits.validation"):
        return text.split(",")
    return toml_or_text(text)


def _merge(table: dict[str, Any], given: Mapping[str, Any]) -> None:
    """Puts the settings of a task id into those of a file, which they replace."""
    for key, value in given.items():
        if isinstance(value, dict) and isinstance(table.get(key), dict):
            _merge(table[key], value)
        else:
            table[key] = value
