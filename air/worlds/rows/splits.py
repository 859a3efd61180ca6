"""Decides which split a row belongs to, which rows a task keeps, and which row a seed asks.

By default a digest of the question decides a row's split. So the split stays when rows are added, and equal
questions are in the same split. A field of the rows, or a file for each split, can decide it instead.
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
    """The rule that decides which split each row of a single file belongs to."""

    share: float = Field(default=0.2, ge=0.0, le=1.0)
    """The share of the rows that is held out for validation, by a digest of the question."""
    field: str | None = None
    """The field that names a row's split, instead of the share."""
    train: tuple[Scalar, ...] = ("train",)
    """The values of `field` that stand for training."""
    validation: tuple[Scalar, ...] = ("validation", "valid", "val", "dev", "test")
    """The values of `field` that stand for validation."""

    @model_validator(mode="after")
    def _checked(self) -> SplitRule:
        if both := set(self.train) & set(self.validation):
            raise ValueError(f"both train and validation have {sorted(map(repr, both))[0]}")
        return self

    def of(self, row: Row) -> Split:
        """Returns the split of a row. Raises ConfigError if its field has another value."""
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
    """A range of numbers."""

    least: float = float("-inf")
    """The smallest number."""
    most: float = float("inf")
    """The largest number."""


Condition = Scalar | tuple[Scalar, ...] | Range


def keeps(row: Row, where: Mapping[str, Condition]) -> bool:
    """Whether a row fulfils all conditions. `where` maps a field to a value, several values, or a range of
    numbers. Raises ConfigError if the row lacks a field."""
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
    """Whether a value is one of `values`. True is not 1; the text "3" of a task id is the number 3."""
    return any(
        (one == value and isinstance(one, bool) == isinstance(value, bool))
        or (isinstance(one, str) and _written(value) == one)
        for one in values
    )


def _written(value: Any) -> str | None:
    """Returns a number or truth value in the form that a task id has; None for other values."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else None


@dataclass(frozen=True)
class Deck:
    """The rows that the seeds of a task ask. Raises ConfigError if a seed could find no row."""

    where: str
    """The place that error messages name."""
    rows: Mapping[Split, Sequence[Row]]
    """All rows of the task, by split."""
    chosen: Chosen
    """`seed`: training seeds ask rows for training, and other seeds ask held-out rows. Otherwise every seed
    asks rows of the chosen split, or of both splits."""

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
        """The rows that seeds may ask, by split. If every seed asks rows of both, the only key is `all`."""
        if self.chosen == "seed":
            return {split: self.rows[split] for split in SPLITS}
        if self.chosen == "all":
            return {"all": [row for split in SPLITS for row in self.rows[split]]}
        return {self.chosen: self.rows[self.chosen]}

    def row(self, seed: int) -> Row:
        """Returns the row that a seed asks. Consecutive seeds ask each row once, in a random order, before
        any row is asked again, in a new order."""
        evaluates = seed >= VALIDATION_SEED
        rows = self.asked[SPLITS[evaluates] if self.chosen == "seed" else self.chosen]
        return rows[place_of(seed, len(rows))]


def place_of(seed: int, count: int) -> int:
    """Returns the place, among `count` rows, of the row that a seed asks."""
    turn, place = divmod(seed - (VALIDATION_SEED if seed >= VALIDATION_SEED else 0), count)
    return _order(turn, count)[place]


@functools.lru_cache(maxsize=16)
def _order(turn: int, count: int) -> Sequence[int]:
    """Returns the order in which `count` rows are asked in the pass `turn` through them."""
    order = list(range(count))
    random.Random(f"{turn} {count}").shuffle(order)
    return order
