"""Defines `Verdict`, the result of a checker for an answer, and `pays`, which declares a checker's lowest
reward."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

CheckT = TypeVar("CheckT", bound=Callable[..., Any])


@dataclass(frozen=True)
class Verdict:
    """The result of a checker for one answer."""

    reward: float
    """The reward of the episode."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Further numbers about the answer, by name, such as `accuracy`. They are recorded and do not change
    the reward."""


def pays(*, lowest: float) -> Callable[[CheckT], CheckT]:
    """Decorator that declares `lowest` as the lowest reward that a checker's function can return: a finite
    number, at most 0. An episode without an answer gets this reward. Without the decorator it is 0."""

    def declare(function: CheckT) -> CheckT:
        setattr(function, _LOWEST, lowest)
        return function

    return declare


def lowest_of(function: Callable[..., Any]) -> Any:
    """Returns the lowest reward that the decorator `pays` declares for a checker's function; 0 without the
    decorator."""
    return getattr(function, _LOWEST, 0.0)


_LOWEST = "lowest"
