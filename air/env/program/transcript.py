"""Copies the turns of an agent that is a program in the box from verifiers' trace to the trajectory."""

from __future__ import annotations

import json
from typing import Any

import verifiers.v1 as vf
from verifiers.v1.types import content_text

from air.env.episode import Episode
from air.worlds.base import Validation


class Transcript:
    """Writer of a trajectory for an episode in which a program inside the box plays the agent.
    A recorded turn contains the text that the model is shown after it, which is known only when the next turn
    begins. So a turn, followed by its gradings, is written when the next turn begins or the episode ends."""

    def __init__(self, episode: Episode, trace: vf.Trace[Any, Any, Any]) -> None:
        self._episode, self._trace = episode, trace
        self._validations: list[tuple[int, Validation]] = []

    def validated(self, validation: Validation) -> None:
        """Stores a grading for the current turn, and writes all earlier turns to the trajectory."""
        self._validations.append((self._trace.num_turns, validation))
        self.write()

    def write(self, *, all_of_them: bool = False) -> None:
        """Writes all finished turns that the trajectory does not contain yet; if `all_of_them`, also the last
        turn, which is finished only when the program has ended."""
        sampled = [n for n, node in enumerate(self._trace.nodes) if node.sampled]
        over = len(sampled) if all_of_them else len(sampled) - 1
        counters = self._episode.counters
        for number in sampled[counters.turns : over]:
            counters.turns += 1
            message = self._trace.nodes[number].message
            self._episode.write_step(
                content_text(message.content), action(message), None, self._shown(number)
            )
            self._write_validations(counters.turns)
        if all_of_them:
            self._write_validations(counters.turns)

    def _write_validations(self, turn: int) -> None:
        while self._validations and self._validations[0][0] <= turn:
            self._episode.record_validation(self._validations.pop(0)[1])

    def _shown(self, number: int) -> str:
        """Returns the text of all messages between the reply in node `number` and the next reply."""
        nodes, texts = self._trace.nodes, list[str]()
        for later in range(number + 1, len(nodes)):
            if nodes[later].parent == number and not nodes[later].sampled:
                texts.append(content_text(nodes[later].message.content))
                number = later
        return "\n".join(texts)


def action(message: Any) -> str | None:
    """Returns the commands in a reply's tool calls, one on each line, or None if there is no tool call.
    If a call has no argument `command`, its line contains the name and the arguments of the call."""
    calls = [_command(call.name, call.arguments) for call in message.tool_calls or ()]
    return "\n".join(calls) if calls else None


def _command(name: str, arguments: str) -> str:
    try:
        values = json.loads(arguments)
    except (ValueError, RecursionError):
        values = None
    command = values.get("command") if isinstance(values, dict) else None
    return command if isinstance(command, str) else f"{name} {arguments}"
