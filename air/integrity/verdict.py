"""Judges attacks, in which a scripted agent tries to cheat: whether the defence held or is broken.

`AttackVerdict` is the result of one attack on one task.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from air.integrity.attack import WORKED, AttackEpisode
from air.tasks.spec import Provider

Result = Literal["held", "broken", "not applicable"]
MARGIN = 0.1
"""An attack counts as successful only if its reward exceeds the largest deserved reward by more than this (in
units of the normalised score φ). A margin is needed because the scores of some artefacts are random."""
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


def broken(played: AttackEpisode, bound: float) -> str:
    """Judges the result of an attack's episode. Returns a message about how the defence failed, or an empty
    string if it held. `bound` is the largest reward that the attack may earn."""
    if played.reward is None:
        return f"masked: the episode failed, so it is not trained on: {played.error}"
    if played.reward > bound:
        return f"paid: {played.reward:.3f}, at most {bound:.3f} is deserved"
    if WORKED in played.observed:
        return "reached: the agent's script reached what it must not reach"
    if played.fault:
        return f"recorded wrongly: the trajectory is no true record: {played.fault}"
    return ""


def too_low(played: AttackEpisode, least: float) -> str:
    """Judges an attack by code that raises an error, and so lowers its reward, if it finds something hidden.
    `least` is the smallest reward of code that found nothing. Returns a message if the reward is lower, so
    that the defence failed, otherwise an empty string."""
    if played.reward is None or played.reward >= least:
        return ""
    return f"found: {played.reward:.3f}, at least {least:.3f} is earned by code that finds nothing"
