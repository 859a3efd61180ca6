"""Supervised training on the replies of recorded conversations (demonstrations)."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from air.errors import UsageError
from air.train.algorithms.losses.cross_entropy import cross_entropy
from air.train.config.model_options import SFTConfig
from air.train.model.demonstrations import Demonstration, Example, Message, tokenize
from air.train.model.logprobs import token_logprobs
from air.train.model.optimizer import learning_rate, optimizer, update
from air.train.model.padding import micro_batches, pad
from air.train.model.policy import Policy

logger = logging.getLogger(__name__)
OnStep = Callable[[dict[str, float]], None]


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
    `held_out`, `val_loss`. The result has the last step's metrics, and those of the whole training:
    `demonstrations`, `examples` (token sequences; see `tokenize`), `truncated` (of them),
    `reasoning_left_out` (replies whose reasoning the chat template leaves out), `epochs` and `seconds`.
    `micro_batch_tokens` limits the tokens, with padding, of a forward pass.

    Raises UsageError if there are no demonstrations, or all are cut before their first reply. Raises
    InfrastructureError if the gradients are not finite.
    """
    start = time.perf_counter()
    renderer = policy.renderer()
    talks = [tokenize(renderer, policy.tokenizer, messages) for messages in examples]
    _say_left_out(renderer, talks)
    data, truncated = _cut(talks, config.data.seq_len)
    if not data:
        raise UsageError("there are no demonstrations", where="data.name")
    others = [tokenize(renderer, policy.tokenizer, messages) for messages in held_out]
    unseen = _cut(others, config.val.data.seq_len)[0] if config.val else []
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
        "demonstrations": float(len(talks)),
        "examples": float(len(data)),
        "reasoning_left_out": float(sum(talk.left_out for talk in talks)),
        "truncated": float(truncated),
        "epochs": float(epoch),
        "seconds": time.perf_counter() - start,
    }


@torch.no_grad()
def evaluate(policy: Policy, examples: Sequence[Example], micro_batch_tokens: int = 8192) -> float:
    """Returns the mean cross-entropy, in nats, of the reply tokens in `examples`. No weights are changed."""
    return _loss(policy, examples, micro_batch_tokens, backward=False)[0]


def _cut(talks: Iterable[Demonstration], seq_len: int) -> tuple[list[Example], int]:
    """Returns the examples cut to `seq_len` tokens, without those that have no reply left, and how many of
    all were longer."""
    whole = [example for talk in talks for example in talk.examples]
    usable = [e for e in (example.cut(seq_len) for example in whole) if any(e.mask)]
    return usable, sum(len(example.token_ids) > seq_len for example in whole)


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
