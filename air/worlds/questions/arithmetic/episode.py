"""An episode of arithmetic: one word problem, which the agent may answer once or several times.

The last integer in an answer's text is graded (`air.rewards.answers.integers`). The right integer earns 10
and ends the episode. Any other answer earns -0.1.
"""

from __future__ import annotations

from air.rewards.answers.integers import last_integer
from air.worlds.base import Observation, Step
from air.worlds.questions.arithmetic.problems import Problem, Problems
from air.worlds.questions.episodes import Tally

RIGHT, WRONG = 10.0, -0.1

INSTRUCTIONS = (
    "Solve the word problem. The answer is one integer; the last integer of what you answer counts."
)


class ArithmeticEpisode:
    """An episode with one word problem. `problems` is a function from a seed to a problem, and `turns` is the
    maximum number of answers."""

    def __init__(self, problems: Problems, turns: int) -> None:
        self._problems = problems
        self._turns = turns
        self._problem: Problem | None = None
        self._tried: set[str] = set()
        self._tally = Tally()

    def start(self, seed: int) -> str:
        self._problem = self._problems(seed)
        return self._problem.question

    def act(self, answer: str) -> Step:
        assert self._problem is not None
        number = last_integer(answer)
        new = number is not None and number not in self._tried
        self._tally.count(valid=number is not None, effective=new)
        if number == self._problem.answer:
            self._tally.success = True
            return Step(Observation("Correct!"), done=True, reward=RIGHT)
        if number is not None:
            self._tried.add(number)
        problem = "" if number is not None else " Your answer has no integer at its end."
        if self._tally.actions >= self._turns:
            return Step(Observation(f"Incorrect.{problem}"), done=True, reward=WRONG)
        again = f"Incorrect.{problem} Please think again.\n{self._problem.question}"
        return Step(Observation(again), reward=WRONG)

    def facts(self) -> dict[str, float]:
        return self._tally.facts()
