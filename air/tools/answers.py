"""The two tools that end an episode: `answer` gives the final answer, `submit` declares the work finished."""

from __future__ import annotations

from air.tools.base import Reply, finish, tool


@tool(max_length=100_000)
async def answer(answer: str) -> Reply:
    """Gives the final answer and ends the episode.

    Args:
        answer: the final answer, without an explanation
    """
    return finish(answer)


@tool
async def submit() -> Reply:
    """Submits the work as it is and ends the episode."""
    return finish("Submitted.", prediction="")


__all__ = ["answer", "submit"]
