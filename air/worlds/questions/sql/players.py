"""Scripted players for SQL questions: functions that play an episode instead of a model, for tests and
baselines. A player maps an observation to an answer."""

from __future__ import annotations

import random
from collections.abc import Callable

from air.worlds.questions.sql.questions import Questions

Player = Callable[[str], str]
"""A function that returns the player's answer to an observation."""


def perfect(questions: Questions, seed: int) -> Player:
    """Returns a player that always answers with the gold (reference) query of the question that `seed`
    selects."""
    gold = questions(seed).gold
    return lambda observation: block(gold)


def choosing(questions: Questions, seed: int) -> Player:
    """Returns a player that draws each answer uniformly from the gold (reference) query and the wrong queries
    of the question that `seed` selects."""
    question = questions(seed)
    queries = [question.gold, *question.wrong]
    draw = random.Random(seed)
    return lambda observation: block(draw.choice(queries))


def block(sql: str) -> str:
    """Returns a query as the text of an answer, in a fenced block."""
    return f"```sql\n{sql}\n```"
