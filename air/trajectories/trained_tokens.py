"""Writes and reads the tokens on which a training step trained: `tokens/step_N.npz` in a run's folder.

The embedded engine (air's own trainer) writes one file per step, with the tokens of all episodes without an
infrastructure error, as the trainer saw them. A file is an archive of numpy arrays, without pickles, with
about 3 bytes per token. A token is called sampled if the policy (the trained model) generated it. All other
tokens (prompts, observations, the chat template) are only context.

    token_ids         int32    one per token: the messages' tokens, one message after the other
    sampled           bool     one per token: whether the policy sampled it
    logprobs          float32  one per sampled token: log-probability when it was sampled
    trainer_logprobs  float32  one per sampled token: the trainer's log-probability just before the update;
                               NaN if the trainer did not compute it, because the whole sample had advantage 0
    advantages        float32  one per sampled token: its factor in the loss; 0 if it was not trained
    index             uint8    a JSON document in UTF-8

`index` is `{"v": 1, "step", "temperature", "shuffled", "pieces", "conversations"}`. `pieces` maps each token
id to its text. A conversation is `{"episode", "trace", "task", "group", "tokens", "sampled", "paid",
"payments"}`. `tokens` and `sampled` are lists with one number for each message, in the order of the
conversation: how many tokens it has, and how many of them were sampled. `payments` lists the parts of the
episode's reward, each as `{"turn", "validate", "terms"}`, with the same fields as the class `Payment`. `paid`
has one entry for each message with sampled tokens, in order: the range [first, end) of indices in `payments`
of those parts that count towards the message's advantage.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from air import paths
from air.errors import UsageError

FOLDER = "tokens"
"""The name of the subfolder of a run's folder that contains the tokens of each training step, one file per
step."""
VERSION = 1
_NAME = re.compile(r"step_(\d+)\.npz")
_PER_SAMPLED = ("logprobs", "trainer_logprobs", "advantages")
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Payment:
    """A part of an episode's reward, with the turn in which it was earned."""

    turn: int
    """The number of the turn, from 1."""
    validate: int | None
    """The number (from 1, within the episode) of the grading of the agent's work that gave this part of the
    reward; None if no grading gave it."""
    terms: Mapping[str, float]
    """The amount of each reward term in this part of the reward, by the term's name. The amounts add up to
    this part."""


@dataclass(frozen=True)
class Message:
    """One message of a conversation as the trainer saw it: its tokens, with log-probabilities and advantages
    of those that the policy (the trained model) generated."""

    token_ids: npt.NDArray[np.int32]
    sampled: npt.NDArray[np.bool_]
    """For each token, whether the policy (the trained model) generated it. All other tokens, such as prompts,
    are only context."""
    logprobs: Floats
    """For each sampled token, the log-probability at the time of sampling."""
    trainer_logprobs: Floats
    """For each sampled token, the log-probability that the trainer computed just before the update of the
    weights; NaN if it did not compute it."""
    advantages: Floats
    """For each sampled token, its advantage, the factor of the token in the loss; 0 if the token was not
    trained."""
    paid: tuple[int, int] | None = None
    """The range [first, end) of indices in `Conversation.payments` of the payments (parts of the reward) that
    count towards this message's advantage. None if the message has no sampled tokens."""

    @property
    def ratios(self) -> Floats:
        """For each sampled token, the probability that the trainer computed divided by the probability with
        which the token was sampled; NaN if the trainer did not compute it."""
        ratios: Floats = np.exp(self.trainer_logprobs - self.logprobs)
        return ratios


@dataclass(frozen=True)
class Conversation:
    """The tokens of one conversation in a training step, by message, with the parts of the reward. `trace` is
    the id of the record that the library `verifiers` made of the conversation."""

    episode: str
    """The id of the episode; empty if it has no trajectory."""
    trace: str
    task: str
    group: int
    """The index, from 0, of the episode's group (the episodes of the same task) in the training step."""
    messages: tuple[Message, ...]
    """The messages, in the same order as the nodes in the record of the library `verifiers`. The indices
    `Step.tokens.nodes` in a trajectory refer to this order."""
    payments: tuple[Payment, ...]

    @property
    def replies(self) -> list[int]:
        """The indices in `messages` of the messages with sampled tokens, which the policy (the trained model)
        wrote, in ascending order."""
        return [n for n, message in enumerate(self.messages) if message.paid is not None]


@dataclass(frozen=True)
class StepTokens:
    """The tokens on which one training step trained: the content of one file `tokens/step_N.npz`."""

    step: int
    temperature: float
    """The sampling temperature, by which the logits were divided before all log-probabilities were
    computed."""
    shuffled: bool
    """Whether the rewards were randomly exchanged between the episodes of each group (the episodes of the
    same task), as a control experiment (the setting `shuffle_rewards`). If so, the payments (parts of the
    reward) do not explain the advantages."""
    conversations: tuple[Conversation, ...]
    pieces: Mapping[int, str]
    """The text of each token id that occurs. If the bytes of a character are split over several tokens, each
    of these tokens has `�` for its part."""


def file_of(run: Path, step: int) -> Path:
    """Returns the path of the file with the tokens of a training step, for the run in folder `run`."""
    return run / FOLDER / f"step_{step}.npz"


def recorded_steps(run: Path) -> list[int]:
    """Returns the training steps whose tokens are recorded in the run's folder `run`, in ascending order."""
    folder = run / FOLDER
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return sorted(int(match[1]) for match in map(_NAME.fullmatch, names) if match)


def write(run: Path, tokens: StepTokens) -> int:
    """Writes or replaces the file with the tokens of a training step, in the run's folder `run`. Returns the
    file's size in bytes.

    The file is written atomically, so other processes never see a half-written file. Raises OSError, for
    instance on a full disk.
    """
    data = _archive(tokens)
    paths.write_whole(file_of(run, tokens.step), data)
    return len(data)


def drop_oldest(run: Path, most_bytes: float) -> None:
    """Limits the disk space of the recorded tokens in the run's folder `run`: deletes token files, those of
    the earliest training steps first, until the rest together have at most `most_bytes` bytes."""
    total = 0
    for step in reversed(recorded_steps(run)):
        path = file_of(run, step)
        total += path.stat().st_size
        if total > most_bytes:
            path.unlink()


def read(run: Path, step: int) -> StepTokens | None:
    """Reads the tokens of the training step `step` from the run's folder `run`. Returns None if there is no
    file for this step.

    Raises UsageError, which names the file, if the file cannot be read.
    """
    path = file_of(run, step)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", where=str(path)) from error
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        index = json.loads(arrays["index"].tobytes())
        version = index["v"]
        if version == VERSION:
            return _parsed(index, arrays)
    except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        remedy = "delete the file"
        raise UsageError(f"is damaged: {error!r}", where=str(path), remedy=remedy) from error
    raise UsageError(f"has version {version}", where=str(path), remedy="read it with a newer air")


def _archive(tokens: StepTokens) -> bytes:
    messages = [m for c in tokens.conversations for m in c.messages]
    arrays: dict[str, Any] = {
        "token_ids": _joined([m.token_ids for m in messages], np.int32),
        "sampled": _joined([m.sampled for m in messages], np.bool_),
    }
    for name in _PER_SAMPLED:
        arrays[name] = _joined([getattr(m, name) for m in messages], np.float32)
    index = {
        "v": VERSION,
        "step": tokens.step,
        "temperature": tokens.temperature,
        "shuffled": tokens.shuffled,
        "pieces": {str(token): text for token, text in tokens.pieces.items()},
        "conversations": [_entry(c) for c in tokens.conversations],
    }
    text = json.dumps(index, ensure_ascii=False).encode("utf-8", "replace")
    arrays["index"] = np.frombuffer(text, np.uint8)
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def _joined(parts: Sequence[npt.NDArray[Any]], dtype: Any) -> npt.NDArray[Any]:
    return np.concatenate(parts).astype(dtype) if parts else np.zeros(0, dtype)


def _entry(conversation: Conversation) -> dict[str, Any]:
    messages = conversation.messages
    return {
        "episode": conversation.episode,
        "trace": conversation.trace,
        "task": conversation.task,
        "group": conversation.group,
        "tokens": [len(m.token_ids) for m in messages],
        "sampled": [int(m.sampled.sum()) for m in messages],
        "paid": [m.paid for m in messages if m.paid is not None],
        "payments": [asdict(payment) for payment in conversation.payments],
    }


def _parsed(index: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> StepTokens:
    conversations, token, sample = [], 0, 0
    for entry in index["conversations"]:
        tokens, sampled = sum(entry["tokens"]), sum(entry["sampled"])
        part = {name: arrays[name][token : token + tokens] for name in ("token_ids", "sampled")}
        part |= {name: arrays[name][sample : sample + sampled] for name in _PER_SAMPLED}
        conversations.append(_conversation(entry, part))
        token, sample = token + tokens, sample + sampled
    if token != len(arrays["token_ids"]) or sample != len(arrays["logprobs"]):
        raise ValueError("the counts of tokens do not match the arrays")
    return StepTokens(
        step=int(index["step"]),
        temperature=float(index["temperature"]),
        shuffled=bool(index["shuffled"]),
        conversations=tuple(conversations),
        pieces={int(token): str(text) for token, text in index["pieces"].items()},
    )


def _conversation(entry: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> Conversation:
    ranges = iter([(int(first), int(end)) for first, end in entry["paid"]])
    messages = []
    bounds = zip(_bounds(entry["tokens"]), _bounds(entry["sampled"]), strict=True)
    for (first, end), (sample, last) in bounds:
        messages.append(
            Message(
                token_ids=arrays["token_ids"][first:end],
                sampled=arrays["sampled"][first:end],
                logprobs=arrays["logprobs"][sample:last],
                trainer_logprobs=arrays["trainer_logprobs"][sample:last],
                advantages=arrays["advantages"][sample:last],
                paid=next(ranges) if last > sample else None,
            )
        )
    return Conversation(
        episode=str(entry["episode"]),
        trace=str(entry["trace"]),
        task=str(entry["task"]),
        group=int(entry["group"]),
        messages=tuple(messages),
        payments=tuple(Payment(**payment) for payment in entry["payments"]),
    )


def _bounds(counts: Iterable[int]) -> Iterable[tuple[int, int]]:
    """Returns the ranges (start, end) of consecutive slices with the lengths `counts`: (0, 2) and (2, 5) for
    the lengths 2 and 3."""
    ends = [0]
    for count in counts:
        ends.append(ends[-1] + count)
    return pairwise(ends)
