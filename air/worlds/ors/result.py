"""Reads the result of a tool call from the response of an ORS server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from air.errors import InfrastructureError
from air.worlds.remote.attribution import Unanswered
from air.worlds.remote.conversion import done_of, reward_of


@dataclass(frozen=True)
class Result:
    """The result of one tool call."""

    text: str
    """The observation."""
    reward: float | None = None
    """The reward for the call; None if the server gives no reward for it."""
    done: bool = False
    valid: bool = False
    """Whether the server carried out the call; false if it rejected the call."""


def read(result: dict[str, Any], server: str) -> Result:
    """Returns the result of a tool call from `result`, the JSON of a response. `server` is the server's URL,
    for error messages. Raises Unanswered if the response has no output, if the server had ended the episode
    before the call, or if the reward is infinite or NaN, and InfrastructureError if the reward or the field
    `finished` is malformed."""
    if result.get("ok") is not True:
        if result.get("reason") == "episode_finished":
            raise Unanswered(f"{server}: the server ended the episode before", "finished")
        return Result(f"[error] {result.get('error')}")
    output = result.get("output")
    if not isinstance(output, dict):
        raise Unanswered(f"{server}: a result without output", "form")
    reward = reward_of(output.get("reward"), server)
    done = done_of(output.get("finished"), server)
    return Result(_shown(output.get("blocks")), reward, done, valid=True)


def prompt_text(blocks: Any) -> str:
    """Returns the content blocks of a task's prompt as one text. Raises InfrastructureError for a block that
    is not text, such as an image, because the agent could not solve such a task."""
    rows = blocks if isinstance(blocks, list) else []
    if not all(_is_text(row) for row in rows):
        raise InfrastructureError("the task's prompt has an image or another block that is no text")
    return _shown(blocks)


def _shown(blocks: Any) -> str:
    """Joins the content blocks of a tool's result into one text. A note replaces each block that is not text,
    such as an image. Such a block raises no error, because the agent can cause it by its choice of a tool."""
    rows = blocks if isinstance(blocks, list) else []
    return "\n".join(
        str(row.get("text")) if _is_text(row) else "[a block that is no text is not shown]"
        for row in rows
    )


def _is_text(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") == "text"
