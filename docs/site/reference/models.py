"""Reads rows from pydantic models: name, type, default and docstring of every field."""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
import types
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from .markdown import Row, Section

ENV = "orchestrator.train.source[].env"
"""The path of the environment's table in a run file."""


@cache
def attribute_docs(kind: type) -> dict[str, str]:
    """The docstrings below the fields of a class and its bases; the most derived one wins."""
    docs: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base in (object, BaseModel):
            continue
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError):
            continue
        body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
        for node, below in pairwise(body):
            if (
                isinstance(node, ast.AnnAssign)
                and isinstance(node.target, ast.Name)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
                and isinstance(below.value.value, str)
            ):
                docs[node.target.id] = inspect.cleandoc(below.value.value)
    return docs


def described(kind: type[BaseModel], name: str) -> str:
    """The description of a field; empty if the field has none."""
    return attribute_docs(kind).get(name) or kind.model_fields[name].description or ""


def type_text(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    """A type for readers: `integer ≥ 1 or none`."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_text(args[0], args[1:])
    if origin in (Union, types.UnionType):
        rest = [arg for arg in args if arg is not type(None)]
        parts = list(dict.fromkeys(type_text(arg, metadata) for arg in rest))
        return " or ".join([*parts, *(["none"] if len(rest) < len(args) else [])])
    if origin is Literal:
        return " or ".join(json.dumps(arg) for arg in args)
    if origin in (list, tuple, set, frozenset):
        inner = [arg for arg in args if arg is not Ellipsis]
        if origin is tuple and len(inner) > 1:
            return f"list of {len(inner)}: {', '.join(type_text(arg) for arg in inner)}"
        return f"list of {plural(type_text(inner[0]))}" if inner else "list"
    name = getattr(origin or annotation, "__name__", str(annotation))
    plain = {
        "str": "string",
        "int": "integer",
        "float": "number",
        "bool": "true or false",
        "Path": "path",
        "dict": "table",
        "Mapping": "table",
        "Any": "any value",
    }
    if name in plain:
        return plain[name] + bounds(metadata)
    return "table" if inspect.isclass(annotation) and issubclass(annotation, BaseModel) else name


def plural(text: str) -> str:
    """The plural of a type's name, as in `list of strings`."""
    return f"{text}s" if text in ("string", "integer", "number", "path", "table") else text


def bounds(metadata: Sequence[Any]) -> str:
    """The bounds of a number."""
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    parts = [
        f"{sign} {value:g}"
        for item in metadata
        for name, sign in signs.items()
        if (value := getattr(item, name, None)) is not None
    ]
    return f" {' and '.join(parts)}" if parts else ""


def default_text(info: FieldInfo) -> str:
    """A default for readers."""
    if info.default_factory is not None:
        value = info.default_factory()  # type: ignore[call-arg]
    elif info.default is PydanticUndefined:
        return "**required**"
    else:
        value = info.default
    if isinstance(value, BaseModel):
        kind = getattr(value, "type", None)
        return f"`type = {json.dumps(kind)}`" if isinstance(kind, str) else ""
    if value is None:
        return "none"
    if isinstance(value, Path):
        value = str(value)
    if isinstance(value, tuple):
        value = list(value)
    return f"`{json.dumps(value)}`"


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """The pydantic models in a field's annotation."""
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for arg in get_args(annotation) for model in models_in(arg)]


def variant(kind: type[BaseModel]) -> str:
    """The `type` that selects a variant of a union."""
    info = kind.model_fields.get("type")
    return str(info.default) if info and isinstance(info.default, str) else kind.__name__


def sections(
    kind: type[BaseModel],
    path: str,
    engine: Callable[[str], str] = lambda path: "",
    *,
    choose: Callable[[str, type[BaseModel]], type[BaseModel] | None] = lambda path, model: model,
    title: str = "",
    describe: Callable[[str, str], str] = lambda path, docstring: docstring,
) -> Iterator[Section]:
    """Yields a section for a model, then a section for each model below it.

    Args:
        path: the model's place in the file; empty for the whole file.
        engine: which engines read a key, by the key's path.
        choose: the model to show for a key's path and declared model; None: the key has no section.
        describe: the description of a key, from its path and its docstring.
    """
    rows: list[Row] = []
    below: list[Section] = []
    for name, info in kind.model_fields.items():
        if info.exclude:
            continue
        key = f"{path}.{name}".lstrip(".")
        text = describe(key, described(kind, name))
        what = type_text(info.annotation, info.metadata)
        rows.append(Row(name, what, default_text(info), text, engine(key)))
        models = [
            (model, chosen)
            for model in models_in(info.annotation)
            if (chosen := choose(key, model))
        ]
        many = get_origin(info.annotation) in (list, tuple)
        for model, chosen in models:
            heading = f"`[[{short_path(key)}]]`" if many else f"`[{short_path(key)}]`"
            if len(models) > 1:
                heading += f" with `type = {json.dumps(variant(model))}`"
            place = f"{key}[]" if many else key
            below += sections(
                chosen, place, engine, choose=choose, title=heading, describe=describe
            )
    yield Section(title or f"`[{short_path(path)}]`", _introduction(kind, path), path, rows)
    yield from below


def _introduction(kind: type[BaseModel], path: str) -> str:
    """The model's docstring, unless it says no more than the heading."""
    text = inspect.cleandoc(kind.__doc__ or "")
    if not path or ("\n" not in text and text.endswith(("]`", "]`."))):
        return ""
    if not kind.__module__.startswith("air."):
        return ""  # verifiers' docstrings describe its own command line
    return text


def toml_path(path: str) -> str:
    """A path as TOML writes it."""
    return path.replace("[]", "")


def short_path(path: str) -> str:
    """A path as TOML writes it, with `….env` for the environment."""
    return toml_path(path).replace(toml_path(ENV), "….env")


def model_section(kind: type[BaseModel], title: str) -> Section:
    """A section of a model's own fields, without sections for the models below it."""
    rows = [
        Row(name, _type_with_models(info), default_text(info), described(kind, name))
        for name, info in kind.model_fields.items()
    ]
    return Section(title, inspect.cleandoc(kind.__doc__ or ""), rows=rows)


def _type_with_models(info: FieldInfo) -> str:
    """A field's type, with the names of models instead of `table`."""
    text = type_text(info.annotation, info.metadata)
    for model in models_in(info.annotation):
        text = text.replace("table", model.__name__, 1)
    return text
