"""Checks the messages that a program harness (an agent program that runs in the box) adds to its
conversation with the model, and keeps only their known fields.

The agent's commands can forge these messages. A value that the model server cannot handle, such as an image
or half of a Unicode surrogate pair, would make the server fail. The episode would then end with an
infrastructure error and be excluded from training, which would be a way to escape a bad reward. Unknown
fields could contain a second version of the model's reply. So a message passes only if everything that the
model would read in it is text, and unknown fields are removed.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from air import json_lines

Json = dict[str, Any]
CHANGED_REPLY = "it does not contain the model's last reply as the model wrote it"
MOST_NAME = 256
"""The maximum number of characters in the field `name` of a tool result."""


class MessageError(Exception):
    """Raised if a message must not be sent to the model. The text of the error is the reason."""


def repeated_reply(message: Json, reply: Any) -> Json:
    """Returns `message` with only its known fields, if it repeats the model's `reply` (in `verifiers`' form).
    The message may leave out the reply's reasoning. Raises MessageError if it differs from the reply in any
    other way."""
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
    """Returns `messages`, which a request adds after the model's `reply`, with only their known fields.

    They must be one result for each tool call of the reply (or no results), then at most one user message.
    Raises MessageError if there are other messages or none, or if a message's content is not text.
    """
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
    """Returns the known fields of a message: the role, the content and, for a tool result, its id and name.
    Raises MessageError if a value is invalid."""
    kept: Json = {"role": message["role"], "content": _content(message.get("content"))}
    if message["role"] == "tool":
        kept["tool_call_id"] = message["tool_call_id"]
        if message.get("name") is not None:
            kept["name"] = _text(message["name"])
            if len(kept["name"]) > MOST_NAME:
                raise MessageError(f"a name has more than {MOST_NAME} characters")
    return kept


def _content(content: Any) -> str | list[Json]:
    """Returns a message's content without unknown fields, if it is a string or a list of text parts. Raises
    MessageError otherwise."""
    if not isinstance(content, list):
        return _text(content)
    parts = [part if isinstance(part, dict) else {} for part in content]
    if any(part.get("type") != "text" for part in parts):
        raise MessageError("a message contains something other than text")
    return [{"type": "text", "text": _text(part.get("text"))} for part in parts]


def _text(value: Any) -> str:
    """Returns `value` if it is a string that can be encoded in UTF-8. Raises MessageError otherwise."""
    if not isinstance(value, str):
        raise MessageError("a message contains something other than text")
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a pair of UTF-16 surrogates
        raise MessageError("a text contains half a character") from None
    return value


def _calls(message: Json) -> list[tuple[Any, Any, Any]] | None:
    """Returns the tool calls of a message as tuples (id, name, arguments), or None if they are malformed."""
    try:
        functions = [(one["id"], one["function"]) for one in message.get("tool_calls") or ()]
        return [(ident, one["name"], _parsed(one["arguments"])) for ident, one in functions]
    except (KeyError, TypeError):
        return None


def _parsed(arguments: Any) -> Any:
    """Parses a tool call's arguments, so that two spellings of the same JSON value compare as equal. If they
    are not JSON text, returns them unchanged."""
    try:
        return json_lines.decode(arguments)
    except (ValueError, TypeError):
        return arguments
