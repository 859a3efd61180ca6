"""Supervised training on the replies of recorded conversations (demonstrations).

A conversation gets the same tokens as in an episode. The renderer, which turns chat messages into token ids,
makes the prompt before each reply and appends the next turn without changing earlier tokens. Only tokens that
the model samples in an episode are trained: a reply's text and the stop token, not the role marker and the
empty `<think>` block before it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from air import json_lines
from air.errors import MissingError, UsageError
from air.train.algorithms.loss import cross_entropy, token_logprobs
from air.train.config.model_options import SFTConfig
from air.train.model.optimizer import learning_rate, optimizer, update
from air.train.model.padding import micro_batches, pad
from air.train.model.policy import Policy

Message = dict[str, Any]
OnStep = Callable[[dict[str, float]], None]


@dataclass(frozen=True)
class Example:
    """One demonstration as token ids, with a mask of the same length that marks the tokens to train."""

    token_ids: list[int]
    mask: list[bool]
    """True for each token of a reply, including its stop token."""

    def cut(self, length: int) -> Example:
        """Returns a copy of this example with only its first `length` tokens."""
        return Example(self.token_ids[:length], self.mask[:length])


def read_examples(path: Path) -> list[list[Message]]:
    """Reads a file of demonstrations, and returns the messages of each.
    A line is `{"messages": [{"role": …, "content": …}, …]}`. Raises MissingError if the file does not exist,
    and UsageError, which names the line, if a line is malformed or contains no reply."""
    if not path.exists():
        raise MissingError("no such file", where=str(path), remedy="check data.name")
    conversations = []
    for place, line in json_lines.read(path, complete=True):
        try:
            messages = line["messages"]
            if not any(m["role"] == "assistant" and m["content"] for m in messages):
                raise ValueError("no assistant message")
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"not a demonstration: {error or 'malformed'}",
                where=place,
                remedy='each line is {"messages": [{"role": …, "content": …}, …]} with a reply',
            ) from None
        conversations.append(messages)
    return conversations


def tokenize(renderer: Any, tokenizer: Any, messages: Sequence[Message]) -> Example:
    """Returns a conversation as the token ids of an episode, with a mask that is true for reply tokens.
    Messages after the last reply are left out. Raises ValueError if there is no reply (role `assistant`), or
    if the policy's `renderer` cannot append a turn without changing earlier tokens."""
    stop = renderer.get_stop_token_ids()[0]
    ids: list[int] = []
    mask: list[bool] = []
    reply: list[int] = []
    since: list[Message] = []
    for message in messages:
        if message["role"] != "assistant":
            since.append(message)
            continue
        if not ids:
            prompt = renderer.render_ids(since, add_generation_prompt=True)
        else:
            bridged = renderer.bridge_to_next_turn(ids[: -len(reply)], reply, since)
            if bridged is None:
                raise ValueError(f"{type(renderer).__name__} cannot bridge turns; choose another")
            prompt = bridged.token_ids
        reply = [*tokenizer.encode(message["content"], add_special_tokens=False), stop]
        mask = [*mask, *[False] * (len(prompt) - len(mask)), *[True] * len(reply)]
        ids = [*prompt, *reply]
        since = []
    if not ids:
        raise ValueError("a demonstration needs at least one reply")
    return Example(ids, mask)


def train_sft(
    policy: Policy,
    examples: Iterable[Sequence[Message]],
    config: SFTConfig,
    on_step: OnStep | None = None,
    *,
    held_out: Iterable[Sequence[Message]] = (),
    micro_batch_tokens: int = 8192,
) -> dict[str, float]:
    """Trains `policy` in place on demonstrations for `config.max_steps` steps, and returns metrics.

    The loss is the cross-entropy in nats, averaged over the trained tokens of a step, which takes whole
    demonstrations up to `batch_size * seq_len` tokens. `on_step` gets each step's `step` (from 1), `loss`,
    `lr`, `grad_norm`, `tokens` (trained), `train_tokens` (all), `seconds` and, after an evaluation on
    `held_out`, `val_loss`. The result has the last step's metrics, and `examples`, `truncated`, `epochs` and
    `seconds` of the whole training. `micro_batch_tokens` limits the tokens, with padding, of a forward pass.

    Raises UsageError if there are no demonstrations, or all are cut before their first reply. Raises
    InfrastructureError if the gradients are not finite.
    """
    start = time.perf_counter()
    data, truncated = _examples(policy, examples, config.data.seq_len)
    if not data:
        raise UsageError("there are no demonstrations", where="data.name")
    unseen = _examples(policy, held_out, config.val.data.seq_len)[0] if config.val else []
    metrics: dict[str, float] = {}
    first: dict[str, float] = {}
    if config.val and unseen and config.val.eval_on_start:
        first = {"val_loss_before": evaluate(policy, unseen, micro_batch_tokens)}
    stepper = optimizer(policy.model.parameters(), config.optim)
    parameters = list(policy.model.parameters())
    batches = _batches(data, config)
    epoch = 0
    for step in range(1, config.max_steps + 1):
        step_start = time.perf_counter()
        epoch, batch = next(batches)
        lr = learning_rate(step - 1, config.optim.lr, config.scheduler, config.max_steps)
        for settings in stepper.param_groups:
            settings["lr"] = lr
        loss, tokens = _loss(policy, batch, micro_batch_tokens, backward=True)
        metrics = {
            "step": float(step),
            "loss": loss,
            "lr": lr,
            "grad_norm": update(stepper, parameters, config.optim),
            "tokens": float(tokens),
            "train_tokens": float(sum(len(e.token_ids) for e in batch)),
            "seconds": time.perf_counter() - step_start,
        }
        last = step == config.max_steps
        if config.val and unseen and (last or step % config.val.interval == 0):
            metrics["val_loss"] = evaluate(policy, unseen, micro_batch_tokens)
        if on_step:
            on_step(metrics)
    return {
        **metrics,
        **first,
        "examples": float(len(data)),
        "truncated": float(truncated),
        "epochs": float(epoch),
        "seconds": time.perf_counter() - start,
    }


@torch.no_grad()
def evaluate(policy: Policy, examples: Sequence[Example], micro_batch_tokens: int = 8192) -> float:
    """Returns the mean cross-entropy, in nats, of the reply tokens in `examples`. No weights are changed."""
    return _loss(policy, examples, micro_batch_tokens, backward=False)[0]


def _examples(
    policy: Policy, conversations: Iterable[Sequence[Message]], seq_len: int
) -> tuple[list[Example], int]:
    renderer = policy.renderer()
    whole = [tokenize(renderer, policy.tokenizer, messages) for messages in conversations]
    usable = [e for e in (example.cut(seq_len) for example in whole) if any(e.mask)]
    return usable, sum(len(example.token_ids) > seq_len for example in whole)


def _batches(data: Sequence[Example], config: SFTConfig) -> Iterator[tuple[int, list[Example]]]:
    """Yields (epoch from 1, batch) pairs without end. A batch has at most `batch_size * seq_len` tokens."""
    budget = config.data.batch_size * config.data.seq_len
    batch: list[Example] = []
    size, epoch = 0, 0
    while True:
        order = list(range(len(data)))
        if config.data.shuffle:
            random.Random(config.data.seed + epoch).shuffle(order)
        epoch += 1
        for index in order:
            length = len(data[index].token_ids)
            if batch and size + length > budget:
                yield epoch, batch
                batch, size = [], 0
            batch.append(data[index])
            size += length


def _loss(
    policy: Policy, batch: Sequence[Example], micro_batch_tokens: int, *, backward: bool
) -> tuple[float, int]:
    """Returns the mean cross-entropy of the batch's trained tokens, and their number; with `backward`, also
    adds its gradients to the weights'."""
    tokens = sum(sum(e.mask) for e in batch)
    total = 0.0
    for group in micro_batches([len(e.token_ids) for e in batch], micro_batch_tokens):
        rows = [batch[i] for i in group]
        ids = pad([e.token_ids for e in rows], 0, torch.long, policy.device)
        mask = pad([e.mask for e in rows], False, torch.bool, policy.device)
        loss = cross_entropy(token_logprobs(policy.model, ids), mask) / tokens
        if backward:
            loss.backward()  # type: ignore[no-untyped-call]
        total += float(loss.detach())
    return total, tokens
