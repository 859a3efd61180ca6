"""Checks, each time a model is loaded, that it follows the attention masks that the module `attention`
builds.

The sampler and the trainer use attention masks and position ids to say which tokens each token attends to. A
model that interprets masks or positions in another way would be trained on wrong probabilities without an
error. So the check compares results for a few tokens: two sequences with a common prefix together in one
masked row, and each sequence alone without a mask. The trainer calls the backbone and the head of a model
separately (see the module `logprobs`), so the result of these two calls is also compared with that of a call
of the whole model.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from air.errors import UsageError
from air.train.model.attention import attention_mask
from air.train.model.logprobs import head_logits, hidden_states

LIMITS = {torch.float32: 0.01, torch.bfloat16: 0.3, torch.float16: 0.3}
"""For each data type of the weights: the largest accepted mean absolute difference of log-probabilities, in
nats; for other types, 0.01. Rounding causes differences of about 1e-5 in float32 and up to 0.1 in bfloat16; a
wrong mask causes 1 or more in a trained model."""
FAILURES = (RuntimeError, TypeError, ValueError, IndexError, KeyError, AttributeError)
"""The exceptions that models raise if they do not accept the arguments with which the sampler or the trainer
calls them."""
_TRUNK, _TWIG = 6, 5


@torch.no_grad()
def check(model: Any, name: str) -> None:
    """Raises UsageError if `model` does not follow attention masks: if it computes other log-probabilities
    for two sequences that share one row, separated by the mask, than for each sequence alone. Also raises
    UsageError if the model's backbone and head, called one after the other, compute other log-probabilities
    than the whole model. The error names the model `name`."""
    vocab = int(model.config.get_text_config().vocab_size)
    size = _TRUNK + 2 * _TWIG
    row = torch.arange(1, size + 1, device=model.device) * 7919 % vocab
    depth = [*range(_TRUNK + _TWIG), *range(_TRUNK, _TRUNK + _TWIG)]
    positions = torch.tensor([depth], device=model.device)
    visible = torch.ones(size, size, dtype=torch.bool, device=model.device).tril()
    visible[_TRUNK + _TWIG :, _TRUNK : _TRUNK + _TWIG] = False
    try:
        mask = attention_mask(model, visible[None, None], positions)
        masked = _logprobs(model, row, position_ids=positions, attention_mask=mask)
    except FAILURES as error:
        raise _refusal(name, f"it fails with one: {short(error)}") from error
    second = torch.cat([row[:_TRUNK], row[_TRUNK + _TWIG :]])
    first = _logprobs(model, row[: _TRUNK + _TWIG])
    alone = torch.cat([first, _logprobs(model, second)[_TRUNK:]])
    limit = LIMITS.get(model.dtype, 0.01)
    difference = float((masked - alone).abs().mean())
    if not difference <= limit:
        raise _refusal(name, f"log-probabilities differ by {difference:.2g} nats on average")
    try:
        logits = head_logits(model, hidden_states(model, row[None, : _TRUNK + _TWIG])[0])
    except FAILURES as error:
        raise _no_parts(name, f"cannot be called apart ({short(error)})") from error
    difference = float((_two(logits) - first).abs().mean())
    if not difference <= limit:
        raise _no_parts(name, f"differ by {difference:.2g} nats on average from the whole model")


def short(error: Exception) -> str:
    """Returns the beginning of an exception's message, in one line."""
    return " ".join(str(error).split())[:150]


def _logprobs(model: Any, ids: Tensor, **arguments: Any) -> Tensor:
    """Runs the model on the tokens `ids` [T]. Returns two log-probabilities for each position, [T, 2]: that
    of the token with id 0 as the next token, and that of the most probable next token. These two numbers are
    enough to compare two runs of the model."""
    return _two(model(input_ids=ids[None], use_cache=False, **arguments).logits[0])


def _two(logits: Tensor) -> Tensor:
    logprobs = logits.float().log_softmax(-1)
    return torch.stack([logprobs[:, 0], logprobs.max(-1).values], -1)


def _refusal(name: str, problem: str) -> UsageError:
    return UsageError(
        f"the model does not follow attention masks and positions: {problem}",
        where=name,
        remedy='try embedded.attention = "eager" or "sdpa", or use prime-rl with vLLM',
    )


def _no_parts(name: str, problem: str) -> UsageError:
    return UsageError(
        f"the model's backbone and head {problem}",
        where=name,
        remedy="the trainer needs both: choose another model, or use prime-rl with vLLM",
    )
