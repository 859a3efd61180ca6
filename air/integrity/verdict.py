"""Defines `AttackVerdict`: the result of one attack, in which a scripted agent tries to cheat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from air.tasks.spec import Provider

Result = Literal["held", "broken", "not applicable"]
EVERY_TASK = "(every task)"
"""The text in place of the task's id, in the verdict on an attack whose result depends only on the kind of
box (container or process)."""


@dataclass(frozen=True)
class AttackVerdict:
    """The result of one attack (a scripted agent that tries to cheat) on one task in one kind of box."""

    attack: str
    family: str
    aim: str
    task: str
    provider: Provider
    result: Result
    reason: str = ""
    """Message about how the defence failed, or the reason why the attack was not applicable; empty if the
    defence held."""
    reward: float | None = None
    bound: float | None = None
    """The largest reward that the attack may earn if the defence holds; None if the attack was not run as an
    episode of a task."""
    seconds: float = 0.0
