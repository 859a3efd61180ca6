"""The messages of OpenEnv's WebSocket: what clients send, checked, and what the server answers."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import ConfigDict, Field

from air.serve.episodes.offers import Schema
from air.serve.episodes.play import Turn, UnknownTool
from air.serve.episodes.task_list import Closed


class Reset(Closed):
    """The data of `reset`: which task, by its id or by its place in a split's list, and the seed."""

    seed: int | None = Field(None, ge=0, lt=1 << 63)
    episode_id: str | None = Field(None, max_length=255)
    task: str | None = None
    split: str | None = None
    index: int | None = None


class Metadata(Closed):
    """The base class of all actions. It has metadata because OpenEnv's own clients may send it, empty."""

    metadata: dict[str, Any] = Field({}, max_length=0)


class Message(Metadata):
    """The action of a client that sends text."""

    model_config = ConfigDict(title="MessageAction")
    message: str = Field(description="What the agent does: see the first observation.")


class ListTools(Metadata):
    """Asks for the tools of the task. It is no action and has no reward."""

    type: Literal["list_tools"]


class CallTool(Metadata):
    """The action of a client that calls tools."""

    type: Literal["call_tool"]
    tool_name: str
    arguments: dict[str, Any] = Field({})


def step_kind(data: dict[str, Any]) -> type[Message | ListTools | CallTool]:
    """Returns the class that checks the data of a `step`."""
    kinds: dict[Any, type[Message | ListTools | CallTool]]
    kinds = {"list_tools": ListTools, "call_tool": CallTool}
    return kinds.get(str(data.get("type")), Message)


def text(kind: str, data: dict[str, Any]) -> str:
    """Returns an answer as JSON text. NaN is never sent, because it is no JSON and would break a client."""
    return json.dumps({"type": kind, "data": data}, allow_nan=False)


def error(code: str, message: str, **more: Any) -> str:
    """Returns an error as JSON text."""
    return text("error", {"message": message, "code": code, **more})


def first(prompt: str, metadata: dict[str, Any]) -> str:
    """Returns the answer to `reset`."""
    return _observation({"text": prompt}, None, False, metadata)


def of_turn(turn: Turn, action: Message | CallTool) -> str:
    """Returns the answer to an action."""
    shown: dict[str, Any] = {"text": turn.text}
    if isinstance(action, CallTool):
        shown = {"tool_name": action.tool_name, "result": None, "error": None}
        if turn.mistake is None:
            content = [{"type": "text", "text": turn.text}]
            shown["result"] = {"content": content, "data": turn.text, "is_error": False}
        else:
            unknown = isinstance(turn.mistake, UnknownTool)
            kind = "tool_not_found" if unknown else "invalid_args"
            shown["error"] = {"error_type": kind, "message": turn.text}
    return _observation(shown, turn.reward, turn.done, dict(turn.metadata))


def of_tools(tools: list[dict[str, Any]]) -> str:
    """Returns the answer to `list_tools`."""
    return _observation({"tools": tools}, None, False, {})


def described(tools: tuple[Schema, ...]) -> list[dict[str, Any]]:
    """Returns tools in OpenEnv's form."""
    functions = [each["function"] for each in tools]
    return [
        {
            "name": each["name"],
            "description": each.get("description", ""),
            "input_schema": each.get("parameters", {"type": "object", "properties": {}}),
        }
        for each in functions
    ]


def _observation(
    shown: dict[str, Any], reward: float | None, done: bool, metadata: dict[str, Any]
) -> str:
    data = {"observation": shown | {"metadata": metadata}, "reward": reward, "done": done}
    return text("observation", data | {"metadata": metadata})


SCHEMAS: dict[str, Any] = {
    "action": Message.model_json_schema(),
    "observation": {
        "title": "TextObservation",
        "type": "object",
        "properties": {
            "text": {"type": "string", "description": "What the agent sees."},
            "metadata": {"type": "object"},
        },
        "required": ["text"],
    },
    "state": {
        "title": "State",
        "type": "object",
        "properties": {
            "episode_id": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "step_count": {"type": "integer", "minimum": 0},
            "task": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
    },
}
"""The answer of `/schema`."""
