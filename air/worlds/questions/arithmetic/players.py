"""Scripted players of arithmetic, for tests and baselines. Each maps an observation to an answer."""

from __future__ import annotations

import random
from collections.abc import Callable

from air.worlds.questions.arithmetic.problems import Problems

Player = Callable[[str], str]
"""Returns the answer to an observation."""


def perfect(problems: Problems, seed: int) -> Player:
    """Returns the player that gives the right answer to the problem of `seed`."""
    answer = problems(seed).answer
    return lambda observation: answer


def guessing(seed: int, greatest: int) -> Player:
    """Returns the player that answers with a random integer from 1 to `greatest`."""
    draw = random.Random(seed)
    return lambda observation: str(draw.randint(1, greatest))
