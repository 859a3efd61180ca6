"""Converts an agent's actions to the form that remote servers take, and their observations to text."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from air.actions.base import Action
from air.errors import InfrastructureError
from air.worlds.base import Observation

_NAMES = ("name", "tool_name", "tool")
_ARGUMENTS = ("arguments", "input", "parameters")


MOST_CHARACTERS = 16_000
"""The longest observation. The middle of a longer one is left out."""
MOST_DEPTH = 100
"""The largest depth of an action: how many objects and lists may be inside each other."""
OVER = "The episode is over."


class Malformed(Exception):
    """Exception for an action that the server cannot take. The agent sees its message."""


@dataclass(frozen=True)
class RemoteTool:
    """A tool of a remote server."""

    name: str
    description: str
    schema: Mapping[str, Any]

    @property
    def properties(self) -> Mapping[str, Any]:
        """The schemas of the arguments by name."""
        properties = self.schema.get("properties")
        return properties if isinstance(properties, Mapping) else {}

    @property
    def text(self) -> str:
        """One line that tells a model about the tool."""
        about = " ".join(self.description.split())
        return f"- {self.name}: {about} Arguments: {json.dumps(self.properties)}"


def usage(tools: Sequence[RemoteTool]) -> str:
    """Returns the text that tells an agent how to call these tools."""
    form = '{"name": "…", "arguments": {…}}'
    lines = [tool.text for tool in tools]
    return "\n".join([f"Act by calling one of these tools, as {form}:", *lines])


def spoken(action: Action) -> str:
    """Returns an action as text, for a server that takes text."""
    return action.answer or action.text


def call(action: Action, tools: Sequence[RemoteTool]) -> tuple[str, dict[str, Any]]:
    """Returns the name of the tool that an action calls, and the arguments. Raises Malformed.

    An action as text is `{"name": …, "arguments": {…}}`. If there is only one tool, and it takes one text, an
    action may also be just this text.
    """
    if action.tool is not None:
        if action.tool.arguments is not None:
            return action.tool.name, dict(action.tool.arguments)
        return action.tool.name, _by_place(action.tool.name, action.tool.args, tools)
    text = spoken(action)
    if len(tools) == 1 and (only := single_text(tools[0].schema)):
        return tools[0].name, {only: text}
    body = json_object(text)
    name = next((body[key] for key in _NAMES if key in body), None)
    arguments: Any = next((body[key] for key in _ARGUMENTS if key in body), {})
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise Malformed('Call a tool: {"name": "…", "arguments": {…}}.')
    return name, arguments


def _by_place(name: str, args: Sequence[str], tools: Sequence[RemoteTool]) -> dict[str, Any]:
    tool = next((tool for tool in tools if tool.name == name), None)
    if tool is None:
        raise Malformed(f"There is no tool {name!r}. Tools: {', '.join(t.name for t in tools)}.")
    if len(args) > len(tool.properties):
        raise Malformed(f"{name} takes {len(tool.properties)} arguments, not {len(args)}.")
    return dict(zip(tool.properties, args, strict=False))


def json_object(text: str) -> dict[str, Any]:
    """Returns the JSON object that `text` represents. Raises Malformed if it does not represent one."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise Malformed("The action must be a JSON object.")
    return body


def sendable(body: dict[str, Any]) -> dict[str, Any]:
    """Returns the body of an agent's action. Raises Malformed for values that make some servers fail, as if
    the server were to blame: NaN, infinity, halves of characters, and very deep nesting."""
    try:
        json.dumps(body, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise Malformed(
            "The action has a number or a character that JSON does not allow."
        ) from None
    if _depth(body) > MOST_DEPTH:
        raise Malformed(f"The action is nested more than {MOST_DEPTH} levels deep.")
    return body


def _depth(value: Any) -> int:
    """Returns the depth of a value: how many objects and lists are inside each other."""
    depth, level = 0, [value]
    while level := [each for each in level if isinstance(each, dict | list | tuple)]:
        depth += 1
        level = [x for each in level for x in (each.values() if isinstance(each, dict) else each)]
    return depth


def single_text(schema: Mapping[str, Any]) -> str:
    """Returns the name of a schema's only required field if this field is a text; else an empty text.

    OpenEnv's field `metadata`, which every action has, does not count.
    """
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return ""
    names = [name for name in properties if name != "metadata"]
    required = schema.get("required")
    if isinstance(required, list) and len(names) > 1:
        names = [name for name in names if name in required]
    if len(names) != 1:
        return ""
    field = properties[names[0]]
    return names[0] if isinstance(field, Mapping) and field.get("type") == "string" else ""


def told(observation: Any) -> str:
    """Returns an observation as text: its only text, or one line for each field that is not empty.

    Some servers write into `metadata` what the agent must know, so `metadata` is shown if all else is empty.
    """
    if not isinstance(observation, Mapping):
        return _plain(observation)
    fields = _filled(observation)
    if not fields and isinstance(metadata := observation.get("metadata"), Mapping):
        fields = _filled(metadata)
    texts = [value for value in fields.values() if isinstance(value, str)]
    if len(fields) == 1 and texts:
        return texts[0]
    return "\n".join(f"{name}: {_plain(value)}" for name, value in fields.items())


def shown(text: str) -> Observation:
    """Returns a server's text as an observation. A long text is cut, and halves of characters, which model
    servers do not accept, are replaced."""
    text = text.encode("utf-8", "replace").decode()
    if len(text) <= MOST_CHARACTERS:
        return Observation(text)
    half = MOST_CHARACTERS // 2
    cut = f"\n[{len(text) - 2 * half} characters left out]\n"
    return Observation(text[:half] + cut + text[-half:], truncated=True)


def _filled(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields that an agent sees: those that are neither empty nor the server's own."""
    hidden = ("metadata", "done", "reward")
    return {
        name: value
        for name, value in values.items()
        if name not in hidden and value not in (None, "", [], {})
    }


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def done_of(value: Any, server: str) -> bool:
    """Returns whether an episode is over, as a server reports it; null means no. Raises InfrastructureError
    if the value is not true or false, but for example the text "false"."""
    if value is None or isinstance(value, bool):
        return bool(value)
    raise InfrastructureError(
        f"{server}: the end of the episode is {value!r:.80}, not true or false"
    )


def reward_of(value: Any, server: str) -> float:
    """Returns a reward as a server reports it; null means 0. Raises InfrastructureError if the value is not a
    finite number, since any number in its place would be a wrong reward."""
    if value is None:
        return 0.0
    with contextlib.suppress(OverflowError):  # an integer of hundreds of digits
        if isinstance(value, int | float) and math.isfinite(value):
            return float(value)
    raise InfrastructureError(f"{server}: the reward is {value!r:.80}, no finite number")
