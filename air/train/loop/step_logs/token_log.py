"""Records the advantage and the trainer's log-probability of each sampled token in a training step, in the
folder `tokens/` of the run.

The module `air.trajectories.trained_tokens` describes the format of the files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from air.env import credit
from air.train.loop.rollout import Group, Rollout
from air.train.tree.sample import Sample
from air.trajectories import trained_tokens
from air.trajectories.trained_tokens import Conversation, Floats, Message, Payment, StepTokens


class TokenLog:
    """Writes one file for each training step, with the advantage and the trainer's log-probability of each
    sampled token. Deletes the oldest files if all files together exceed `most_bytes` bytes.

    `run` is the run's folder. `tokenizer` converts token ids to text. `temperature` is the sampling
    temperature of the episodes. `by_turn` says whether each turn has its own advantage
    (`embedded.reward_to_go`), and `shuffled` whether the rewards were permuted within their groups
    (`embedded.shuffle_rewards`).
    """

    def __init__(
        self,
        run: Path,
        tokenizer: Any,
        most_bytes: float,
        *,
        temperature: float,
        by_turn: bool = False,
        shuffled: bool = False,
    ) -> None:
        self._run, self._tokenizer, self._most_bytes = run, tokenizer, most_bytes
        self._temperature, self._by_turn, self._shuffled = temperature, by_turn, shuffled
        self._pieces: dict[int, str] = {}
        self._logprobs: dict[int, Floats] = {}

    def listen(self, sample: Sample, logprobs: Tensor) -> None:
        """Stores the trainer's log-probabilities [T] of the T tokens of a sample until the next call of
        `write`. `Trainer.step` must get this method (or a function that calls it) as its `listener`."""
        self._logprobs[id(sample)] = logprobs.float().numpy()

    def write(self, step: int, groups: Sequence[Group], samples: Sequence[Sample]) -> None:
        """Writes the file of training step `step`. Then deletes the oldest files if all files together exceed
        the limit `most_bytes`.

        `samples` are those samples made from `groups` on which the step trained the policy. Raises OSError if
        the file cannot be written, for example because the disk is full.
        """
        trained = _trained(samples, self._logprobs)
        self._logprobs = {}
        conversations = tuple(
            conversation
            for number, group in enumerate(groups)
            for rollout in group.rollouts
            if rollout.ok
            for conversation in _conversations(rollout, number, trained, by_turn=self._by_turn)
        )
        tokens = StepTokens(
            step=step,
            temperature=self._temperature,
            shuffled=self._shuffled,
            conversations=conversations,
            pieces=self._texts(conversations),
        )
        trained_tokens.write(self._run, tokens)
        trained_tokens.drop_oldest(self._run, self._most_bytes)

    def _texts(self, conversations: Sequence[Conversation]) -> dict[int, str]:
        """Returns a dict from each token id that occurs in the conversations to its text."""
        ids = [m.token_ids for c in conversations for m in c.messages]
        used = np.unique(np.concatenate(ids)).tolist() if ids else []
        for token in used:
            if token not in self._pieces:
                self._pieces[token] = self._tokenizer.decode(
                    [token], skip_special_tokens=False, clean_up_tokenization_spaces=False
                )
        return {token: self._pieces[token] for token in used}


_Trained = dict[int, tuple[Floats, Floats]]
"""A mapping from the `id()` of each trained message (`verifiers`' node) to two arrays with one element per
token: the advantages and the trainer's log-probabilities."""


def _trained(samples: Sequence[Sample], logprobs: dict[int, Floats]) -> _Trained:
    result: _Trained = {}
    for sample in samples:
        advantages = np.asarray(sample.advantages(), np.float32)
        row = logprobs.get(id(sample), np.full(len(advantages), np.nan, np.float32))
        start = 0
        for node in sample.nodes:
            end = start + len(node.mask)
            if any(sample.mask[start:end]):
                result[id(node)] = (advantages[start:end], row[start:end])
            start = end
    return result


def _conversations(
    rollout: Rollout, group: int, trained: _Trained, *, by_turn: bool
) -> Iterator[Conversation]:
    """Yields the conversations of one episode for the token log. A conversation that was divided into
    segments (parts with a reward of their own, each recorded separately) is merged again.

    `group` is the index of the episode's group in the step. `trained` has the advantages and
    log-probabilities of the trained messages. `by_turn` says whether each turn has an advantage of its own,
    from the rewards of this turn and of all later ones.
    """
    for traces in _by_episode(rollout.traces):
        nodes = list(traces[-1].nodes)
        for trace in traces:  # takes each reply from the segment that trains it, not as context
            for number, node in enumerate(trace.nodes):
                nodes[number] = node if node.sampled else nodes[number]
        payments = _payments(traces, nodes)
        ranges = _ranges(traces, nodes, len(payments), by_turn=by_turn)
        yield Conversation(
            episode=str(rollout.info.get("episode") or ""),
            trace=_base_id(traces[-1]),
            task=rollout.task,
            group=group,
            messages=tuple(
                _message(node, trained, paid) for node, paid in zip(nodes, ranges, strict=True)
            ),
            payments=tuple(payments),
        )


def _by_episode(traces: Sequence[Any]) -> list[list[Any]]:
    """Groups the traces of an episode (`verifiers`' records) by conversation. Each list of the result has the
    traces of one conversation, in order: one for each segment (a part with its own reward), or a single trace
    if the conversation is not divided."""
    groups: dict[str, list[Any]] = {}
    for trace in traces:
        groups.setdefault(_base_id(trace), []).append(trace)
    return list(groups.values())


def _base_id(trace: Any) -> str:
    """Returns the id of a trace (`verifiers`' record of a conversation). If the trace is only a segment of a
    conversation, removes the segment number at the end of the id, so that all segments give the same id."""
    segment = trace.info.get("air", {}).get("segment")
    return str(trace.id) if segment is None else str(trace.id).removesuffix(f"-{segment}")


def _paid(traces: Sequence[Any]) -> list[credit.Payment]:
    return list(traces[-1].info.get("air", {}).get("paid", []))


def _payments(traces: Sequence[Any], nodes: Sequence[Any]) -> list[Payment]:
    """Returns the rewards that were given in the course of a conversation, called payments, each with the
    turn (counted from 1) at which it was given. Reward terms that were added by the library `verifiers`, not
    by air, form one more payment at the last turn. `traces` are the conversation's segments, and `nodes` its
    messages."""
    replies = [number for number, node in enumerate(nodes) if node.sampled]
    payments, validates, ours = [], 0, set[str]()
    for payment in _paid(traces):
        validates += payment["ends"]
        turn = max(1, sum(reply < payment["nodes"] for reply in replies))
        validate = validates if payment["ends"] else None
        payments.append(Payment(turn, validate, payment["terms"]))
        ours |= set(payment["terms"])
    terms: dict[str, float] = {}
    for trace in traces:
        for name, term in trace.rewards.items():
            if name not in ours and term is not None and term.value:
                terms[name] = terms.get(name, 0.0) + float(term.value)
    if terms:
        payments.append(Payment(max(1, len(replies)), None, terms))
    return payments


def _ranges(
    traces: Sequence[Any], nodes: Sequence[Any], payments: int, *, by_turn: bool
) -> list[tuple[int, int] | None]:
    """Returns one element for each message in `nodes`: which of the conversation's payments (rewards) count
    for the advantage of the message, as a range of indices (first, last + 1); None for a message without
    sampled tokens. `payments` is the number of all payments: those of the environment, and possibly one more
    with the reward terms of the library `verifiers`."""
    sampled, paid = [bool(node.sampled) for node in nodes], _paid(traces)
    if by_turn:
        bounds = [
            (sum(payment["nodes"] <= number for payment in paid), payments)
            for number in range(len(nodes))
        ]
        first_reply = sampled.index(True) if any(sampled) else 0
        bounds[: first_reply + 1] = [(0, payments)] * (first_reply + 1)
    elif "segment" in traces[-1].info.get("air", {}):
        bounds, first = [(0, 0)] * len(nodes), 0
        for segment in credit.segments(sampled, paid):
            end = first + len(segment.payments)
            last = payments if segment.end == len(nodes) else end
            bounds[segment.start : segment.end] = [(first, last)] * (segment.end - segment.start)
            first = end
    else:
        bounds = [(0, payments)] * len(nodes)
    return [one if any(node.mask) else None for node, one in zip(nodes, bounds, strict=True)]


def _message(node: Any, trained: _Trained, paid: tuple[int, int] | None) -> Message:
    mask: npt.NDArray[np.bool_] = np.asarray(node.mask, np.bool_)
    count = int(mask.sum())
    logprobs = np.full(count, np.nan, np.float32)
    logprobs[: len(node.logprobs)] = node.logprobs[:count]
    if id(node) in trained:
        advantages, again = (values[mask] for values in trained[id(node)])
    else:
        advantages, again = np.zeros(count, np.float32), np.full(count, np.nan, np.float32)
    return Message(np.asarray(node.token_ids, np.int32), mask, logprobs, again, advantages, paid)
