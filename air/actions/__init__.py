"""Action formats: how a model's text becomes an action, and what it is told when it does not.

One table, one entry a format; a format is a value without state.
"""

from __future__ import annotations

from air.actions.base import Action, ActionFormat, Ending, FormatError, Standing, ToolCall
from air.actions.fenced import Fenced
from air.actions.mlgym import MLGym
from air.errors import ConfigError

FORMATS: dict[str, ActionFormat] = {"fenced": Fenced(), "mlgym": MLGym()}


def get(name: str) -> ActionFormat:
    """The format of that name.

    Raises:
        ConfigError: there is none.
    """
    try:
        return FORMATS[name]
    except KeyError:
        known = ", ".join(sorted(FORMATS))
        raise ConfigError(
            f"no action format named {name!r}",
            where="env.agent.harness.format",
            remedy=f"use one of: {known}",
        ) from None


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
