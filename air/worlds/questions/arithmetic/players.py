"""Scripted players for word problems: functions that play an episode instead of a model, for tests and
baselines. A player maps an observation to an answer."""

from __future__ import annotations

import random
from collections.abc import Callable

from air.worlds.questions.arithmetic.problems import Problems

Player = Callable[[str], str]
"""A function that returns the player's answer to an observation."""


def perfect(problems: Problems, seed: int) -> Player:
    """Returns a player that always gives the right answer to the problem that `seed` selects."""
    answer = problems(seed).answer
    return lambda observation: answer


def guessing(seed: int, greatest: int) -> Player:
    """Returns a player that answers each observation with a random integer from 1 to `greatest`."""
    draw = random.Random(seed)
    return lambda observation: str(draw.randint(1, greatest))
