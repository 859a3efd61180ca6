"""Checks the messages that a program adds to its conversation, and keeps only the fields that air knows.

The program's messages can be forged by the agent's commands. A value that the model server cannot handle,
such as an image or half a character, would make the server fail, and such an episode would be left out of
training. Other fields can hold a second version of the model's reply. So a message passes only if everything
that the model would read in it is text, and unknown fields are left out.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

Json = dict[str, Any]
CHANGED_REPLY = "it does not contain the model's last reply as the model wrote it"
MOST_NAME = 256
"""The largest number of characters of a name."""


class MessageError(Exception):
    """Exception for a message that may not reach the model; its text is the reason."""


def repeated_reply(message: Json, reply: Any) -> Json:
    """Returns a message that must be the model's `reply` (as verifiers stores it), with its known fields.
    The reasoning may be left out. Raises MessageError if the message is not the reply."""
    content, calls = message.get("content"), reply.tool_calls or ()
    kept: Json = {"role": "assistant"}
    if "content" in message:
        kept["content"] = content
    for name in ("reasoning_content", "reasoning"):
        if message.get(name):
            kept[name] = getattr(reply, "reasoning_content", None)
            if message[name] != kept[name]:
                raise MessageError(CHANGED_REPLY)
    if message.get("reasoning_details"):
        kept["reasoning_details"] = getattr(reply, "provider_state", None)
    if (
        message.get("role") != "assistant"
        or not isinstance(content, str | None)
        or (content or "") != (reply.content or "")
        or _calls(message) != [(call.id, call.name, _parsed(call.arguments)) for call in calls]
    ):
        raise MessageError(CHANGED_REPLY)
    if calls:
        kept["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in calls
        ]
    return kept


def added(messages: list[Json], reply: Any) -> list[Json]:
    """Returns messages that follow the model's `reply`, with their known fields. They must be one result for
    each tool call of the reply (or no result at all), then at most one message of the user. Raises
    MessageError if they are not, or if a content is not text."""
    if not messages:
        raise MessageError("it contains nothing new")
    if any(one.get("role") not in ("tool", "user") for one in messages):
        raise MessageError("it adds messages of other roles than tool, user")
    results = messages[:-1] if messages[-1]["role"] == "user" else messages
    if any(one["role"] == "user" for one in results):
        raise MessageError(
            "it adds more than one message of the user, or one before a tool's result"
        )
    given = [one.get("tool_call_id") for one in results]
    expected = Counter(call.id for call in reply.tool_calls or ())
    if given and (not all(isinstance(x, str) for x in given) or Counter(given) != expected):
        raise MessageError("it does not add one result for each tool call")
    return [_known(one) for one in messages]


def _known(message: Json) -> Json:
    """Returns the known fields of a message: role, content and, for a tool's result, its id and name. Raises
    MessageError if a value is not allowed."""
    kept: Json = {"role": message["role"], "content": _content(message.get("content"))}
    if message["role"] == "tool":
        kept["tool_call_id"] = message["tool_call_id"]
        if message.get("name") is not None:
            kept["name"] = _text(message["name"])
            if len(kept["name"]) > MOST_NAME:
                raise MessageError(f"a name has more than {MOST_NAME} characters")
    return kept


def _content(content: Any) -> str | list[Json]:
    """Returns text, or a list of parts that are text, without their other fields. Raises MessageError."""
    if not isinstance(content, list):
        return _text(content)
    parts = [part if isinstance(part, dict) else {} for part in content]
    if any(part.get("type") != "text" for part in parts):
        raise MessageError("a message contains something other than text")
    return [{"type": "text", "text": _text(part.get("text"))} for part in parts]


def _text(value: Any) -> str:
    """Returns the text `value`. Raises MessageError if it is not a text, or cannot be encoded in UTF-8."""
    if not isinstance(value, str):
        raise MessageError("a message contains something other than text")
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a pair of UTF-16 surrogates
        raise MessageError("a text contains half a character") from None
    return value


def _calls(message: Json) -> list[tuple[Any, Any, Any]] | None:
    """Returns the tool calls of a message (id, name, arguments), or None if they are malformed."""
    try:
        functions = [(one["id"], one["function"]) for one in message.get("tool_calls") or ()]
        return [(ident, one["name"], _parsed(one["arguments"])) for ident, one in functions]
    except (KeyError, TypeError):
        return None


def _parsed(arguments: Any) -> Any:
    """Returns the JSON value of a tool call's arguments, so that two spellings of one value are equal.
    Arguments that are not JSON text are returned unchanged."""
    try:
        return json.loads(arguments)
    except (ValueError, TypeError, RecursionError):
        return arguments
