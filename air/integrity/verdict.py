"""Defines `Verdict`: the result of one attack."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from air.tasks.spec import Provider

Result = Literal["held", "broken", "not applicable"]
EVERY_TASK = "(every task)"
"""Stands in place of a task's id in the verdict on an attack that depends on the kind of box alone."""


@dataclass(frozen=True)
class Verdict:
    """The result of one attack on one task in one kind of box."""

    attack: str
    family: str
    aim: str
    task: str
    provider: Provider
    result: Result
    reason: str = ""
    """How the defence failed, or why the attack does not apply; empty if the defence held."""
    reward: float | None = None
    bound: float | None = None
    """The largest reward that the attack may earn if the defence holds; None if the attack was not played as
    an episode of a task."""
    seconds: float = 0.0
