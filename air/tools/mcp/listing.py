"""Converts the tool list of a server of the Model Context Protocol (MCP) into names, descriptions and schemas
for the model's prompt.

The server is not trusted: names, descriptions and schemas have a maximum size. A tool that violates a limit
is left out, and the reason is reported.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcp_types import Tool

DESCRIPTION_CHARS = 1024
"""The maximum length of a tool's description in characters. A longer description is cut."""
SCHEMA_CHARS = 16_000
"""The maximum length of a tool's schema as JSON, in characters."""
ALL_CHARS = 64_000
"""The maximum length of the descriptions and schemas of all tools of a server together, in characters."""
MOST_TOOLS = 128
MAX_DEPTH = 16
_NAME_CHARS = 64
_OTHER = re.compile(r"[^A-Za-z0-9_-]")
_TYPES = ("string", "integer", "number", "boolean", "array", "object", "null")


@dataclass(frozen=True)
class Listed:
    """A tool of an MCP server that can be offered to the model."""

    name: str
    """The name under which the model sees and calls the tool."""
    remote: str
    """The tool's name on the server."""
    description: str
    parameters: Mapping[str, Any]
    """The JSON schema of the tool's arguments."""


@dataclass(frozen=True)
class Listing:
    """The tools of an MCP server that can be offered to the model, and the reasons why other tools cannot be
    offered."""

    tools: Sequence[Listed] = ()
    refused: Sequence[str] = field(default_factory=tuple)
    """One message for each tool that cannot be offered, or was asked for but does not exist: the tool's name
    and the reason."""


def listing(
    server: str, tools: Sequence[Tool], taken: Collection[str], wanted: Sequence[str] | None = None
) -> Listing:
    """Checks `tools`, the tools that the MCP server with the name `server` lists. Returns the tools that can
    be offered to the model, and one message for each tool that cannot, with the reason. Only tools whose
    names are in `wanted` are considered (None: all tools). `taken` are the names of other tools of the model:
    if it contains a tool's name, the model sees the tool under the server's and the tool's name, such as
    `github_search`."""
    listed: dict[str, Listed] = {}
    refused: list[str] = []
    room = ALL_CHARS
    for tool in tools:
        if wanted is not None and tool.name not in wanted:
            continue
        name, fault = _name(server, tool.name, {*taken, *listed}), ""
        parameters = _plain(tool.input_schema)
        if not name:
            fault = "its name is empty or taken"
        elif len(listed) == MOST_TOOLS:
            fault = f"the server has more than {MOST_TOOLS} tools"
        elif isinstance(parameters, str):
            fault = parameters
        else:
            one = Listed(name, tool.name, _cut(tool.description or ""), parameters)
            room -= len(one.description) + len(json.dumps(parameters))
            fault = "" if room >= 0 else f"the server's tools have over {ALL_CHARS} characters"
        if fault:
            refused.append(f"{_cut(tool.name, 80)!r} of the server {server!r}: {fault}")
        else:
            listed[name] = one
    names = [tool.name for tool in tools]
    refused += [
        f"{name!r} of the server {server!r}: there is no such tool"
        for name in wanted or ()
        if name not in names
    ]
    return Listing(tuple(listed.values()), tuple(refused))


def _name(server: str, name: str, taken: Collection[str]) -> str:
    """Returns the name under which the model sees the tool `name` of the server `server`: this name, such as
    `search` or, if that is in `taken`, the name `github_search` for the server `github`. Characters that are
    not allowed in names become `_`, and long names are cut. Returns an empty string if `name` is empty or
    both names are taken."""
    name = _OTHER.sub("_", name)[:_NAME_CHARS]
    for candidate in (name, f"{server}_{name}"[:_NAME_CHARS]):
        if name and candidate not in taken:
            return candidate
    return ""


def _cut(text: str, most: int = DESCRIPTION_CHARS) -> str:
    text = text.encode("utf-8", "replace").decode().strip()
    return text if len(text) <= most else f"{text[:most]}… [cut]"


def _plain(schema: Mapping[str, Any]) -> Mapping[str, Any] | str:
    """Checks the JSON schema of a tool's arguments. Returns the schema if it can be used, with `"type":
    "object"` added if it lacks a type. Otherwise returns a string that says what is wrong with it."""
    try:
        text = json.dumps(schema, allow_nan=False)
        text.encode()
        json.dumps(schema, ensure_ascii=False).encode()
    except (ValueError, TypeError, RecursionError):
        return "its schema is not plain JSON"
    if len(text) > SCHEMA_CHARS:
        return f"its schema has over {SCHEMA_CHARS} characters"
    if schema.get("type", "object") != "object":
        return 'its schema must have the type "object"'
    return _fault(schema, MAX_DEPTH) or {**schema, "type": "object"}


def _fault(schema: Any, depth: int) -> str:
    """Returns a string that says what is wrong with a JSON schema; an empty string if nothing is. Only the
    keywords that air uses are checked. `depth` is the number of levels of nesting that are still allowed."""
    if isinstance(schema, bool):
        return ""
    if not isinstance(schema, Mapping):
        return "its schema is malformed"
    if not depth:
        return "its schema is nested too deeply"
    kinds = schema.get("type", [])
    named = kinds if isinstance(kinds, list) else [kinds]
    if not all(kind in _TYPES for kind in named):
        return f"its schema has an unknown type {kinds!r:.40}"
    return _fault_in_keywords(schema) or _fault_within(schema, depth - 1)


def _fault_in_keywords(schema: Mapping[str, Any]) -> str:
    shapes: dict[str, type] = {"properties": dict, "required": list, "enum": list}
    shapes |= {"anyOf": list, "oneOf": list, "allOf": list, "description": str, "title": str}
    for key, shape in shapes.items():
        if key in schema and not isinstance(schema[key], shape):
            return f"its schema is malformed: `{key}`"
    if not all(isinstance(name, str) for name in schema.get("required", [])):
        return "its schema is malformed: `required`"
    return ""


def _fault_within(schema: Mapping[str, Any], depth: int) -> str:
    inner = [*schema.get("properties", {}).values()]
    for key in ("anyOf", "oneOf", "allOf"):
        inner += schema.get(key, [])
    inner += [schema[key] for key in ("items", "additionalProperties") if key in schema]
    return next((fault for one in inner if (fault := _fault(one, depth))), "")
