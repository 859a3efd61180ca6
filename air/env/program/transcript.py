"""Writes the trajectory (air's record of an episode) if a program in the box plays the agent. air does not
see the turns of such a program itself, so it reads them from the trace, the record that `verifiers` keeps."""

from __future__ import annotations

from typing import Any

import verifiers.v1 as vf
from verifiers.v1.types import content_text

from air import json_lines
from air.env.research_episode import ResearchEpisode
from air.worlds.base import Validation


class Transcript:
    """Writes the trajectory (air's record) of an episode in which a program in the box plays the agent.

    The trajectory has a line for each turn, which contains the text that the model gets after that turn. This
    text is known only when the next turn begins. So the line of a turn, and those of its gradings, are
    written when the next turn begins or the episode ends.
    """

    def __init__(self, episode: ResearchEpisode, trace: vf.Trace[Any, Any, Any]) -> None:
        self._episode, self._trace = episode, trace
        self._validations: list[tuple[int, Validation]] = []

    def validated(self, validation: Validation) -> None:
        """Stores a grading, which was made in the current turn. It is written to the trajectory (air's record
        of the episode) later, with that turn. Writes all earlier turns now."""
        self._validations.append((self._trace.num_turns, validation))
        self.write()

    def write(self, *, all_of_them: bool = False) -> None:
        """Writes to the trajectory (air's record of the episode) all turns that it does not contain yet,
        except the latest. If `all_of_them` is true (the program that plays the agent has ended), also writes
        the latest turn."""
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
        """Returns the text that the model got between two replies: the contents of the messages between them
        in the trace (`verifiers`' record), joined by newlines. `reply` is the index of the second reply among
        the trace's nodes (messages)."""
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
