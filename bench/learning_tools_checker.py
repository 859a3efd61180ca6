"""Defines the answer checker of `learning_tools.py`: the reward of a right answer, minus a price if the agent
called a tool."""

from __future__ import annotations

from air.rewards.answers.integers import last_integer


def paid(prediction: str, answer: str, tool_calls: int, price: float = 0.3) -> dict[str, float]:
    """Returns the reward of an answer: 1 for the right number, else 0; minus `price` if any tool was
    called."""
    right = float(last_integer(prediction) == answer)
    return {"reward": right - price * min(1, tool_calls), "right": right}
