"""Finds the tokens of one turn of an episode. In training, they are recorded in the run's folder
`tokens/`."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from air import json_lines
from air.errors import UsageError
from air.trajectories import trained_tokens
from air.trajectories.trained_tokens import Conversation, Message, Payment, StepTokens
from air.view.index.facts import integer


@dataclass(frozen=True)
class TurnTokens:
    """The tokens of one turn, as they were recorded in training: those of the model's reply, and those of the
    messages between the previous reply and this one."""

    reply: Message
    context: Sequence[Message]
    """The messages between the previous reply and `reply`. All their tokens are masked, which means not
    trained."""
    payments: Sequence[Payment]
    """The parts of the reward from which the reply's advantage was computed."""
    content: StepTokens
    """All recorded tokens of the training step, including the text of each token id."""


def of_turn(
    run: Path,
    episode: str | None,
    training_step: int | None,
    start: Mapping[str, Any],
    step: Mapping[str, Any],
) -> TurnTokens | str:
    """Returns the tokens of a turn. If there are none, returns a sentence for the user that says why.

    `run` is the run's folder. `episode` is the episode's id, and `training_step` the training step in which
    it was used; both are None if unknown. `start` is the first line of the episode's trajectory (its
    recording), and `step` the line of the turn.
    """
    if not (run / trained_tokens.FOLDER).is_dir():
        return (
            "This run recorded no tokens: the embedded engine records them (embedded.record_tokens_mb), "
            "prime-rl does not."
        )
    if training_step is None:
        return "No training step has finished with this episode, so no tokens are recorded for it."
    try:
        content = _read(run, training_step)
    except UsageError as error:
        return str(error)  # a damaged file hides nothing else
    if content is None:
        return (
            f"The tokens of step {training_step} are not kept: embedded.record_tokens_mb limits the size of "
            f"{trained_tokens.FOLDER}/."
        )
    conversations = [c for c in content.conversations if c.episode == episode]
    if not conversations:
        return "The episode failed, so it was not trained."
    trace = start.get("trace")
    same_trace = [c for c in conversations if c.trace == trace]
    conversation = (same_trace or conversations)[0]
    reply = _reply(conversation, step)
    if reply is None:
        return "The recorded tokens do not include this turn."
    before = [0, *(number + 1 for number in conversation.replies if number < reply)][-1]
    message = conversation.messages[reply]
    first, end = message.paid or (0, 0)
    return TurnTokens(
        reply=message,
        context=conversation.messages[before:reply],
        payments=conversation.payments[first:end],
        content=content,
    )


def training_step(run: Path, episode: str | None) -> int | None:
    """Returns the number of the training step in which an episode was used, from `groups.jsonl` in the run's
    folder; None if it is unknown.

    For views without an index of the run, which also has this number. Unreadable lines are skipped.
    """
    path = run / "groups.jsonl"
    if episode is None or not path.is_file():
        return None
    for line in json_lines.Tail(path, json_lines.Mark()):
        group = line.data or {}
        members = group.get("episodes")
        for one in members if isinstance(members, list) else []:
            if isinstance(one, dict) and one.get("episode") == episode:
                return integer(group.get("step"))
    return None


def _reply(conversation: Conversation, step: Mapping[str, Any]) -> int | None:
    """Returns the position of a turn's reply in the list of the conversation's messages; None if it is not
    there. `step` is the turn's line in the trajectory (the recording of the episode)."""
    tokens = step.get("tokens")
    nodes = tokens.get("nodes") if isinstance(tokens, dict) else None
    replies = conversation.replies
    if isinstance(nodes, list) and len(nodes) == 2:
        last = integer(nodes[1])
        return last - 1 if last is not None and last - 1 in replies else None
    turn = integer(step.get("turn"))  # an agent's program, or an old trajectory
    return replies[turn - 1] if turn is not None and 0 < turn <= len(replies) else None


def _read(run: Path, step: int) -> StepTokens | None:
    try:
        changed = trained_tokens.file_of(run, step).stat().st_mtime_ns
    except FileNotFoundError:
        return None
    return _cached(run, step, changed)


@functools.lru_cache(maxsize=2)
def _cached(run: Path, step: int, changed: int) -> StepTokens | None:
    """Reads the recorded tokens of a training step. The results of the last calls are cached. `changed`, the
    time of the file's last change, belongs to the cache's key, so that a changed file is read again."""
    return trained_tokens.read(run, step)
