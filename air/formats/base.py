"""What an action is, and the contract of an action format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

Ending = Literal["validate", "submit"]


@dataclass(frozen=True)
class Action:
    """One step in a research world: a shell script, then perhaps a validate or a submit.

    At least one of the two is there.
    """

    script: str
    """The shell script, without the ending; empty where only `validate` or `submit` was asked."""
    ending: Ending | None = None
    """What follows the script: grade the artefact, or grade it and end the episode."""

    @property
    def text(self) -> str:
        """The action as the model wrote it, ending included."""
        return "\n".join(part for part in (self.script, self.ending) if part)


class FormatError(Exception):
    """The text is no action. Its message is the feedback that the model is shown."""


class ActionFormat(Protocol):
    """Turns a model's reply into an action. Stateless."""

    name: str
    instructions: str
    """The part of the system prompt that teaches the format."""

    def parse(self, reply: str) -> Action:
        """The action in `reply`.

        Raises:
            FormatError: there is none, or more than one; the message is the feedback.
        """
        ...

    def render(self, thought: str, action: Action) -> str:
        """A well-formed reply: what a scripted agent says."""
        ...
