"""Reads the result of an action from the response of an OpenEnv server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from air.worlds.remote.attribution import Unanswered
from air.worlds.remote.conversion import (
    RemoteTool,
    done_of,
    observation_text,
    read_tools,
    reward_of,
)


@dataclass(frozen=True)
class Result:
    """The result of one action."""

    text: str
    """The observation."""
    reward: float | None
    """The reward for the action; None if the server gives no reward for it."""
    done: bool
    valid: bool
    """Whether the action succeeded. It fails if the tool that it calls reports an error."""


def read(data: dict[str, Any], server: str) -> Result:
    """Returns the result in `data`, the data of a response. `server` is the server's URL, for error messages.
    Raises Unanswered if the server could not reach the tool that the action calls, or if the reward is
    infinite or NaN, and InfrastructureError if the reward or the field `done` is malformed."""
    reward = reward_of(data.get("reward"), server)
    text, valid = _shown(data.get("observation"), server)
    return Result(text, reward, done_of(data.get("done"), server), valid)


def tools_of(data: dict[str, Any], server: str) -> list[RemoteTool]:
    """Returns the tools in `data`, the data of the response to `list_tools`. `server` is the server's URL,
    for error messages. Raises InfrastructureError if `data` contains no list of tools, or if a tool is
    malformed."""
    observation = data.get("observation")
    return read_tools(observation.get("tools") if isinstance(observation, dict) else None, server)


def _shown(observation: Any, server: str) -> tuple[str, bool]:
    """Returns the observation in a response as text, and whether the action succeeded (False if the tool that
    the action called reports an error). `server` is the server's URL, for error messages."""
    if not isinstance(observation, dict) or "tool_name" not in observation:
        return observation_text(observation), True
    problem = observation.get("error")
    if isinstance(problem, dict):
        if problem.get("error_type") == "transport_error":
            raise Unanswered(f"{server}: {problem.get('message')}", "transport")
        return f"[error] {problem.get('message')}", False
    return _result(observation.get("result")), True


def _result(result: Any) -> str:
    """Returns a tool's result as text: the text blocks in its field `content` or, if there are none, its
    field `data` or, without this field, the whole result."""
    if not isinstance(result, dict):
        return observation_text(result)
    content = result.get("content")
    blocks = content if isinstance(content, list) else []
    texts = [block["text"] for block in blocks if isinstance(block, dict) and block.get("text")]
    return "\n".join(map(str, texts)) if texts else observation_text(result.get("data", result))
