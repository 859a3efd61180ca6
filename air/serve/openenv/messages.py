"""The messages on OpenEnv's WebSocket: classes that check messages from the client, and functions that build
messages from the server."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import ConfigDict, Field

from air import json_lines
from air.serve.episodes.client_episode import Turn, UnknownTool
from air.serve.episodes.offered_tasks import Schema
from air.serve.episodes.task_routes import StrictBody


class InvalidMessage(Exception):
    """Error: a client's message is invalid. The server sends the error message `frame` (JSON text) to the
    client, and keeps the connection open."""

    def __init__(self, code: str, message: str, **more: Any) -> None:
        super().__init__(message)
        self.frame = error(code, message, **more)


class Reset(StrictBody):
    """The data of a client's WebSocket message `reset`, which begins an episode (one playthrough of a task).
    The client chooses the task either by its id (`task`), or by `split` and `index` (from 0), an entry in the
    server's list of episodes. If it does neither, the server must have only one task. Without `seed`, the
    seed of the list's entry is used; if there is no entry, a random seed."""

    seed: int | None = Field(None, ge=0, lt=1 << 63)
    episode_id: str | None = Field(None, max_length=255)
    task: str | None = None
    split: str | None = None
    index: int | None = None


class StepData(StrictBody):
    """Base class for the data of a client's WebSocket message `step`. The field `metadata` is allowed because
    OpenEnv's own clients add it, but it must be empty."""

    metadata: dict[str, Any] = Field({}, max_length=0)


class MessageAction(StepData):
    """The data of a client's WebSocket message `step` whose action is a text message."""

    model_config = ConfigDict(title="MessageAction")
    message: str = Field(description="What the agent does: see the first observation.")


class ListTools(StepData):
    """The data of a client's WebSocket message `step` that asks for the list of the task's tools. This is not
    an action, and has no reward."""

    type: Literal["list_tools"]


class CallTool(StepData):
    """The data of a client's WebSocket message `step` whose action is a tool call."""

    type: Literal["call_tool"]
    tool_name: str
    arguments: dict[str, Any] = Field({})


def parse(message: str) -> tuple[str, dict[str, Any]]:
    """Parses a client's message, and returns its type and its data. Raises InvalidMessage if the message is
    malformed."""
    try:
        body = json_lines.decode(message)
    except ValueError as error:
        raise InvalidMessage("INVALID_JSON", f"Invalid JSON: {error}") from None
    try:
        json.dumps(body, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        text = "NaN, infinity, halves of characters and deep nesting are not allowed"
        raise InvalidMessage(
            "VALIDATION_ERROR", "Invalid message", errors=[{"msg": text}]
        ) from None
    kind = body.get("type") if isinstance(body, dict) else None
    if kind not in ("reset", "step", "state", "close", "mcp"):
        raise InvalidMessage("UNKNOWN_TYPE", f"Unknown message type: {kind!r:.80}")
    known = {"type", "data"} if kind in ("reset", "step", "mcp") else {"type"}
    data = body.get("data", {} if kind == "reset" else None)
    if set(body) - known or ("data" in known and not isinstance(data, dict)):
        text = f"a message `{kind}` has " + " and ".join(f"`{name}`" for name in sorted(known))
        raise InvalidMessage("VALIDATION_ERROR", "Invalid message", errors=[{"msg": text}])
    return kind, data or {}


def step_kind(data: dict[str, Any]) -> type[MessageAction | ListTools | CallTool]:
    """Returns the class with which `data`, the data of a client's WebSocket message `step`, must be parsed:
    for the `type` `list_tools`, ListTools; for `call_tool`, CallTool; otherwise, MessageAction."""
    kinds: dict[Any, type[MessageAction | ListTools | CallTool]]
    kinds = {"list_tools": ListTools, "call_tool": CallTool}
    return kinds.get(str(data.get("type")), MessageAction)


def text(kind: str, data: dict[str, Any]) -> str:
    """Returns a message from the server as JSON text: `{"type": kind, "data": data}`. Raises ValueError if
    `data` contains NaN or infinity, which JSON does not have."""
    return json.dumps({"type": kind, "data": data}, allow_nan=False)


def error(code: str, message: str, **more: Any) -> str:
    """Returns the message that reports an error to a client, as JSON text. `code` is an error code of
    OpenEnv, such as `SESSION_ERROR`; `more` are additional fields."""
    return text("error", {"message": message, "code": code, **more})


def first(prompt: str, metadata: dict[str, Any]) -> str:
    """Returns the server's response to the client's message `reset`, which began an episode, as JSON text.
    The observation in it contains `prompt`, the first text for the agent. It has no reward, and says that the
    episode has not ended. `metadata` are further fields about the episode."""
    return _observation({"text": prompt}, None, False, metadata)


def of_turn(turn: Turn, action: MessageAction | CallTool) -> str:
    """Returns the response to an action, as JSON text: the observation, the reward, and whether the episode
    has ended. `turn` is the result of `action`."""
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
    """Returns the response to the client's request for the list of tools, as JSON text. `tools` are in
    OpenEnv's form."""
    return _observation({"tools": tools}, None, False, {})


def described(tools: tuple[Schema, ...]) -> list[dict[str, Any]]:
    """Converts descriptions of tools from OpenAI's form (name, description and parameters under the key
    `function`) to OpenEnv's form, `{"name", "description", "input_schema"}`."""
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
"""The response to `GET /schema`: the JSON schemas of the actions, the observations and the state of an
episode."""
