"""Answer checkers: functions that compute an episode's reward from its final answer and the row's fields.

`check` loads one, `Checker` calls it with the fields that its parameters name, `Verdict` is what it returns.
`pays` declares the lowest reward of a function.
"""

from __future__ import annotations

from air.rewards.answers.checker import CHECKERS, GIVEN, Checker, check
from air.rewards.answers.verdict import Verdict, pays

__all__ = ["CHECKERS", "GIVEN", "Checker", "Verdict", "check", "pays"]
