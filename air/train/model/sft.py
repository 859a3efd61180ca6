"""Supervised training on the replies of recorded conversations (demonstrations).

A conversation gets the same tokens as in an episode. The renderer, which turns chat messages into token ids,
makes the prompt before each reply and appends the next turn without changing earlier tokens. Only tokens that
the model samples in an episode are trained: a reply's text and the stop token, not the role marker and the
empty `<think>` block before it.

The reasoning of a reply is the field `reasoning_content` of its message. Its tokens are those of the chat
template. Chat templates such as Qwen3's leave out the reasoning of earlier replies. An episode is then
several training samples, and so is a conversation: each reply is trained after the prompt that it follows.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from verifiers.v1.dialects.chat import reasoning_text

from air import json_lines
from air.errors import MissingError, UsageError
from air.train.algorithms.losses.cross_entropy import cross_entropy
from air.train.config.model_options import SFTConfig
from air.train.model.logprobs import token_logprobs
from air.train.model.optimizer import learning_rate, optimizer, update
from air.train.model.padding import micro_batches, pad
from air.train.model.policy import Policy

logger = logging.getLogger(__name__)
Message = dict[str, Any]
OnStep = Callable[[dict[str, float]], None]


@dataclass(frozen=True)
class Example:
    """A token sequence, with a mask of the same length that marks the tokens to train."""

    token_ids: list[int]
    mask: list[bool]
    """True for each token of a reply, including its stop token."""

    def cut(self, length: int) -> Example:
        """Returns a copy of this example with only its first `length` tokens."""
        return Example(self.token_ids[:length], self.mask[:length])


@dataclass(frozen=True)
class Demonstration:
    """One conversation as token sequences."""

    examples: list[Example]
    """One, or several if prompts change the tokens of earlier messages."""
    reasoned: int = 0
    """The number of replies with reasoning."""
    left_out: int = 0
    """The number of replies with reasoning that the chat template leaves out, so that it is not trained."""


def read_examples(path: Path) -> list[list[Message]]:
    """Reads a file of demonstrations, and returns the messages of each.
    A line is `{"messages": [{"role": …, "content": …}, …]}`; a reply can also have `reasoning_content`.
    Raises MissingError if the file does not exist, and UsageError, which names the line, if a line is
    malformed or contains no reply."""
    if not path.exists():
        raise MissingError("no such file", where=str(path), remedy="check data.name")
    conversations = []
    for place, line in json_lines.read(path, complete=True):
        try:
            messages = line["messages"]
            replies = [message for message in messages if message["role"] == "assistant"]
            if not any(reply["content"] for reply in replies):
                raise ValueError("no assistant message")
            if not all(isinstance(reply["content"], str) for reply in replies):
                raise ValueError(
                    "a reply's `content` must be text; tool calls cannot be trained on"
                )
            if not all(isinstance(one.get("reasoning_content"), str | None) for one in replies):
                raise ValueError("`reasoning_content` must be text")
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"not a demonstration: {error or 'malformed'}",
                where=place,
                remedy='each line is {"messages": [{"role": …, "content": …}, …]} with a reply',
            ) from None
        conversations.append(messages)
    return conversations


def tokenize(renderer: Any, tokenizer: Any, messages: Sequence[Message]) -> Demonstration:
    """Returns a conversation as the token ids of an episode, with masks that are true for reply tokens.
    A new example begins if the policy's `renderer` changes earlier tokens when it appends a turn; each reply
    is trained once. Messages after the last reply are left out. Raises ValueError if there is no reply (role
    `assistant`)."""
    examples: list[Example] = []
    ids: list[int] = []
    mask: list[bool] = []
    reply: list[int] = []
    since = reasoned = left_out = 0
    for at, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        prompt = _prompt(renderer, messages[:at], ids, reply, messages[since:at])
        if prompt[: len(ids)] != ids:
            examples.append(Example(ids, mask))
            mask = []
        since = at + 1
        with_reasoning = _with_reasoning(renderer, messages[:at], message)
        if reasoning_text(message):
            reasoned += 1
            left_out += with_reasoning is None
        stop = renderer.get_stop_token_ids()[0]
        text = tokenizer.encode(message["content"], add_special_tokens=False)
        reply = with_reasoning or [*text, stop]
        mask = [*mask, *[False] * (len(prompt) - len(mask)), *[True] * len(reply)]
        ids = [*prompt, *reply]
    if not ids:
        raise ValueError("a demonstration needs at least one reply")
    return Demonstration([*examples, Example(ids, mask)], reasoned, left_out)


def _prompt(
    renderer: Any,
    before: Sequence[Message],
    ids: list[int],
    reply: list[int],
    since: Sequence[Message],
) -> list[int]:
    """Returns the prompt for the next reply. `before` are all messages before it, and `since` those after the
    previous reply. `ids` are the tokens up to the end of that reply, and `reply` is its part of them."""
    if ids and since:
        bridged = renderer.bridge_to_next_turn(ids[: -len(reply)], reply, list(since))
        if bridged is not None:
            return list(bridged.token_ids)
    return list(renderer.render_ids(list(before), add_generation_prompt=True))


def _with_reasoning(renderer: Any, before: Sequence[Message], message: Message) -> list[int] | None:
    """Returns the tokens of a reply with its reasoning, up to the stop token, as the chat template renders
    them. None if there is no reasoning, or the template leaves it out of what the model writes."""
    reasoning = reasoning_text(message)
    if not reasoning:
        return None
    plain = {"role": "assistant", "content": message["content"]}
    prompt = renderer.render_ids(list(before), add_generation_prompt=True)
    whole = renderer.render_ids([*before, {**plain, "reasoning_content": reasoning}])
    if whole[: len(prompt)] != prompt or whole == renderer.render_ids([*before, plain]):
        return None
    stops = renderer.get_stop_token_ids()
    written = whole[len(prompt) :]
    ends = [number for number, token in enumerate(written) if token in stops]
    return list(written[: ends[-1] + 1]) if ends else [*written, stops[0]]


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
