"""Assigns the rows of a dataset to the training or the validation split, selects the rows that a task uses,
and maps the seeds of episodes to rows.

By default a hash of the question determines a row's split, so that the split does not change when rows are
added, and equal questions are in the same split. Alternatively a field of the rows, or a separate file for
each split, determines it.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, model_validator

from air.config import BaseConfig
from air.errors import ConfigError
from air.worlds.rows.reading import Row
from air.worlds.sources import VALIDATION_SEED

Split = Literal["train", "validation"]
SPLITS: tuple[Split, Split] = ("train", "validation")
Chosen = Literal["seed", "train", "validation", "all"]
Scalar = str | int | float | bool


class SplitRule(BaseConfig):
    """The rule that assigns each row of a single file to the training or the validation split."""

    share: float = Field(default=0.2, ge=0.0, le=1.0)
    """The approximate share of rows that is held out for validation, by a hash of the question."""
    field: str | None = None
    """The name of the field that contains a row's split. If given, `share` is not used. None: `share` is
    used."""
    train: tuple[Scalar, ...] = ("train",)
    """The values of `field` that denote the training split."""
    validation: tuple[Scalar, ...] = ("validation", "valid", "val", "dev", "test")
    """The values of `field` that denote the validation split."""

    @model_validator(mode="after")
    def _checked(self) -> SplitRule:
        if both := set(self.train) & set(self.validation):
            raise ValueError(f"both train and validation have {sorted(map(repr, both))[0]}")
        return self

    def of(self, row: Row) -> Split:
        """Returns the split of a row. Raises ConfigError if the row's field is missing or has a value that
        denotes no split."""
        if self.field is None:
            return "validation" if int(row.digest[:15], 16) < self.share * 16**15 else "train"
        value = row.field(self.field)
        values: Mapping[Split, Sequence[Scalar]] = {
            "train": self.train,
            "validation": self.validation,
        }
        for split, known in values.items():
            if _among(value, known):
                return split
        raise ConfigError(
            f"`{self.field}` is {value!r:.60}, which names no split",
            where=row.where,
            remedy="add the value to `train` or `validation` of the table [splits]",
        )


class Range(BaseConfig):
    """A closed range of numbers, as a condition that the value of a row's field must satisfy."""

    least: float = float("-inf")
    """The smallest number in the range."""
    most: float = float("inf")
    """The largest number in the range."""


Condition = Scalar | tuple[Scalar, ...] | Range


def keeps(row: Row, where: Mapping[str, Condition]) -> bool:
    """Returns whether a row satisfies all conditions in `where`. Each condition says what value the field
    with this name must have: a given value, one of several values, or a number in a range. Raises ConfigError
    if the row lacks a field, or if a field that must be in a range is not a number."""
    return all(_fulfils(row, name, condition) for name, condition in where.items())


def _fulfils(row: Row, name: str, condition: Condition) -> bool:
    value = row.field(name)
    if isinstance(condition, Range):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(
                f"`{name}` is {value!r:.60}, no number",
                where=row.where,
                remedy=f"name values in `where.{name}`, or correct the row",
            )
        return condition.least <= value <= condition.most
    return _among(value, condition if isinstance(condition, tuple) else (condition,))


def _among(value: Any, values: Sequence[Scalar]) -> bool:
    """Returns whether `value`, the value of a row's field, equals one of `values`. True does not equal 1. The
    string "3" in `values` equals the number 3, because all values in a task id are strings."""
    return any(
        (one == value and isinstance(one, bool) == isinstance(value, bool))
        or (isinstance(one, str) and _written(value) == one)
        for one in values
    )


def _written(value: Any) -> str | None:
    """Returns a number or boolean as a user writes it in a task id, such as `3` or `true`; None for other
    values."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else None


@dataclass(frozen=True)
class Deck:
    """Maps the seeds of episodes to the rows of a task, like a deck of cards that is dealt in random order.
    The constructor raises ConfigError if a split from which seeds select has no rows."""

    where: str
    """The task id, as the location in error messages."""
    rows: Mapping[Split, Sequence[Row]]
    """All rows of the task, by split."""
    chosen: Chosen
    """The rows from which a seed selects one. `seed`: for training seeds, the rows of the training split; for
    other seeds, those of the validation split. `train`, `validation`: for all seeds, the rows of this split.
    `all`: for all seeds, the rows of both splits."""

    def __post_init__(self) -> None:
        for split, rows in self.asked.items():
            if not rows:
                raise ConfigError(
                    f"no row is left for {split}",
                    where=self.where,
                    remedy="add rows, loosen `where`, change [splits], or set `split`",
                )

    @functools.cached_property
    def asked(self) -> Mapping[str, Sequence[Row]]:
        """The rows that seeds can select, by split. If every seed selects from both splits, the only key is
        `all`."""
        if self.chosen == "seed":
            return {split: self.rows[split] for split in SPLITS}
        if self.chosen == "all":
            return {"all": [row for split in SPLITS for row in self.rows[split]]}
        return {self.chosen: self.rows[self.chosen]}

    def row(self, seed: int) -> Row:
        """Returns the row that a seed selects. Consecutive seeds select all rows, in a random order, before
        any row is repeated; then all rows again, in a new order."""
        evaluates = seed >= VALIDATION_SEED
        rows = self.asked[SPLITS[evaluates] if self.chosen == "seed" else self.chosen]
        return rows[place_of(seed, len(rows))]


def place_of(seed: int, count: int) -> int:
    """Returns the index of the row, from 0 to `count` − 1, that `seed` selects among `count` rows. Evaluation
    seeds are counted from the first one, `VALIDATION_SEED`, which counts as 0."""
    turn, place = divmod(seed - (VALIDATION_SEED if seed >= VALIDATION_SEED else 0), count)
    return _order(turn, count)[place]


@functools.lru_cache(maxsize=16)
def _order(turn: int, count: int) -> Sequence[int]:
    """Returns the row indices 0 to `count` − 1 in a shuffled order. Consecutive seeds select the rows in this
    order, until every row has been selected once; that is one pass through the rows. `turn` is the number of
    the pass, from 0; each pass has another order."""
    order = list(range(count))
    random.Random(f"{turn} {count}").shuffle(order)
    return order
