"""Reads the settings of a task `rows:PATH` (questions from a user's dataset), from a `.toml` file and from
the text after `#` in a task id."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from air import actions
from air.config import BaseConfig, read_toml, toml_or_text, validate
from air.errors import ConfigError
from air.worlds.rows.reading import ANSWER, MESSAGES, QUESTION, READERS
from air.worlds.rows.splits import Chosen, Condition, SplitRule

_LISTS = ("tools", "public", "metrics")
"""The names of the settings that are lists. In a task id, the values of such a list are separated by
commas."""


class SplitFiles(BaseConfig):
    """The paths of two files of rows: one for the training split and one for the validation split."""

    train: str
    """The file of the training rows."""
    validation: str
    """The file of the held-out rows."""


class RowsSettings(BaseConfig):
    """The settings of a task `rows:PATH`, whose episodes ask the questions in the rows of a user's
    dataset."""

    data: str | SplitFiles
    """The path of the file of rows (.json, .jsonl or .parquet), or one path for each split. A relative path
    is relative to the folder of the `.toml` file."""
    checker: str | dict[str, Any] | None = None
    """The answer checker: a name, or a table with a name under the key `name` and with settings of the
    checker. The name is that of a checker shipped with air, such as `math_equal`, or `FILE.py:NAME` or
    `MODULE:NAME` for a function of the user. Required for a task; the command `air tasks rows:PATH` also
    works without it."""
    tools: tuple[str | dict[str, Any], ...] = ()
    """The tools of the agent. Each entry is a name, or a table with a name under the key `name` and with
    settings of the tool. A name is that of a tool shipped with air, such as `calculator`, or `FILE.py:NAME`
    or `MODULE:NAME` for a tool of the user."""
    turns: int | None = Field(default=None, ge=1)
    """The maximum number of turns of an episode. None: 8 with tools, else 1."""
    format: str = ""
    """The name of the action format. Empty: `tool_calls` if there are tools, else `think_answer`."""
    instructions: str = ""
    """The part of the first prompt that precedes the question. Empty: one sentence that asks for an
    answer."""
    options: str = ""
    """The name of the field with the options of a multiple-choice question, a list of 2 to 10 strings. The
    agent sees them after the question, with letters. Empty: the rows have no options."""
    format_penalty: float = Field(default=0.0, ge=0.0)
    """Subtracted from the reward for each turn with a reply that is not a valid action."""
    seconds: float = Field(default=600.0, gt=0.0)
    """The time limit of an episode, in seconds."""
    metrics: tuple[str, ...] = ()
    """The names of those metrics of the answer checker that are reported as facts (numbers about the
    episode). The metric NAME becomes the fact `answer_NAME`."""
    success_at: float = 1.0
    """The minimum reward for an answer at which the fact `success` (a number about the episode) is 1."""
    check_image: str = "air-base"
    """The name of the container image for the fresh box (isolated place) in which the checker runs the code
    in an answer. Checkers that run no code do not use it."""
    public: tuple[str, ...] = ()
    """The fields of a row that the tools may read, such as the start position of a game. Do not list the
    answer: all other fields are visible only to the checker."""
    where: Mapping[str, Condition] = Field(default_factory=dict)
    """The conditions that a row must satisfy to be used, by the name of a field. A condition is a value, a
    list of values, or a table with `least` and `most`."""
    splits: SplitRule = SplitRule()
    """The rule that divides the rows of a single file into the training and the validation split."""
    split: Chosen = "seed"
    """The rows from which an episode's seed selects one. `seed`: for training seeds, the rows of the training
    split; for evaluation seeds, those of the validation split. `train`, `validation`: for all seeds, the rows
    of this split. `all`: for all seeds, the rows of both splits."""

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
    """Returns two values for the task name `PATH#KEY=VALUE&…`: the settings, and the folder to which the
    paths in the settings are relative. This is the folder of the `.toml` file or, without such a file, the
    current folder. `task_id` is the task id, for error messages. Raises MissingError if the `.toml` file or
    the class of the action format is absent, and ConfigError if a setting is wrong."""
    settings, folder, where = _read(name, task_id)
    if settings.format:
        actions.get(settings.format, f"{where}: format")
    return settings, folder


def _read(name: str, task_id: str) -> tuple[RowsSettings, Path, str]:
    """Returns the two values of `of`, and the place of the settings for error messages: the `.toml` file or,
    without such a file, the task id."""
    written, _, options = name.partition("#")
    if not written:
        raise ConfigError("the path is missing", where=task_id, remedy="write rows:PATH")
    path = Path(written).expanduser().absolute()
    given = _options(options, task_id)
    if path.suffix == ".toml":
        table = read_toml(path)
        _merge(table, given)
        return validate(RowsSettings, table, where=str(path)), path.parent, str(path)
    if path.suffix not in READERS:
        remedy = f"its name must end in {', '.join([*READERS, '.toml'])}"
        raise ConfigError(f"{written!r} is no file of rows", where=task_id, remedy=remedy)
    if "data" in given:
        raise ConfigError("`data` is the path before the #", where=task_id, remedy="remove it")
    settings = validate(RowsSettings, {"data": str(path), **given}, where=task_id)
    return settings, Path.cwd(), task_id


def _options(text: str, task_id: str) -> dict[str, Any]:
    """Parses the settings after `#` in a task id: `KEY=VALUE&KEY=VALUE`. A dot addresses a key in a table:
    `where.level=1`. Returns the settings as nested dicts. Raises ConfigError if `text` is malformed or names
    a key twice."""
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
    """Overwrites the settings in `table` with those in `given`, in place. Nested tables (dicts) are merged
    key by key."""
    for key, value in given.items():
        if isinstance(value, dict) and isinstance(table.get(key), dict):
            _merge(table[key], value)
        else:
            table[key] = value
