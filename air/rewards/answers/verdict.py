"""Defines `Verdict`, the result of an answer checker, and `pays`, which declares the lowest reward of a
checker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

CheckT = TypeVar("CheckT", bound=Callable[..., Any])


@dataclass(frozen=True)
class Verdict:
    """The result of an answer checker for one answer: the reward and further metrics."""

    reward: float
    """The reward of the episode."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Further numbers about the answer, by name, such as `accuracy`. They are recorded and do not change
    the reward."""


def pays(*, lowest: float) -> Callable[[CheckT], CheckT]:
    """Decorator for a checker's function: declares `lowest`, the lowest reward that the function can return.
    It must be a finite number, at most 0. An episode without an answer gets this reward. Without the
    decorator, the lowest reward is 0."""

    def declare(function: CheckT) -> CheckT:
        setattr(function, _LOWEST, lowest)
        return function

    return declare


def lowest_of(function: Callable[..., Any]) -> Any:
    """Returns the lowest reward that the decorator `pays` declares for `function`, the function of an answer
    checker; 0 if the function has no such decorator."""
    return getattr(function, _LOWEST, 0.0)


_LOWEST = "lowest"
