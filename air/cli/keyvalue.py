"""`KEY=VALUE`, as flags take settings."""

from __future__ import annotations

import tomllib
from typing import Any

from air.errors import ConfigError


def key_value(text: str, flag: str) -> tuple[str, Any]:
    """Key and value; the value as TOML has it, or a bare word.

    Raises:
        ConfigError: there is no `=`; names the flag.
    """
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"{text!r} is not KEY=VALUE", where=flag)
    try:
        return name, tomllib.loads(f"x = {value}")["x"]
    except tomllib.TOMLDecodeError:
        return name, value
