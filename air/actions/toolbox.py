"""Reads calls of a world's tools from JSON, and checks them by the tools' schemas.

Of a schema these keywords are checked: `type`, `enum`, `const`, `anyOf`, `oneOf` (at least one fits),
`required`, `properties`, `additionalProperties`, `items`. The world must check the rest. An argument that is
not in `properties` is refused, unless the schema allows it expressly. The values are plain: they have a
bounded depth, no integers above 64 bits, no infinite numbers, and only text that has an encoding.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from air.actions.base import FormatError, ToolCall
from air.errors import ConfigError

MAX_DEPTH = 32
"""The largest depth of lists and objects in the arguments of a call."""
CALL_FORM = '{"name": "<tool>", "arguments": {<arguments by name>}}'
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
_LARGEST = 2**63


class Toolbox:
    """The tools of one world, as JSON schemas in the form of OpenAI's `tools`."""

    def __init__(self, schemas: Sequence[Mapping[str, Any]] = ()) -> None:
        functions = [schema.get("function", schema) for schema in schemas]
        # All fields in one order: what a chat template shows does not depend on who wrote the schema.
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
        """The text that explains the tools in a system prompt: one line of JSON for each."""
        lines = [json.dumps(s["function"], ensure_ascii=False) for s in self.schemas]
        return "\n".join(["Tools:", *lines])

    def parameters(self, name: str) -> Mapping[str, Any]:
        """Returns the JSON schema of a tool's arguments."""
        return self._parameters[name]

    def parse(self, text: str) -> ToolCall:
        """Returns the call that is written as one JSON object, in the form of `CALL_FORM`.
        Raises FormatError if it is malformed, or wrong by its tool's schema."""
        value = parse_json(text, "the call")
        if not isinstance(value, dict):
            raise FormatError(f"Format error: the call must be a JSON object: {CALL_FORM}")
        if not isinstance(name := value.get("name"), str):
            raise FormatError(f'Format error: the call needs a "name" (a string): {CALL_FORM}')
        if extra := sorted(value.keys() - {"name", "arguments"}):
            raise FormatError(
                f'Format error: {extra[0]!r:.80} is unknown in a call. Put it into "arguments".'
            )
        return self.checked(name, value.get("arguments", {}))

    def checked(self, name: str, arguments: Any) -> ToolCall:
        """Returns the call of the tool `name` with `arguments`, an object or its JSON text.
        Raises FormatError if there is no such tool, or the arguments are wrong by its schema."""
        if name not in self._parameters:
            known = ", ".join(self.names)
            raise FormatError(f"Format error: unknown tool {name!r:.80}. The tools are: {known}.")
        if isinstance(arguments, str):
            arguments = parse_json(arguments or "{}", f"the arguments of {name}")
        if not isinstance(arguments, dict):
            raise FormatError(f"Format error: the arguments of {name} must be a JSON object.")
        if fault := _fault(arguments, {"type": "object", **self._parameters[name]}, ""):
            raise FormatError(f"Format error: wrong arguments of {name}: {fault}.")
        return ToolCall(name, arguments=arguments)


def parse_json(text: str, what: str) -> Any:
    """Returns the value of the JSON text of `what`; raises FormatError if it is malformed or not plain."""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string"):
            fault = f"{what} ends too early" if text.strip() else f"{what} is empty"
            raise FormatError(f"Format error: {fault}: the JSON is not complete.") from None
        near = text[error.pos : error.pos + 20]
        raise FormatError(
            f"Format error: {what} is not valid JSON: {error.msg} at {near!r}."
        ) from None
    except RecursionError:
        raise FormatError(f"Format error: {what} is nested too deeply.") from None
    except ValueError as error:
        raise FormatError(f"Format error: {what}: {str(error).split(';')[0]:.100}.") from None
    if fault := _not_plain(value):
        raise FormatError(f"Format error: {what} {fault}.")
    return value


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not a JSON value")


def _not_plain(value: Any) -> str:
    """Returns why a JSON value could harm what handles it later; empty if it cannot."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        following: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                following += [*one.keys(), *one.values()]
            elif isinstance(one, list):
                following += one
            elif fault := _not_plain_scalar(one):
                return fault
        if not following:
            return ""
        level = following
    return "is nested too deeply"


def _not_plain_scalar(value: Any) -> str:
    if isinstance(value, str) and not _encodes(value):
        return "contains half of a surrogate pair, which is no character"
    if isinstance(value, float) and not math.isfinite(value):
        return "contains a number that is too large"
    if isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
        return "contains an integer of more than 64 bits"
    return ""


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _fault(value: Any, schema: Any, at: str) -> str:
    """Returns how `value` breaks a JSON schema, naming the place `at`; empty if it does not."""
    if not isinstance(schema, Mapping):
        return f"{at or 'an argument'} is not allowed" if schema is False else ""
    here = at or "the object"
    types = schema.get("type")
    types = [types] if isinstance(types, str) else types
    if types and not any(_is(value, name) for name in types):
        return f"{here} must be of type {' or '.join(map(str, types))}, not {_type_of(value)}"
    for key, allowed in (("enum", schema.get("enum")), ("const", [schema.get("const")])):
        if key in schema and not any(_same(value, one) for one in allowed or ()):
            choices = ", ".join(json.dumps(one, ensure_ascii=False) for one in allowed or ())
            return f"{here} must be one of: {choices:.300}"
    for key in ("anyOf", "oneOf"):
        faults = [_fault(value, one, at) for one in schema.get(key) or ()]
        if faults and all(faults):
            return faults[0]
    if isinstance(value, dict):
        return _object_fault(value, schema, at)
    if isinstance(value, list) and "items" in schema:
        parts = (_fault(one, schema["items"], f"{at}[{n}]") for n, one in enumerate(value))
        return next((fault for fault in parts if fault), "")
    return ""


def _object_fault(value: Mapping[str, Any], schema: Mapping[str, Any], at: str) -> str:
    properties = schema.get("properties") or {}
    for name in schema.get("required") or ():
        if name not in value:
            return f"{_place(at, name)} is missing"
    others = schema.get("additionalProperties", True)
    if not at and properties and "additionalProperties" not in schema:
        others = False  # an argument that the tool does not have is a mistake
    for name, one in value.items():
        if name not in properties and others is False:
            known = ", ".join(properties) or "none"
            return f"{_place(at, name)} is unknown (known: {known:.300})"
        if fault := _fault(one, properties.get(name, others), _place(at, name)):
            return fault
    return ""


def _place(at: str, name: str) -> str:
    return f"{at}.{name:.80}" if at else f"{name:.80}"


def _is(value: Any, name: Any) -> bool:
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    if isinstance(value, bool) and name != "boolean":
        return False
    return isinstance(value, _TYPES.get(str(name), (object,)))


def _type_of(value: Any) -> str:
    return next(name for name in ("boolean", *_TYPES) if _is(value, name))


def _same(value: Any, other: Any) -> bool:
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)
