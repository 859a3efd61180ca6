"""Adapts a format that reads only the text of a reply, such as a user's class, to the interface
`ActionFormat`."""

from __future__ import annotations

from collections.abc import Mapping

from air.actions.base import Action, ActionFormat, Standing, TextFormat


class TextFormatAdapter(ActionFormat):
    """Wraps a user's `TextFormat` (a format that reads only a reply's text) as an `ActionFormat`. The members
    that `TextFormat` has are taken from the user's object; all other members have the defaults of
    `ActionFormat`."""

    def __init__(self, text_format: TextFormat) -> None:
        self._inner = text_format
        self.name = text_format.name
        self.optional: Mapping[str, str] = text_format.optional
        self.uses_tools = text_format.uses_tools
        self.retries = text_format.retries

    @property
    def instructions(self) -> str:
        return self._inner.instructions

    def parse(self, reply: str) -> Action:
        return self._inner.parse(reply)

    def render(self, thought: str, action: Action) -> str:
        return self._inner.render(thought, action)

    def opening(self, standing: Standing) -> str:
        return self._inner.opening(standing)

    def footer(self, standing: Standing) -> str:
        return self._inner.footer(standing)
