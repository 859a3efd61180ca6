"""Action formats: each parses a model's reply as an action (such as a shell script, a tool call or an
answer). If the reply is not a valid action, it raises FormatError with an explanation for the model.

A format has no state. It is one of the objects in `FORMATS`, or an instance of a user's class.
"""

from __future__ import annotations

from air.actions.agentfly import ActionTag, BashSwe, Code, ReactInput
from air.actions.base import (
    Action,
    ActionFormat,
    Ending,
    FormatError,
    Message,
    MessageCall,
    Standing,
    TextFormat,
    ToolCall,
)
from air.actions.code_block import CodeBlock
from air.actions.fenced import Fenced
from air.actions.mlgym import MLGym
from air.actions.react import React, ReactLine
from air.actions.search_r1 import SearchR1
from air.actions.text_format_adapter import TextFormatAdapter
from air.actions.think_answer import ThinkAnswer
from air.actions.tool_calls import Hermes, ToolCalls
from air.actions.world_format import AnswerFormat, WorldFormat
from air.config import plugin
from air.errors import ConfigError, boundary

FORMATS: dict[str, ActionFormat] = {
    one.name: one
    for one in (
        ActionTag(),
        BashSwe(),
        Code(),
        CodeBlock(),
        Fenced(),
        Hermes(),
        MLGym(),
        React(),
        ReactInput(),
        ReactLine(),
        SearchR1(),
        ThinkAnswer(),
        ToolCalls(),
    )
}

_TOOL_CALLS = "`tool_calls`, or `hermes` if the model server does not parse tool calls"
NAMES_ELSEWHERE: dict[str, str] = {
    "hf": _TOOL_CALLS,
    "qwen3coder_swe": _TOOL_CALLS,
    "searchr1": "`search_r1`",
    "python_code": "`code`",
    "ipython_code": "`code`",
    "bash_terminal": "`bash_swe`",
    "search_retrieval": "`search_r1`",
}
"""The names of action formats in other frameworks, with air's formats for each: first the agents of AgentFly,
then the tools of verl-tool, which Agent0 uses. Names that air has, too, are left out, even if they mean
another format there: AgentFly's `react` is air's `react_input`."""


def get(name: str, where: str = "env.agent.harness.format") -> ActionFormat:
    """Returns the action format with a name: a key of `FORMATS`, or `module:Class` for a user's class.
    `where` is the setting with the name, for error messages.

    Raises ConfigError if there is no such format, or if the class is not a format or raises an exception, and
    MissingError if the class does not exist.
    """
    if name in FORMATS:
        return FORMATS[name]
    if ":" not in name:
        known = f"one of: {', '.join(sorted(FORMATS))}, or a class as `module:Class`"
        raise ConfigError(
            f"no action format named {name!r}",
            where=where,
            remedy=f"use {NAMES_ELSEWHERE.get(name.lower(), known)}",
        )
    kind = plugin(name, where=where)
    made = _made(kind, f"{where}: {name!r}") if isinstance(kind, type) else None
    if made is None:
        raise ConfigError(
            f"{name!r} is not an action format",
            where=where,
            remedy="name a class that has all members of `air.actions.TextFormat`",
        )
    return made


_made_formats: dict[type, ActionFormat] = {}


def _made(kind: type, where: str) -> ActionFormat | None:
    """Returns the one object of the user's class `kind`, or None if it is not an action format. `where` is
    the setting and the class, for error messages."""
    if kind not in _made_formats:
        with boundary(ConfigError, f"{where} cannot be created without arguments", Exception):
            made = kind()
        if not isinstance(made, TextFormat):
            return None
        _made_formats[kind] = made if isinstance(made, ActionFormat) else TextFormatAdapter(made)
    return _made_formats[kind]


__all__ = [
    "FORMATS",
    "Action",
    "ActionFormat",
    "AnswerFormat",
    "CodeBlock",
    "Ending",
    "Fenced",
    "FormatError",
    "Hermes",
    "MLGym",
    "Message",
    "MessageCall",
    "React",
    "ReactLine",
    "SearchR1",
    "Standing",
    "TextFormat",
    "ThinkAnswer",
    "ToolCall",
    "ToolCalls",
    "WorldFormat",
    "get",
]
