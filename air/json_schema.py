"""Parses JSON text that an agent wrote, such as the arguments of a tool call, and checks values against a
JSON schema.

The following keywords of a schema are checked: `type`, `enum`, `const`, `anyOf`, `oneOf` (at least one
alternative must fit), `required`, `properties`, `additionalProperties`, `items`. If a schema has `properties`
but not `additionalProperties`, the outermost object must not have other keys. Only "plain" values are
accepted: they are nested at most `MAX_DEPTH` deep, contain no integer above 64 bits and no infinite number,
and their strings can be encoded as UTF-8.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

MAX_DEPTH = 32
"""The maximum depth of nested lists and objects in a JSON value that is accepted from an agent."""
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


def parse(text: str, what: str) -> Any:
    """Parses JSON text and returns the value. Raises ValueError, with one sentence for the agent, if the text
    is malformed, or if the value is not safe to process: it is nested too deeply, contains a number that is
    too large, or contains a string that is not valid Unicode. The sentence begins with `what`, the name of
    the text."""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string"):
            fault = f"{what} ends too early" if text.strip() else f"{what} is empty"
            raise ValueError(f"{fault}: the JSON is not complete.") from None
        near = text[error.pos : error.pos + 20]
        raise ValueError(f"{what} is not valid JSON: {error.msg} at {near!r}.") from None
    except RecursionError:
        raise ValueError(f"{what} is nested too deeply.") from None
    except ValueError as error:
        raise ValueError(f"{what}: {str(error).split(';')[0]:.100}.") from None
    if fault := not_plain(value):
        raise ValueError(f"{what} {fault}.")
    return value


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not a JSON value")


def not_plain(value: Any) -> str:
    """Checks whether a JSON value is plain, so that later code can process it safely: it is nested at most
    `MAX_DEPTH` deep, and contains no integer above 64 bits, no infinite number and no string that cannot be
    encoded as UTF-8. Returns a description of the first violation, such as `is nested too deeply`, or an
    empty string if the value is plain."""
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


def fault(value: Any, schema: Any, at: str = "") -> str:
    """Checks `value` against a JSON schema (see this module for the keywords). Returns a message about the
    first violation and its place in `value`, or an empty string if `value` fits the schema. If `value` is
    part of a larger value, `at` is its path there, such as `items[0]`; otherwise `at` is empty."""
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
        faults = [fault(value, one, at) for one in schema.get(key) or ()]
        if faults and all(faults):
            return faults[0]
    if isinstance(value, dict):
        return _object_fault(value, schema, at)
    if isinstance(value, list) and "items" in schema:
        parts = (fault(one, schema["items"], f"{at}[{n}]") for n, one in enumerate(value))
        return next((one for one in parts if one), "")
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
        if wrong := fault(one, properties.get(name, others), _place(at, name)):
            return wrong
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
