"""Scripted players of SQL, for tests and baselines. Each maps an observation to an answer."""

from __future__ import annotations

import random
from collections.abc import Callable

from air.worlds.questions.sql.questions import Questions

Player = Callable[[str], str]
"""Returns the answer to an observation."""


def perfect(questions: Questions, seed: int) -> Player:
    """Returns the player that gives the gold query of the question of `seed`."""
    gold = questions(seed).gold
    return lambda observation: block(gold)


def choosing(questions: Questions, seed: int) -> Player:
    """Returns the player that draws from the gold query and the likely mistakes, with equal chances."""
    question = questions(seed)
    queries = [question.gold, *question.wrong]
    draw = random.Random(seed)
    return lambda observation: block(draw.choice(queries))


def block(sql: str) -> str:
    """Returns a query as an answer."""
    return f"```sql\n{sql}\n```"
