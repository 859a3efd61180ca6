"""Action formats: each turns a model's reply into an action, or says what is wrong with the reply.

An action format has no state. It is one of `FORMATS`, or an instance of a class from outside this package.
"""

from __future__ import annotations

import functools

from air.actions.base import Action, ActionFormat, Ending, FormatError, Standing, ToolCall
from air.actions.fenced import Fenced
from air.actions.mlgym import MLGym
from air.config import plugin
from air.errors import ConfigError, boundary

FORMATS: dict[str, ActionFormat] = {"fenced": Fenced(), "mlgym": MLGym()}


def get(name: str) -> ActionFormat:
    """Returns the action format of that name, or an instance of the class that `module:Class` names.

    Raises:
        ConfigError: there is no such action format, or the class is not one.
        MissingError: the class cannot be imported.
    """
    if name in FORMATS:
        return FORMATS[name]
    if ":" not in name:
        raise ConfigError(
            f"no action format named {name!r}",
            where="env.agent.harness.format",
            remedy=f"use one of: {', '.join(sorted(FORMATS))}, or a class as `module:Class`",
        )
    return _from_plugin(name)


@functools.cache
def _from_plugin(path: str) -> ActionFormat:
    kind = plugin(path)
    with boundary(ConfigError, f"env.agent.harness.format: {path!r} takes arguments", TypeError):
        made = kind() if isinstance(kind, type) else None
    if not isinstance(made, ActionFormat):
        raise ConfigError(
            f"{path!r} is not an action format",
            where="env.agent.harness.format",
            remedy="name a class that has all members of `air.actions.ActionFormat`",
        )
    return made


__all__ = [
    "FORMATS",
    "Action",
    "ActionFormat",
    "Ending",
    "Fenced",
    "FormatError",
    "MLGym",
    "Standing",
    "ToolCall",
    "get",
]
