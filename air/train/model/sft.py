"""Supervised fine-tuning (SFT) on the replies of recorded conversations (demonstrations).

As in reinforcement learning, the demonstrations of a step are merged into prefix trees (token trees). So a
common prefix of several demonstrations, such as the prompt of a task, is computed once; this does not change
the loss.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from air.errors import UsageError
from air.train.algorithms.losses.cross_entropy import cross_entropy
from air.train.config.model_options import SFTConfig
from air.train.model.attention import check_length
from air.train.model.demonstrations import Demonstration, Example, Message, tokenize
from air.train.model.gradient_checkpointing import check_layers, recomputed
from air.train.model.heap import keep_freed_memory, return_large_blocks
from air.train.model.optimizer import learning_rate, optimizer, restore, update
from air.train.model.policy import Policy
from air.train.tree.entry_logprobs import entry_statistics, mask_cost
from air.train.tree.pack import pack
from air.train.tree.sample import Sample

logger = logging.getLogger(__name__)
OnStep = Callable[[dict[str, float]], None]


class SFT:
    """Trains a policy's weights in place on demonstrations. Each call of `step` makes one update.

    `examples` are the demonstrations for training, `held_out` those for validation. A step uses whole
    demonstrations with at most `batch_size * seq_len` tokens together, in an order that depends only on
    `data.seed`. The loss is the cross-entropy in nats, averaged over the step's trained tokens.
    `micro_batch_tokens` limits the number of tokens, including padding, of one forward pass. With
    `gradient_checkpointing`, the backward pass computes the layers' activations again.

    Raises UsageError if there are no demonstrations; if truncation to `seq_len` removes all replies of all
    demonstrations, or of all held-out ones; if a demonstration is longer than the model supports (see
    `check_length`); or if the model's layers do not support gradient checkpointing.
    """

    def __init__(
        self,
        policy: Policy,
        examples: Iterable[Sequence[Message]],
        config: SFTConfig,
        *,
        held_out: Iterable[Sequence[Message]] = (),
        micro_batch_tokens: int = 8192,
        gradient_checkpointing: bool = False,
    ) -> None:
        if gradient_checkpointing:
            check_layers(policy.model, policy.name)
            return_large_blocks()
        else:
            keep_freed_memory()
        self.gradient_checkpointing = gradient_checkpointing
        self.policy, self.config = policy, config
        self.micro_batch_tokens = micro_batch_tokens
        renderer = policy.renderer()
        talks = [tokenize(renderer, policy.tokenizer, messages) for messages in examples]
        _say_left_out(renderer, talks)
        data, truncated = _cut(talks, config.data.seq_len)
        if not data:
            raise UsageError("there are no demonstrations", where="data.name")
        others = [tokenize(renderer, policy.tokenizer, messages) for messages in held_out]
        self._held_out = _cut(others, config.val.data.seq_len)[0] if config.val else []
        if config.val and others and not self._held_out:
            raise UsageError(
                "cuts every held-out demonstration before its first reply",
                where="val.data.seq_len",
                remedy="set it higher",
            )
        _check_lengths(policy, data, "data.seq_len")
        _check_lengths(policy, self._held_out, "val.data.seq_len")
        self.facts = {
            "demonstrations": float(len(talks)),
            "examples": float(len(data)),
            "reasoning_left_out": float(sum(talk.left_out for talk in talks)),
            "truncated": float(truncated),
        }
        """Numbers about the training data: `demonstrations`, the number of demonstrations; `examples`, the
        number of token sequences on which the model is trained (several for a demonstration in which earlier
        tokens change); `truncated`, the number of token sequences that were truncated to `seq_len`; and
        `reasoning_left_out`, the number of replies whose reasoning the chat template omits."""
        self.parameters = [p for p in policy.model.parameters() if p.requires_grad]
        self.optimizer = optimizer(self.parameters, config.optim)
        self.steps = 0
        """The number of finished training steps (updates of the weights)."""
        self._batches = _batches(data, config)

    def step(self) -> dict[str, float]:
        """Updates the weights once, and returns the metrics of the step by name.

        The metrics are `step` and `epoch` (both counted from 1), `loss`, `lr`, `grad_norm`, `tokens` (number
        of trained tokens), `train_tokens` (number of all tokens), `shared_tokens` (number of tokens that were
        not computed again, because another demonstration has the same prefix), `seconds` and, if the step
        ends with an evaluation, `val_loss`. Raises InfrastructureError if the gradients are not finite.
        """
        began = time.perf_counter()
        config = self.config
        epoch, batch = next(self._batches)
        lr = learning_rate(self.steps, config.optim.lr, config.scheduler, config.max_steps)
        for settings in self.optimizer.param_groups:
            settings["lr"] = lr
        with recomputed(self.policy.model) if self.gradient_checkpointing else nullcontext():
            total = _loss(self.policy, batch, self.micro_batch_tokens, backward=True)
        norm = update(self.optimizer, self.parameters, config.optim)
        self.steps += 1
        read = sum(len(e.token_ids) for e in batch)
        metrics = {
            "step": float(self.steps),
            "epoch": float(epoch),
            "loss": total.loss,
            "lr": lr,
            "grad_norm": norm,
            "tokens": float(total.tokens),
            "train_tokens": float(read),
            "shared_tokens": float(read - total.forward_tokens),
            "seconds": time.perf_counter() - began,
        }
        last = self.steps == config.max_steps
        if config.val and self._held_out and (last or self.steps % config.val.interval == 0):
            metrics["val_loss"] = self.held_out_loss()
        return metrics

    def first_row(self) -> dict[str, float] | None:
        """Evaluates the model before the first training step, and returns the metrics `step`, which is 0, and
        `val_loss`. Returns None if a training step has already been made, there are no held-out
        demonstrations, or the config does not ask for an evaluation at the start."""
        if self.steps or not (self._held_out and self.config.val and self.config.val.eval_on_start):
            return None
        return {"step": 0.0, "val_loss": self.held_out_loss()}

    def held_out_loss(self) -> float:
        """Returns the mean cross-entropy of the reply tokens in the held-out demonstrations, in nats."""
        return evaluate(self.policy, self._held_out, self.micro_batch_tokens)

    def state_dict(self) -> dict[str, Any]:
        """Returns the optimiser's state and the number of steps, for a checkpoint."""
        return {"steps": self.steps, "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the optimiser's state and the number of steps from `state`, a result of `state_dict`. The
        next step uses the demonstrations that it would have used without an interruption."""
        restore(self.optimizer, state["optimizer"])
        for _ in range(int(state["steps"]) - self.steps):
            next(self._batches)
        self.steps = int(state["steps"])


def train_sft(
    policy: Policy,
    examples: Iterable[Sequence[Message]],
    config: SFTConfig,
    on_step: OnStep | None = None,
    *,
    held_out: Iterable[Sequence[Message]] = (),
    micro_batch_tokens: int = 8192,
) -> dict[str, float]:
    """Trains `policy` in place on demonstrations for `config.max_steps` steps (see `SFT`).

    `on_step` is called with each dict of metrics that `SFT.first_row` and `SFT.step` return. Returns the
    metrics of the last step together with `SFT.facts`. In this result, `seconds` is the duration of the whole
    training.
    """
    start = time.perf_counter()
    training = SFT(
        policy, examples, config, held_out=held_out, micro_batch_tokens=micro_batch_tokens
    )
    rows = [row] if (row := training.first_row()) else []
    for row in rows:
        if on_step:
            on_step(row)
    metrics: dict[str, float] = {}
    while training.steps < config.max_steps:
        metrics = training.step()
        if on_step:
            on_step(metrics)
    return {**metrics, **training.facts, "seconds": time.perf_counter() - start}


@torch.no_grad()
def evaluate(policy: Policy, examples: Sequence[Example], micro_batch_tokens: int = 8192) -> float:
    """Computes the loss on `examples` without training: the mean cross-entropy, in nats per token, over all
    tokens for which `Example.mask` is true (the replies that a model should produce)."""
    return _loss(policy, examples, micro_batch_tokens, backward=False).loss


def _cut(talks: Iterable[Demonstration], seq_len: int) -> tuple[list[Example], int]:
    """Truncates the token sequences of the demonstrations `talks` to `seq_len` tokens. Returns a pair: the
    truncated sequences in which at least one token of a reply to learn remains, and the number of sequences
    that were longer than `seq_len`."""
    whole = [example for talk in talks for example in talk.examples]
    usable = [e for e in (example.cut(seq_len) for example in whole) if any(e.mask)]
    return usable, sum(len(example.token_ids) > seq_len for example in whole)


def _check_lengths(policy: Policy, examples: Sequence[Example], key: str) -> None:
    longest = max((len(example.token_ids) for example in examples), default=0)
    check_length(policy.model.config, policy.name, longest, key)


def _say_left_out(renderer: Any, talks: Sequence[Demonstration]) -> None:
    left_out = sum(talk.left_out for talk in talks)
    if not left_out:
        return
    config = renderer.config
    remedy = "set a [renderer] that keeps it"
    if getattr(config, "enable_thinking", True) is False:
        remedy = f'to train it, set [renderer] name = "{config.name}", enable_thinking = true'
    logger.warning(
        "the reasoning of %d of %d replies is not trained, because the renderer `%s` leaves it out; %s",
        left_out,
        sum(talk.reasoned for talk in talks),
        config.name,
        remedy,
    )


def _batches(data: Sequence[Example], config: SFTConfig) -> Iterator[tuple[int, list[Example]]]:
    """Yields an endless sequence of pairs: the number of the epoch that has been reached, counted from 1, and
    a batch of examples (token sequences). A batch has at most `batch_size * seq_len` tokens. If the setting
    `shuffle` of the data is true, the order is shuffled anew in each epoch."""
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


@dataclass(frozen=True)
class _Total:
    """The result for one batch of demonstrations: the mean cross-entropy in nats per trained token (`loss`),
    the number of trained tokens (`tokens`), and the number of tokens that went through the model
    (`forward_tokens`), in which shared prefixes count once."""

    loss: float
    tokens: int
    forward_tokens: int


def _loss(
    policy: Policy, batch: Sequence[Example], micro_batch_tokens: int, *, backward: bool
) -> _Total:
    """Returns the loss of a batch of demonstrations: the mean cross-entropy, in nats, of the tokens for which
    `Example.mask` is true. One forward pass has at most `micro_batch_tokens` tokens, including padding. With
    `backward`, also computes the gradients and adds them to the accumulated gradients of the weights."""
    samples = [
        Sample(e.token_ids, e.mask, [0.0] * len(e.token_ids), advantage=1.0, temperature=1.0)
        for e in batch
    ]
    tokens = sum(sum(e.mask) for e in batch)
    total, forward_tokens = 0.0, 0
    cost = mask_cost(policy.model)
    for micro_batch in pack(samples, micro_batch_tokens, policy.device, mask_cost=cost):
        logprobs = entry_statistics(policy.model, micro_batch).logprobs
        loss = cross_entropy(logprobs) / tokens
        if backward:
            loss.backward()  # type: ignore[no-untyped-call]
        total += float(loss.detach())
        forward_tokens += micro_batch.tokens
    return _Total(total, tokens, forward_tokens)
