"""Converts an agent's actions to the form that remote servers expect, and servers' observations to text."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from air import json_lines
from air.actions.base import Action
from air.errors import InfrastructureError
from air.worlds.base import Observation
from air.worlds.remote.attribution import Unanswered

_NAMES = ("name", "tool_name", "tool")
_ARGUMENTS = ("arguments", "input", "parameters")


MOST_CHARACTERS = 16_000
"""The maximum length of an observation in characters. The middle of a longer observation is left out."""
MOST_DEPTH = 100
"""The maximum nesting depth of objects and lists in an action."""
OVER = "The episode is over."


class Malformed(Exception):
    """Raised for an action that cannot be sent to the server. The agent sees the exception's message."""


@dataclass(frozen=True)
class RemoteTool:
    """A tool of a remote server. `schema` is the JSON schema of the tool's arguments, an object."""

    name: str
    description: str
    schema: Mapping[str, Any]

    @property
    def properties(self) -> Mapping[str, Any]:
        """The JSON schema of each argument, by name."""
        properties = self.schema.get("properties")
        return properties if isinstance(properties, Mapping) else {}

    @property
    def text(self) -> str:
        """A description of the tool in one line, for a prompt."""
        about = " ".join(self.description.split())
        return f"- {self.name}: {about} Arguments: {json.dumps(self.properties)}"


def read_tools(rows: Any, server: str) -> list[RemoteTool]:
    """Returns the tools in `rows`, a list of tools in a response. `server` is the server's URL, for error
    messages. A tool's description and the schema of its arguments may be absent or null. Raises
    InfrastructureError if `rows` is not a list of tools."""
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InfrastructureError(f"{server}: no list of tools")
    return [_tool(row, server) for row in rows]


def _tool(row: dict[str, Any], server: str) -> RemoteTool:
    name, about = row.get("name"), row.get("description")
    schema = row.get("input_schema") or row.get("inputSchema") or {}
    if not isinstance(name, str) or not name:
        raise InfrastructureError(f"{server}: a tool has the name {name!r:.80}, no text")
    where = f"{server}: the tool {name[:80]!r}"
    if not isinstance(about, str | None):
        raise InfrastructureError(f"{where}: its description is {about!r:.80}, no text")
    if not isinstance(schema, dict) or not isinstance(schema.get("properties"), dict | None):
        raise InfrastructureError(f"{where}: the schema of its arguments is {schema!r:.80}")
    return RemoteTool(name, about or "", schema)


def usage(tools: Sequence[RemoteTool]) -> str:
    """Returns the instructions for an agent on how to call `tools`."""
    form = '{"name": "…", "arguments": {…}}'
    lines = [tool.text for tool in tools]
    return "\n".join([f"Act by calling one of these tools, as {form}:", *lines])


def action_text(action: Action) -> str:
    """Returns an action as text, for a server that expects text: the answer or, without an answer, the tool
    call or the script."""
    return action.answer or action.text


def call(action: Action, tools: Sequence[RemoteTool]) -> tuple[str, dict[str, Any]]:
    """Returns the name and the arguments of the tool call in an action. `tools` are the server's tools.
    Raises Malformed if the action has no tool call, or if a call without argument names does not fit `tools`.

    If the action is text, it must be a JSON object `{"name": …, "arguments": {…}}`. But if there is only one
    tool, and its only or only required argument is a string (see `single_text`), the whole text is this
    argument.
    """
    if action.tool is not None:
        if action.tool.arguments is not None:
            return action.tool.name, dict(action.tool.arguments)
        return action.tool.name, _by_place(action.tool.name, action.tool.args, tools)
    text = action_text(action)
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
    """Parses a string as a JSON object and returns the object. Raises Malformed if the string is not a JSON
    object."""
    try:
        body = json_lines.decode(text)
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise Malformed("The action must be a JSON object.")
    return body


def sendable(body: dict[str, Any]) -> dict[str, Any]:
    """Returns `body`, the data of an action, unchanged. Raises Malformed if `body` contains NaN, infinity or
    a lone surrogate, or is nested more than `MOST_DEPTH` levels deep: some servers crash on such data, and
    the crash would look like a failure that the agent did not cause."""
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
    """Returns how deeply objects and lists are nested in a JSON value: 0 for a number, 1 for a flat list."""
    depth, level = 0, [value]
    while level := [each for each in level if isinstance(each, dict | list | tuple)]:
        depth += 1
        level = [x for each in level for x in (each.values() if isinstance(each, dict) else each)]
    return depth


def single_text(schema: Mapping[str, Any]) -> str:
    """Returns the name of the field of an action that can hold the agent's text: the only field in a JSON
    schema or, if there are several, the only required one, provided that it is a string. Otherwise returns an
    empty string.

    The field `metadata`, which every action of the protocol OpenEnv has, is ignored.
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


def observation_text(observation: Any) -> str:
    """Returns a server's observation, any JSON value, as text.

    A string is returned unchanged. An object whose only non-empty field is a string becomes this string; any
    other object becomes one line `NAME: VALUE` for each non-empty field. Any other value is written as JSON.
    The fields `done` and `reward` are left out. The fields in `metadata` are used only if all other fields
    are empty, because some servers put the observation into `metadata`.
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


def as_observation(text: str) -> Observation:
    """Returns a server's text as an observation. A text longer than `MOST_CHARACTERS` is shortened. Lone
    surrogates, which model servers reject, are replaced by `?`."""
    text = text.encode("utf-8", "replace").decode()
    if len(text) <= MOST_CHARACTERS:
        return Observation(text)
    half = MOST_CHARACTERS // 2
    cut = f"\n[{len(text) - 2 * half} characters left out]\n"
    return Observation(text[:half] + cut + text[-half:], truncated=True)


def _filled(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of an observation that the agent sees: all non-empty ones except `metadata`,
    `done` and `reward`."""
    hidden = ("metadata", "done", "reward")
    return {
        name: value
        for name, value in values.items()
        if name not in hidden and value not in (None, "", [], {})
    }


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def done_of(value: Any, server: str) -> bool:
    """Returns whether an episode is over, according to `value`, a JSON value in a response; null counts as
    false. `server` is the server's URL, for error messages. Raises InfrastructureError if `value` is neither
    null nor a boolean, such as the text "false"."""
    if value is None or isinstance(value, bool):
        return bool(value)
    raise InfrastructureError(
        f"{server}: the end of the episode is {value!r:.80}, not true or false"
    )


def reward_of(value: Any, server: str) -> float | None:
    """Returns `value`, a reward in a response, as a number; None for null, with which a server says that the
    action has no reward. `server` is the server's URL, for error messages. No value is replaced, because the
    reward would be wrong: raises Unanswered for a number that is not finite, which an action may cause, and
    InfrastructureError for anything else that is not a number."""
    if value is None:
        return None
    problem = f"{server}: the reward is {value!r:.80}, no finite number"
    if not isinstance(value, int | float):
        raise InfrastructureError(problem)
    with contextlib.suppress(OverflowError):  # an integer of hundreds of digits
        if math.isfinite(value):
            return float(value)
    raise Unanswered(problem, "reward")


@dataclass
class RewardsOfServer:
    """A record of the rewards that the server at `url` has sent so far, in all episodes of one task in this
    process."""

    url: str
    lowest: float | None = None
    """The lowest reward so far; None if no reward was a number."""


class Rewards:
    """Converts the rewards that a server sends in one episode to numbers, and counts those that are null.

    A reward of null counts as 0. Null is ordinary for an action without a reward, but OpenEnv's servers also
    send null for NaN. So an episode whose rewards are all null is an infrastructure failure as long as the
    server has sent a number in no episode. Once it has, such an episode counts, and earns the lowest reward
    that the server has sent so far, but at most 0. Otherwise an agent whose actions make the reward NaN, such
    as a training that diverges, could escape a bad reward.
    """

    def __init__(self, server: RewardsOfServer) -> None:
        self._server = server
        self.null = 0
        """The number of rewards that were null."""
        self._numbers = 0

    def counted(self, reward: float | None, *, done: bool) -> float:
        """Returns the reward for an action as a number. `reward` is the reward that the server sent (None for
        null), and `done` says whether the episode is over. Null counts as 0. But if the episode is over and
        all its rewards were null, the result is the lowest reward that the server has sent in any episode, or
        0 if that is lower; raises InfrastructureError if the server has sent none."""
        self.null += reward is None
        if reward is not None:
            self._numbers += 1
            lowest = self._server.lowest
            self._server.lowest = reward if lowest is None else min(lowest, reward)
            return reward
        if not done or self._numbers:
            return 0.0
        if self._server.lowest is None:
            raise InfrastructureError(
                f"{self._server.url}: the episode ended without any reward: all {self.null} were null, "
                "as which a server may also send NaN; make the server send a number at the end of an episode"
            )
        return min(0.0, self._server.lowest)
