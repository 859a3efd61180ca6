"""The checker of `learning_tools.py`: a right answer, less a price for each call of a tool."""

from __future__ import annotations

from air.rewards.answers.integers import last_integer


def paid(prediction: str, answer: str, tool_calls: int, price: float = 0.3) -> dict[str, float]:
    """Pays 1 for the right number, less `price` if a tool was called."""
    right = float(last_integer(prediction) == answer)
    return {"reward": right - price * min(1, tool_calls), "right": right}
