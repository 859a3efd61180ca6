"""A model that is not trained, in this process: the reference of KL terms, or a local teacher.

Such a model takes the memory of its weights; no gradient or optimiser state is kept. If the model is the base
model of the policy's LoRA adapter, it takes no memory of its own. It computes log-probabilities with the same
functions as the trainer, so with the same weights the results are equal.
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
from air.train.tree.pack import MicroBatch, pack
from air.train.tree.sample import Sample
from air.train.tree.statistics import (
    Reference,
    batch_hidden_states,
    entry_statistics,
    mask_cost,
)


class LocalModel(Reference, Protocol):
    """Interface of a frozen model in this process: scores tokens, and predicts over the whole vocabulary."""

    def score(self, samples: Sequence[Sample]) -> list[list[float]]:
        """Returns, for each sample, the log-probabilities of its sampled tokens (`Sample.mask`), in nats."""

    def close(self) -> None:
        """Frees the memory that the model holds."""


class FrozenModel:
    """Computes the log-probabilities of sampled tokens with the weights of `policy`, which must not change.

    One forward pass reads at most `micro_batch_tokens` tokens. `temperature` divides the logits; None: the
    temperature at which each sample was sampled."""

    def __init__(
        self, policy: Policy, micro_batch_tokens: int, *, temperature: float | None = None
    ) -> None:
        self.policy = policy
        self._micro_batch_tokens, self._temperature = micro_batch_tokens, temperature
        policy.model.requires_grad_(False)

    def score(self, samples: Sequence[Sample]) -> list[list[float]]:
        """Returns, for each sample, the log-probabilities of its sampled tokens (`Sample.mask`), in nats."""
        scored = samples
        if self._temperature is not None:
            scored = [replace(sample, temperature=self._temperature) for sample in samples]
        return _logprobs(self.policy, scored, self._micro_batch_tokens)

    @torch.no_grad()
    def hidden(self, batch: MicroBatch) -> Tensor:
        """Returns the last hidden states of a micro-batch, as `batch_hidden_states` does."""
        return batch_hidden_states(self.policy.model, batch)

    def logits(self, hidden: Tensor) -> Tensor:
        """Returns the logits [R, vocabulary] of R hidden states."""
        return head_logits(self.policy.model, hidden)

    def close(self) -> None:
        """Does nothing: the memory is freed when no object refers to this model."""


class WithoutAdapter:
    """Computes the log-probabilities of sampled tokens with the base model of `policy`, which has a LoRA
    adapter and may be trained: the base model's weights stay as they are. No weights are copied.

    One forward pass reads at most `micro_batch_tokens` tokens."""

    def __init__(self, policy: Policy, micro_batch_tokens: int) -> None:
        self.policy, self._micro_batch_tokens = policy, micro_batch_tokens

    def score(self, samples: Sequence[Sample]) -> list[list[float]]:
        """Returns the same as `FrozenModel.score`. Meanwhile no other thread may use the policy."""
        with self.policy.base_model():
            return _logprobs(self.policy, samples, self._micro_batch_tokens)

    @torch.no_grad()
    def hidden(self, batch: MicroBatch) -> Tensor:
        """Returns the same as `FrozenModel.hidden`. Meanwhile no other thread may use the policy."""
        with self.policy.base_model():
            return batch_hidden_states(self.policy.model, batch)

    def logits(self, hidden: Tensor) -> Tensor:
        """Returns the same as `FrozenModel.logits`. Meanwhile no other thread may use the policy."""
        with self.policy.base_model():
            return head_logits(self.policy.model, hidden)

    def close(self) -> None:
        """Does nothing, because the weights belong to the policy."""


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
    """Returns, for each sample, the Kullback-Leibler divergence of the policy's prediction of each sampled
    token from the reference's, in nats. One forward pass reads at most `tokens` tokens."""
    found: dict[int, list[float]] = {}
    for batch in pack(samples, tokens, policy.device, mask_cost=mask_cost(policy.model)):
        statistics = entry_statistics(policy.model, batch, reference=reference)
        found |= by_sample(batch, statistics.divergence)
    return [found[id(sample)] for sample in samples]


def by_sample(batch: MicroBatch, numbers: Tensor) -> dict[int, list[float]]:
    """Groups numbers [N] of a micro-batch's entries by sample; the keys are the samples' `id()`."""
    counts = [sum(sample.mask) for sample in batch.samples]
    parts = torch.split(numbers, counts)
    return {id(sample): part.tolist() for sample, part in zip(batch.samples, parts, strict=True)}


def check_same_tokens(policy: Policy, other: Policy, key: str) -> None:
    """Raises ConfigError, which names the setting `key`, if the models have different tokenizers."""
    if policy.tokenizer.get_vocab() != other.tokenizer.get_vocab():
        raise ConfigError(
            f"{other.name} has another vocabulary than the policy {policy.name}",
            where=key,
            remedy="name a model with the policy's tokenizer",
        )
