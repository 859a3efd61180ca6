"""The base of every config: frozen, typed, unknown keys refused; and the one way to read TOML.

Every field of a config is followed by its own docstring.
"""

from __future__ import annotations

import json
import tomllib
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
        raise ConfigError(_first_line(error), where=where) from None


def _first_line(error: ValidationError) -> str:
    first, count = error.errors()[0], error.error_count()
    key = ".".join(str(part) for part in first["loc"]) or "(top level)"
    more = f" (and {count - 1} more)" if count > 1 else ""
    if first["type"] == "extra_forbidden":
        return f"unknown key `{key}`{more} — remove it or check its spelling"
    return f"`{key}`: {first['msg']}, got {first.get('input')!r:.80}{more}"
