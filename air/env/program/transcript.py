"""Writes the turns of an agent that is a program in the box to the trajectory. Reads the turns from
verifiers' trace."""

from __future__ import annotations

from typing import Any

import verifiers.v1 as vf
from verifiers.v1.types import content_text

from air import json_lines
from air.env.research_episode import ResearchEpisode
from air.worlds.base import Validation


class Transcript:
    """Writes the trajectory of an episode in which a program in the box plays the agent.

    The trajectory's line of a turn contains the text that the model gets after that turn. This text is known
    only when the next turn begins. So a turn, followed by its gradings, is written when the next turn begins
    or the episode ends.
    """

    def __init__(self, episode: ResearchEpisode, trace: vf.Trace[Any, Any, Any]) -> None:
        self._episode, self._trace = episode, trace
        self._validations: list[tuple[int, Validation]] = []

    def validated(self, validation: Validation) -> None:
        """Stores a grading that belongs to the current turn, and writes all earlier turns to the
        trajectory."""
        self._validations.append((self._trace.num_turns, validation))
        self.write()

    def write(self, *, all_of_them: bool = False) -> None:
        """Writes all finished turns that are not in the trajectory yet. With `all_of_them`, which is for a
        program that has ended, also writes the last turn."""
        sampled = [n for n, node in enumerate(self._trace.nodes) if node.sampled]
        over = len(sampled) if all_of_them else len(sampled) - 1
        counters = self._episode.counters
        while counters.turns < over:
            number, following = sampled[counters.turns], sampled[counters.turns + 1 :]
            counters.turns += 1
            message = self._trace.nodes[number].message
            shown = self._shown(following[0]) if following else ""
            self._episode.write_step(
                content_text(message.content),
                action(message),
                None,
                shown,
                reasoning=message.reasoning_content,
            )
            self._write_validations(counters.turns)
        if all_of_them:
            self._write_validations(counters.turns)

    def _write_validations(self, turn: int) -> None:
        while self._validations and self._validations[0][0] <= turn:
            self._episode.record_validation(self._validations.pop(0)[1])

    def _shown(self, reply: int) -> str:
        """Returns the text that the model got between its previous reply and the reply in node number
        `reply`: the contents of the messages between the two in the trace."""
        nodes, texts = self._trace.nodes, list[str]()
        number = nodes[reply].parent
        while number is not None and nodes[number].message.role != "assistant":
            texts.append(content_text(nodes[number].message.content))
            number = nodes[number].parent
        return "\n".join(reversed(texts))


def action(message: Any) -> str | None:
    """Returns the commands in the tool calls of a reply, one per line, or None if it has no tool call. For a
    call without an argument `command`, the line has the tool's name and arguments."""
    calls = [_command(call.name, call.arguments) for call in message.tool_calls or ()]
    return "\n".join(calls) if calls else None


def _command(name: str, arguments: str) -> str:
    try:
        values = json_lines.decode(arguments)
    except ValueError:
        values = None
    command = values.get("command") if isinstance(values, dict) else None
    return command if isinstance(command, str) else f"{name} {arguments}"
