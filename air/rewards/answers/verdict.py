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
    """Decorator that declares the lowest reward of a checker's function, at most 0, which an episode
    without an answer gets. Without the decorator, the lowest reward is 0."""

    def declare(function: CheckT) -> CheckT:
        setattr(function, _LOWEST, lowest)
        return function

    return declare


def lowest_of(function: Callable[..., Any]) -> Any:
    """Returns the lowest reward that the decorator `pays` declares for a checker's function; 0 without the
    decorator."""
    return getattr(function, _LOWEST, 0.0)


_LOWEST = "lowest"
