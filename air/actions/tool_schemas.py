"""Parses tool calls from JSON, and validates them against the schemas of the tools of a world (what the agent
acts in). The validation, in `air.json_schema`, covers only a part of JSON Schema; the world must check the
rest."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from air import json_schema
from air.actions.base import FormatError, ToolCall
from air.errors import ConfigError

CALL_FORM = '{"name": "<tool>", "arguments": {<arguments by name>}}'


class Toolbox:
    """The tools of one world (what an agent acts in), as JSON schemas in the format of the field `tools` in
    OpenAI's API. The constructor raises ConfigError if a tool has no name, or if two tools have the same
    name."""

    def __init__(self, schemas: Sequence[Mapping[str, Any]] = ()) -> None:
        functions = [schema.get("function", schema) for schema in schemas]
        # All fields in one order, so that a chat template shows the same text whoever wrote the schema.
        self.schemas: tuple[Mapping[str, Any], ...] = tuple(
            {
                "type": "function",
                "function": {
                    "name": one.get("name"),
                    "description": one.get("description") or "",
                    "parameters": one.get("parameters") or {"type": "object", "properties": {}},
                },
            }
            for one in functions
        )
        self._parameters: dict[str, Mapping[str, Any]] = {}
        for function in functions:
            name = function.get("name")
            if not isinstance(name, str) or not name or name in self._parameters:
                raise ConfigError(
                    f"a tool of the world has no name of its own: {name!r:.80}",
                    remedy='give each a "name", in the form of OpenAI\'s `tools`',
                )
            self._parameters[name] = function.get("parameters") or {}

    def __bool__(self) -> bool:
        return bool(self.schemas)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tools, in the order of their schemas."""
        return tuple(self._parameters)

    @property
    def described(self) -> str:
        """The text that explains the tools in a system prompt: one line of JSON for each tool."""
        lines = [json.dumps(s["function"], ensure_ascii=False) for s in self.schemas]
        return "\n".join(["Tools:", *lines])

    def parameters(self, name: str) -> Mapping[str, Any]:
        """Returns the JSON schema of the arguments of the tool `name`; an empty mapping if the tool's schema
        has none. Raises KeyError if there is no such tool."""
        return self._parameters[name]

    def parse(self, text: str) -> ToolCall:
        """Parses a tool call from the text of one JSON object, `{"name": …, "arguments": {…}}`. Raises
        FormatError if the text is malformed or does not match the tool's schema."""
        value = _parsed(text, "the call")
        if not isinstance(value, dict):
            raise FormatError(f"Format error: the call must be a JSON object: {CALL_FORM}")
        if not isinstance(name := value.get("name"), str):
            raise FormatError(f'Format error: the call needs a "name" (a string): {CALL_FORM}')
        if extra := sorted(value.keys() - {"name", "arguments"}):
            raise FormatError(
                f'Format error: {extra[0]!r:.80} is unknown in a call. Put it into "arguments".'
            )
        return self.checked(name, value.get("arguments", {}))

    def checked(self, name: str, arguments: Any, *, by_server: bool = False) -> ToolCall:
        """Returns a call of the tool `name` with `arguments`: a dict from argument names to values, or the
        text of a JSON object (empty: no arguments). `by_server` says whether a model server parsed the call;
        then a value that must be a string, but is not, is converted to text. Raises FormatError if there is
        no such tool or the arguments do not match the tool's schema."""
        if name not in self._parameters:
            known = ", ".join(self.names)
            raise FormatError(f"Format error: unknown tool {name!r:.80}. The tools are: {known}.")
        if isinstance(arguments, str):
            arguments = _parsed(arguments or "{}", f"the arguments of {name}")
        if not isinstance(arguments, dict):
            raise FormatError(f"Format error: the arguments of {name} must be a JSON object.")
        if by_server:
            arguments = self._with_texts(name, arguments)
        if fault := json_schema.fault(arguments, {"type": "object", **self._parameters[name]}):
            raise FormatError(f"Format error: wrong arguments of {name}: {fault}.")
        return ToolCall(name, arguments=arguments)

    def _with_texts(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a copy of `arguments` in which each value that must be a string, but is not, is converted
        to its JSON text. Needed because some chat templates write calls as XML, without quotes around
        strings, and some servers decode them as JSON without the schema: the string 7 becomes a number. The
        converted string may differ from the model's in white space or in the form of a number."""
        properties = self._parameters[name].get("properties")
        schemas = properties if isinstance(properties, Mapping) else {}

        def must_be_text(key: str) -> bool:
            schema = schemas.get(key)
            return isinstance(schema, Mapping) and schema.get("type") == "string"

        return {
            key: json.dumps(value, ensure_ascii=False)
            if must_be_text(key) and not isinstance(value, str)
            else value
            for key, value in arguments.items()
        }


def _parsed(text: str, what: str) -> Any:
    try:
        return json_schema.parse(text, what)
    except ValueError as error:
        raise FormatError(f"Format error: {error}") from None
