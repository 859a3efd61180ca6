"""Derives the JSON schema of a function's parameters from its type hints and its docstring.

The docstring describes parameters in Google's style, in a section `Args:`. Supported types are `str`,
`int`, `float`, `bool`, `list[…]`, `dict[str, …]`, `Literal[…]`, `Any`, unions of these, and `None` in
unions.
"""

from __future__ import annotations

import inspect
import json
import re
import types
from collections.abc import Callable, Iterator
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from air.errors import ConfigError

_SCALARS: dict[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
}
_SECTION = re.compile(r"(Args|Arguments|Parameters|Returns|Raises|Yields|Examples?|Notes?):\s*")
_PARAMETERS = ("Args", "Arguments", "Parameters")
_ENTRY = re.compile(r"\*{0,2}(?P<name>\w+)(?:\s*\([^)]*\))?\s*:\s*(?P<text>.*)", re.DOTALL)


def describe(
    function: Callable[..., Any], *, skip_first: bool, about: str = ""
) -> tuple[str, dict[str, Any]]:
    """Returns two things about a function: its description for the model, and the JSON schema of its
    parameters. `skip_first` leaves out the first parameter, which is the tool's state and not an argument of
    the model. `about`, if not empty, is the description; otherwise it is taken from the docstring. Raises
    ConfigError if a parameter has no supported type, the docstring describes a parameter that does not exist,
    or the description is missing."""
    where = f"tool {getattr(function, '__name__', str(function))!r}"
    summary, entries = _docstring(function)
    if not (about or summary):
        raise ConfigError("has no description", where=where, remedy="write a docstring")
    parameters = _parameters(function, where, skip_first)
    hints = _hints(function, where)
    properties, required = {}, []
    for parameter in parameters:
        if parameter.name not in hints:
            remedy = f"write `{parameter.name}: str` or another type"
            raise ConfigError(f"`{parameter.name}` has no type", where=where, remedy=remedy)
        schema = _schema(hints[parameter.name], f"{where}: `{parameter.name}`")
        if text := entries.pop(parameter.name, ""):
            schema["description"] = text
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        elif parameter.default is not None:
            schema["default"] = _json_default(parameter.default, where, parameter.name)
        properties[parameter.name] = schema
    if entries:
        raise ConfigError(
            f"the docstring describes `{next(iter(entries))}`, which is no parameter of the model",
            where=where,
            remedy="correct the section `Args:`",
        )
    whole: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        whole["required"] = required
    if not properties:
        whole["additionalProperties"] = False
    return about or summary, whole


def _parameters(
    function: Callable[..., Any], where: str, skip_first: bool
) -> list[inspect.Parameter]:
    parameters = list(inspect.signature(function).parameters.values())
    if skip_first:
        if not parameters:
            raise ConfigError("has no parameter for its state", where=where)
        del parameters[0]
    for one in parameters:
        if one.kind not in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY):
            message = f"`{one}` cannot be given by name"
            raise ConfigError(message, where=where, remedy="name each parameter")
    return parameters


def _hints(function: Callable[..., Any], where: str) -> dict[str, Any]:
    try:
        return get_type_hints(function)
    except (NameError, TypeError, AttributeError) as error:
        remedy = "import the type at the top of the module"
        raise ConfigError(f"a type is unknown: {error}", where=where, remedy=remedy) from None


def _json_default(value: Any, where: str, name: str) -> Any:
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError):
        message = f"the default of `{name}` is no JSON value: {value!r:.80}"
        raise ConfigError(message, where=where, remedy="use None or a JSON value") from None


def _schema(hint: Any, where: str) -> dict[str, Any]:
    """Returns the JSON schema for values of the type `hint`, such as `{"type": "integer"}` for `int`. Raises
    ConfigError if the type is not supported. The error's message begins with `where`, which names the place
    of the type hint."""
    origin, parts = get_origin(hint), get_args(hint)
    if hint is Any:
        return {}
    if hint in _SCALARS:
        return {"type": _SCALARS[hint]}
    if origin is Literal:
        return _literal(parts)
    if origin in (Union, types.UnionType):
        return _union([_schema(part, where) for part in parts])
    if hint is list or origin is list:
        inner = _schema(parts[0], where) if parts else {}
        return {"type": "array", **({"items": inner} if inner else {})}
    if (hint is dict or origin is dict) and (not parts or parts[0] is str):
        inner = _schema(parts[1], where) if parts else {}
        return {"type": "object", **({"additionalProperties": inner} if inner else {})}
    remedy = "use str, int, float, bool, list, dict, Literal, or a union of them"
    raise ConfigError(f"the type {hint!r} has no JSON schema", where=where, remedy=remedy)


def _literal(values: tuple[Any, ...]) -> dict[str, Any]:
    kinds = list(dict.fromkeys(_SCALARS.get(type(value), "string") for value in values))
    return {"type": kinds[0] if len(kinds) == 1 else kinds, "enum": list(values)}


def _union(schemas: list[dict[str, Any]]) -> dict[str, Any]:
    if {} in schemas:
        return {}
    if all(set(schema) == {"type"} for schema in schemas):
        return {"type": [schema["type"] for schema in schemas]}
    return {"anyOf": schemas}


def _docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Returns two parts of a function's docstring: the text before its first section (such as `Args:`), as
    one string, and a dict with the description of each parameter in the section `Args:`, by the parameter's
    name."""
    summary: list[str] = []
    entries: dict[str, str] = {}
    section = ""
    block: list[str] = []
    for line in [*(inspect.getdoc(function) or "").splitlines(), "Notes:"]:
        match = _SECTION.fullmatch(line)
        if match is None:
            block.append(line)
            continue
        if not section:
            summary = block
        elif section in _PARAMETERS:
            entries |= dict(_entries(block))
        section, block = match[1], []
    return " ".join(" ".join(summary).split()), entries


def _entries(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Yields the parameter's name and description from each entry of a docstring's section `Args:`, whose
    lines are `lines`. A line that is indented further continues the entry above."""
    text = inspect.cleandoc("\n".join(["", *lines]))
    for part in re.split(r"\n(?=\S)", text):
        if match := _ENTRY.fullmatch(part.strip()):
            yield match["name"], " ".join(match["text"].split())
