"""The base of every config, the reader of TOML files, the explanation of validation errors, plugins by name.

Configs are frozen and typed and refuse unknown keys. Every field is followed by its own docstring.
"""

from __future__ import annotations

import importlib
import json
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from air.errors import ConfigError, MissingError


class BaseConfig(BaseModel):
    """A frozen pydantic model that refuses unknown keys and keeps field docstrings."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True
    )


ConfigT = TypeVar("ConfigT", bound=BaseModel)
TOP_LEVEL = "(top level)"
"""The name, in messages, of the whole file."""


def read_toml(path: Path) -> dict[str, Any]:
    """Parses one TOML file, or a JSON file by its ending (a run's `config.json`).

    Raises:
        MissingError: no such file.
        ConfigError: the file cannot be read, or is not TOML or JSON.
    """
    try:
        text = path.read_text(encoding="utf-8")
        data = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except FileNotFoundError:
        raise MissingError("no such file", where=str(path), remedy="check the path") from None
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", where=str(path)) from None
    except ValueError as error:  # TOMLDecodeError, JSONDecodeError, UnicodeDecodeError
        raise ConfigError(f"not valid TOML: {error}", where=str(path)) from None
    if not isinstance(data, dict):
        raise ConfigError("holds no table", where=str(path))
    return data


def validate(kind: type[ConfigT], data: dict[str, Any], *, where: str) -> ConfigT:
    """Builds `kind` from `data`, or raises ConfigError naming the file and the first bad key."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        bad = first_bad_key(error, data)
        message = f"unknown key `{bad.name}`{bad.more}" if bad.unknown else bad.message
        remedy = "remove it or check its spelling" if bad.unknown else ""
        raise ConfigError(message, where=where, remedy=remedy) from None


def plugin(path: str) -> Any:
    """Imports the object that a setting names as `module:name`.

    Raises:
        MissingError: the module cannot be imported, or has no such name.
        ConfigError: the path is not of that form.
    """
    module, colon, name = path.partition(":")
    if not (module and colon and name):
        raise ConfigError(f"{path!r} must be of the form `module:name`", where="plugin")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise MissingError(
            f"{path!r} cannot be imported: {error}",
            where="plugin",
            remedy=f"install the package that has {module!r}, or put its folder on PYTHONPATH",
        ) from error


@dataclass(frozen=True)
class BadKey:
    """The first error of a pydantic validation, for people."""

    path: tuple[str, ...]
    """The key, part by part; empty for an error of the whole file."""
    unknown: bool
    """Whether the schema has no such key."""
    message: str
    """The dotted key and what is wrong with it, in one line."""
    more: str
    """` (and N more)` if there are further errors, else empty."""

    @property
    def name(self) -> str:
        """The dotted key."""
        return ".".join(self.path) or TOP_LEVEL


def first_bad_key(error: ValidationError, data: Any) -> BadKey:
    """Explains the first error of a validation of `data`."""
    first, count = error.errors()[0], error.error_count()
    path = tuple(_keys(first["loc"], data))
    more = f" (and {count - 1} more)" if count > 1 else ""
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] not in ("missing", "value_error"):
        message += f", got {first.get('input')!r:.80}"
    text = f"`{'.'.join(path) or TOP_LEVEL}`: {message}{more}"
    return BadKey(path, first["type"] == "extra_forbidden", text, more)


def _keys(location: Sequence[int | str], data: Any) -> Iterator[str]:
    """The parts of a location that are keys of `data`; pydantic also names the members of unions there."""
    for number, part in enumerate(location):
        inside = isinstance(data, dict) and part in data
        inside = inside or (isinstance(data, list) and isinstance(part, int) and part < len(data))
        if inside:
            data = data[part]
        if inside or number == len(location) - 1:
            yield str(part)
