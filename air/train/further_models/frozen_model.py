"""Frozen models (which are not trained) in the trainer's process: the reference model of KL penalties, or a
local teacher.

A frozen model takes the memory of its weights, without gradients or optimiser state. A reference model that
is the base model under the policy's LoRA adapter takes no memory of its own. Frozen models compute
log-probabilities with the same functions as the trainer, so equal weights give equal results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from air.errors import ConfigError
from air.train.model.logprobs import head_logits
from air.train.model.policy import Policy
from air.train.tree.entry_logprobs import (
    Reference,
    batch_hidden_states,
    entry_statistics,
    mask_cost,
)
from air.train.tree.pack import MicroBatch, pack
from air.train.tree.sample import Sample


class InProcessModel(Reference, Protocol):
    """Interface of a frozen model in the trainer's process. The model computes the log-probabilities of given
    tokens. In two steps, `hidden` and `logits`, it also computes the logits of the whole vocabulary."""

    def score(self, samples: Sequence[Sample]) -> list[list[float]]:
        """Returns, for each sample, the log-probabilities of the tokens for which `Sample.mask` is true, in
        nats."""

    def close(self) -> None:
        """Frees the memory that the model holds."""


class FrozenModel:
    """Computes the log-probabilities of sampled tokens with a frozen model: the model and tokenizer in
    `policy`, which is here not the trained policy.

    One forward pass has at most `micro_batch_tokens` tokens. `temperature` divides the logits in `score`;
    None: the temperature at which each sample was sampled.
    """

    def __init__(
        self, policy: Policy, micro_batch_tokens: int, *, temperature: float | None = None
    ) -> None:
        self.policy = policy
        self._micro_batch_tokens, self._temperature = micro_batch_tokens, temperature
        policy.model.requires_grad_(False)

    def score(self, samples: Sequence[Sample]) -> list[list[float]]:
        """Returns, for each sample, the log-probabilities of the tokens for which `Sample.mask` is true, in
        nats."""
        scored = samples
        if self._temperature is not None:
            scored = [replace(sample, temperature=self._temperature) for sample in samples]
        return _logprobs(self.policy, scored, self._micro_batch_tokens)

    @torch.no_grad()
    def hidden(self, batch: MicroBatch) -> Tensor:
        """Returns the last hidden states of a micro-batch, [rows x tokens, hidden], without gradients."""
        return batch_hidden_states(self.policy.model, batch)

    def logits(self, hidden: Tensor) -> Tensor:
        """Returns the logits [R, vocabulary] of R last hidden states, [R, hidden]."""
        return head_logits(self.policy.model, hidden)

    def close(self) -> None:
        """Does nothing: the memory is freed when the last reference to this object is dropped."""


class WithoutAdapter:
    """Computes the log-probabilities of sampled tokens with the base model under the LoRA adapter of
    `policy`. The adapter is switched off during each call, so no weights are copied. The adapter may be
    trained between calls, since training does not change the base model's weights.

    One forward pass has at most `micro_batch_tokens` tokens."""

    def __init__(self, policy: Policy, micro_batch_tokens: int) -> None:
        self.policy, self._micro_batch_tokens = policy, micro_batch_tokens

    def score(self, samples: Sequence[Sample]) -> list[list[float]]:
        """Returns, for each sample, the base model's log-probabilities of the tokens for which `Sample.mask`
        is true, in nats. No other thread may use the policy during the call."""
        with self.policy.base_model():
            return _logprobs(self.policy, samples, self._micro_batch_tokens)

    @torch.no_grad()
    def hidden(self, batch: MicroBatch) -> Tensor:
        """Returns the base model's last hidden states of a micro-batch, [rows x tokens, hidden]. No other
        thread may use the policy during the call."""
        with self.policy.base_model():
            return batch_hidden_states(self.policy.model, batch)

    def logits(self, hidden: Tensor) -> Tensor:
        """Returns the base model's logits [R, vocabulary] of R last hidden states. No other thread may use
        the policy during the call."""
        with self.policy.base_model():
            return head_logits(self.policy.model, hidden)

    def close(self) -> None:
        """Does nothing, because this object holds no weights of its own."""


@torch.no_grad()
def _logprobs(policy: Policy, samples: Sequence[Sample], tokens: int) -> list[list[float]]:
    model, cost = policy.model, mask_cost(policy.model)
    found: dict[int, list[float]] = {}
    for batch in pack(samples, tokens, policy.device, mask_cost=cost):
        found |= by_sample(batch, entry_statistics(model, batch).logprobs)
    return [found[id(sample)] for sample in samples]


@torch.no_grad()
def divergences(
    policy: Policy, reference: Reference, samples: Sequence[Sample], tokens: int
) -> list[list[float]]:
    """Returns, for each sample, a list with one number per sampled token, in nats: the Kullback-Leibler
    divergence of the policy's predicted distribution over the vocabulary from that of the reference model.
    One forward pass has at most `tokens` tokens."""
    found: dict[int, list[float]] = {}
    for batch in pack(samples, tokens, policy.device, mask_cost=mask_cost(policy.model)):
        statistics = entry_statistics(policy.model, batch, reference=reference)
        found |= by_sample(batch, statistics.divergence)
    return [found[id(sample)] for sample in samples]


def by_sample(batch: MicroBatch, numbers: Tensor) -> dict[int, list[float]]:
    """Divides `numbers` [N], which has one number per entry (sampled token) of a micro-batch, by sample.
    Returns a dict from the `id()` of each sample to the list of its numbers."""
    counts = [sum(sample.mask) for sample in batch.samples]
    parts = torch.split(numbers, counts)
    return {id(sample): part.tolist() for sample, part in zip(batch.samples, parts, strict=True)}


def check_same_tokens(policy: Policy, other: Policy, key: str) -> None:
    """Raises ConfigError if the tokenizers of `policy` and of the further model `other` have different
    vocabularies. The error names the run file's setting `key`, which names the further model."""
    if policy.tokenizer.get_vocab() != other.tokenizer.get_vocab():
        raise ConfigError(
            f"{other.name} has another vocabulary than the policy {policy.name}",
            where=key,
            remedy="name a model with the policy's tokenizer",
        )
