"""Defines the answer checker of `tools.py`: the reward of a right answer, minus a price if the agent
called a tool."""

from __future__ import annotations

from air.rewards.answers import pays
from air.rewards.answers.integers import last_integer


@pays(lowest=-0.3)
def paid(prediction: str, answer: str, tool_calls: int, price: float = 0.3) -> dict[str, float]:
    """Returns the metrics of an answer. `right` is 1 for the right number, else 0. `reward` is `right`, minus
    `price` if the agent called any tool."""
    right = float(last_integer(prediction) == answer)
    return {"reward": right - price * min(1, tool_calls), "right": right}
