"""Answer checkers: functions that compute an episode's reward from its final answer and the fields of its
dataset row (a question with the right answer).

`check` loads a checker by its name. Calling the `Checker` calls the checker's function with those fields that
have the names of the function's parameters, and returns a `Verdict` (reward and metrics). The decorator
`pays` declares the lowest reward of a function.
"""

from __future__ import annotations

from air.rewards.answers.checker import CHECKERS, GIVEN, Checker, check
from air.rewards.answers.verdict import Verdict, pays

__all__ = ["CHECKERS", "GIVEN", "Checker", "Verdict", "check", "pays"]
