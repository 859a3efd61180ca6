"""Loads the tools that a run file (the settings of a training run) names.

A tool's name is a key of `TOOLS` or, for a user's own tool, `file.py:object` or `module:object`. The object
is a `Tool`, a list of tools, or a subclass of `ToolSettings`. A table instead of a name adds settings:
`{name = "calculator", max_length = 500}`.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from air.config import BaseConfig, plugin, validate
from air.errors import ConfigError, MissingError
from air.tools.base import Tool

TOOLS: dict[str, str] = {
    "answer": "air.tools.answers:answer",
    "bash": "air.tools.workbench:BashSettings",
    "calculator": "air.tools.calculator:calculator",
    "chess": "air.tools.chess:ChessSettings",
    "code_interpreter": "air.tools.python_session:CodeInterpreterSettings",
    "files": "air.tools.workbench:FilesSettings",
    "search": "air.tools.search:SearchSettings",
    "sql": "air.tools.sql.tool:SqlSettings",
    "submit": "air.tools.answers:submit",
    "mcp": "air.tools.mcp.loading:McpSettings",
    "web_page": "air.tools.web:WebPageSettings",
    "web_search": "air.tools.web:WebSearchSettings",
}
"""The import path of each shipped tool, by the tool's name. A module is imported only when its tool is
loaded."""


class ToolSettings(BaseConfig):
    """Base class for the settings of tools in a run file; its fields are the settings that all tools have. A
    subclass adds the settings of one tool, or of several tools that belong together, and its method `tools`
    makes them."""

    max_length: int | None = Field(None, ge=64)
    """The maximum length, in characters, of an observation: the text that the model sees after a call. None:
    the tool's default."""
    seconds: float | None = Field(None, gt=0, lt=86_400)
    """The time limit of a call in seconds. None: the tool's default."""

    def tools(self, folder: Path) -> Sequence[Tool]:
        """Makes and returns the tools that have these settings. Relative paths in the settings are relative
        to `folder`, the folder of the run file."""
        raise NotImplementedError

    def applied(self, tool: Tool) -> Tool:
        """Returns a copy of `tool` with the limits `max_length` and `seconds` of these settings. A limit that
        is not set stays that of the tool. The copy's `digest` contains all settings, so it changes if any
        setting changes."""
        limits = {"max_length": self.max_length, "seconds": self.seconds}
        changes: dict[str, Any] = {key: value for key, value in limits.items() if value is not None}
        digest = f"{self.model_dump_json()} {tool.digest}"
        return dataclasses.replace(tool, digest=digest, **changes)


def load(spec: str | Mapping[str, Any], folder: Path | None = None) -> list[Tool]:
    """Loads and returns the tools that `spec` names. `spec` is a tool's name, or a table with the key `name`
    and settings. Relative paths are relative to `folder`, the folder of the run file (None: the current
    folder). Raises MissingError if there is no such tool, and ConfigError if the name is missing, a setting
    is wrong, or the named object is not a tool."""
    table: dict[str, Any] = {"name": spec} if isinstance(spec, str) else dict(spec)
    name = table.pop("name", None)
    if not isinstance(name, str):
        remedy = 'write {name = "calculator"}'
        raise ConfigError(f"a tool has no name: {spec!r:.80}", where="tools", remedy=remedy)
    here = folder or Path.cwd()
    target, where = _object(name, here), f"tool {name!r}"
    if isinstance(target, type) and issubclass(target, ToolSettings):
        settings = validate(target, table, where=where)
        tools = settings.tools(here)
    else:
        settings = validate(ToolSettings, table, where=where)
        tools = [target] if isinstance(target, Tool) else target
    if not (isinstance(tools, list | tuple) and all(isinstance(one, Tool) for one in tools)):
        remedy = "decorate a function with `air.tools.tool`, or derive a class from ToolSettings"
        raise ConfigError(f"is no tool, but {target!r:.80}", where=where, remedy=remedy)
    return [settings.applied(one) for one in tools]


def _object(name: str, folder: Path) -> Any:
    if name in TOOLS:
        return plugin(TOOLS[name])
    if ":" in name:
        return plugin(name, folder)
    similar = difflib.get_close_matches(name, TOOLS, n=1)
    remedy = f"did you mean `{similar[0]}`?" if similar else f"known: {', '.join(sorted(TOOLS))}"
    remedy += " Your own are `file.py:object` or `module:object`"
    raise MissingError(f"there is no tool {name!r}", where="tools", remedy=remedy)
