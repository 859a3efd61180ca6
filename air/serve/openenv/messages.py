"""The messages of OpenEnv's WebSocket: classes that check the client's messages, and functions that build the
server's."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import ConfigDict, Field

from air.serve.episodes.client_episode import Turn, UnknownTool
from air.serve.episodes.offered_tasks import Schema
from air.serve.episodes.task_list import StrictBody


class Reset(StrictBody):
    """The data of a client's WebSocket message `reset`, which begins an episode. The client chooses the task
    by its id (`task`), or by `split` and `index` (counted from 0; see `Catalogue.entry`). Without a choice,
    the server's only task is played; without `seed`, the seed of the list entry or a random one is used."""

    seed: int | None = Field(None, ge=0, lt=1 << 63)
    episode_id: str | None = Field(None, max_length=255)
    task: str | None = None
    split: str | None = None
    index: int | None = None


class StepData(StrictBody):
    """Base class for the data of a client's WebSocket message `step`. OpenEnv's own clients may add an empty
    field `metadata`, so the field is allowed, but must be empty."""

    metadata: dict[str, Any] = Field({}, max_length=0)


class MessageAction(StepData):
    """The data of a client's WebSocket message `step`, if the client sends actions as text."""

    model_config = ConfigDict(title="MessageAction")
    message: str = Field(description="What the agent does: see the first observation.")


class ListTools(StepData):
    """The data of a client's WebSocket message `step` that requests the list of the task's tools. It is not
    an action, and has no reward."""

    type: Literal["list_tools"]


class CallTool(StepData):
    """The data of a client's WebSocket message `step`, if the client sends actions as tool calls."""

    type: Literal["call_tool"]
    tool_name: str
    arguments: dict[str, Any] = Field({})


def step_kind(data: dict[str, Any]) -> type[MessageAction | ListTools | CallTool]:
    """Returns the class of `data`, the data of a client's WebSocket message `step`. The caller then parses
    `data` with this class."""
    kinds: dict[Any, type[MessageAction | ListTools | CallTool]]
    kinds = {"list_tools": ListTools, "call_tool": CallTool}
    return kinds.get(str(data.get("type")), MessageAction)


def text(kind: str, data: dict[str, Any]) -> str:
    """Returns, as JSON text, a server message of the type `kind` with the data `data`. Raises ValueError for
    NaN and infinity, which are not JSON."""
    return json.dumps({"type": kind, "data": data}, allow_nan=False)


def error(code: str, message: str, **more: Any) -> str:
    """Returns, as JSON text, the message with which the server reports an error to a client. `code` is an
    error code of OpenEnv, such as `SESSION_ERROR`; `more` are further fields."""
    return text("error", {"message": message, "code": code, **more})


def first(prompt: str, metadata: dict[str, Any]) -> str:
    """Returns, as JSON text, the response to `reset`. Its observation is `prompt`, the first text for the
    agent."""
    return _observation({"text": prompt}, None, False, metadata)


def of_turn(turn: Turn, action: MessageAction | CallTool) -> str:
    """Returns, as JSON text, the response to an action: the observation, the reward, and whether the episode
    has ended."""
    shown: dict[str, Any] = {"text": turn.text}
    if isinstance(action, CallTool):
        shown = {"tool_name": action.tool_name, "result": None, "error": None}
        if turn.invalid_action is None:
            content = [{"type": "text", "text": turn.text}]
            shown["result"] = {"content": content, "data": turn.text, "is_error": False}
        else:
            unknown = isinstance(turn.invalid_action, UnknownTool)
            kind = "tool_not_found" if unknown else "invalid_args"
            shown["error"] = {"error_type": kind, "message": turn.text}
    return _observation(shown, turn.reward, turn.done, dict(turn.metadata))


def of_tools(tools: list[dict[str, Any]]) -> str:
    """Returns, as JSON text, the response to `list_tools`: the task's tools in OpenEnv's form."""
    return _observation({"tools": tools}, None, False, {})


def described(tools: tuple[Schema, ...]) -> list[dict[str, Any]]:
    """Returns `tools`, tool schemas in OpenAI's form, in OpenEnv's form."""
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
    "action": MessageAction.model_json_schema(),
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
"""The response to `GET /schema`: the JSON schemas of actions, observations and states."""
