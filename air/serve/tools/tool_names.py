"""Loads the tools that a command line names, and the action format (the syntax) in which a model calls them.
`air serve tools` and `air serve evaluate` use this module."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import Field

from air import actions
from air.actions import ActionFormat
from air.config import BaseConfig, read_toml, validate
from air.errors import ConfigError
from air.tools import Tool, ToolSet, load


class ToolsFile(BaseConfig):
    """The content of a TOML file that names tools, perhaps with their settings."""

    tools: tuple[str | dict[str, Any], ...] = Field(min_length=1)
    """The tools. Each is the name of a tool that ships with air, a function as `FILE.py:NAME` or
    `MODULE:NAME`, or a table. In a table, the key `name` has such a name or function, and the other keys are
    settings of the tool. Relative paths are relative to the folder of this TOML file."""


def load_named(names: Iterable[str]) -> list[Tool]:
    """Loads the tools that `names` specifies. Each entry is the name of a tool that ships with air, a
    function as `FILE.py:NAME` or `MODULE:NAME`, or the path of a TOML file with the key `tools` (see
    `ToolsFile`). Relative paths are relative to the current folder. Raises UsageError if a tool does not
    exist or cannot be used."""
    return [tool for name in names for tool in _load(name)]


def calling(name: str, tools: ToolSet) -> ActionFormat:
    """Returns the action format called `name` (a syntax for a model's actions), prepared so that the model
    can call `tools` in it. Raises ConfigError if there is no such format or it cannot express tool calls. The
    error's text mentions the flag `--format`."""
    try:
        return actions.get(name).with_tools(tools.schemas, answers=True)
    except ConfigError as error:
        text = str(error).removeprefix("env.agent.harness.format: ")
        raise ConfigError(text, where="--format") from error


def _load(name: str) -> list[Tool]:
    if not name.endswith(".toml"):
        return load(name)
    path = Path(name).expanduser()
    file = validate(ToolsFile, read_toml(path), where=str(path))
    return [tool for spec in file.tools for tool in load(spec, path.absolute().parent)]
