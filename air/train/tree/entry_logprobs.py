"""Computes the inputs of a loss from a micro-batch: the log-probability and entropy of each entry.

An entry is a pair of a sampled token and a training sample that trains this token (see
`air.train.tree.pack.Entries`).
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from air.train.model.attention import FULL_ATTENTION, attention_mask, windows
from air.train.model.logprobs import (
    Predictions,
    ReferencePredictions,
    chosen_logprobs,
    hidden_states,
)
from air.train.tree.pack import MicroBatch


class Reference(Protocol):
    """Interface of a reference model, whose predicted distributions over the vocabulary are compared with the
    policy's."""

    def hidden(self, batch: MicroBatch) -> Tensor:
        """Returns the reference model's last hidden states for the tokens of a micro-batch, a tensor [rows x
        tokens, hidden]."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Returns the reference model's logits, a tensor [R, vocabulary] without gradients. `hidden` has R of
        the hidden states that the method `hidden` returned."""


def entry_statistics(
    model: Any,
    batch: MicroBatch,
    *,
    entropy_gradient: bool = False,
    reference: Reference | None = None,
) -> Predictions:
    """Returns the log-probability of the token of each entry of a micro-batch, and the entropy of the
    distribution that predicted this token. An entry is a pair of a sampled token and a training sample that
    trains this token.

    With `reference`, also returns the KL divergence of this distribution from the reference model's
    distribution. All tensors are [N] for N entries, in nats, at the temperature at which the entry's sample
    was sampled. The entropy has a gradient only with `entropy_gradient`.
    """
    hidden = batch_hidden_states(model, batch)
    entries = batch.entries
    # Entries with the same parent and temperature share one prediction.
    keys = torch.stack([entries.parents.double(), entries.temperatures.double()], 1)
    predictions, rows = torch.unique(keys, dim=0, return_inverse=True)
    order = rows.argsort()
    places = predictions[:, 0].long()
    other = None
    if reference is not None:
        other = ReferencePredictions(reference.hidden(batch)[places], reference.logits)
    logprobs, entropy, divergence = chosen_logprobs(
        model,
        hidden[places],
        predictions[:, 1].float(),
        rows[order],
        entries.token_ids[order],
        entropy_gradient=entropy_gradient,
        reference=other,
    )
    return Predictions(
        torch.empty_like(logprobs).index_copy(0, order, logprobs),
        entropy[rows],
        divergence if reference is None else divergence[rows],
    )


def batch_hidden_states(model: Any, batch: MicroBatch) -> Tensor:
    """Returns the model's last hidden states for the tokens of a micro-batch, a tensor [rows x tokens,
    hidden]. The rows are flattened, so that `Entries.positions` and `Entries.parents` are indices into the
    first dimension."""
    mask = None
    if batch.mask is not None:
        mask = attention_mask(model, batch.mask, batch.position_ids)
    return hidden_states(model, batch.input_ids, batch.position_ids, mask).flatten(0, 1)


def mask_cost(model: Any) -> float:
    """Returns the cost of computing one element of a row's attention mask in all layers of the model, divided
    by the cost of computing one token in all other parts of the model except the embeddings.

    The result is 0 if the model's attention skips elements whose tokens do not attend to each other. The
    estimate counts two operations per weight for each token, and four operations per component of a query
    vector for each element.
    """
    config = model.config.get_text_config()
    if config._attn_implementation == "sdpa" and windows(config) == {FULL_ATTENTION: None}:
        return 0.0
    heads = config.num_attention_heads
    width = heads * (getattr(config, "head_dim", None) or config.hidden_size // heads)
    embeddings = {
        id(weight)
        for module in (model.get_input_embeddings(), model.get_output_embeddings())
        if module is not None
        for weight in module.parameters()
    }
    weights = sum(p.numel() for p in model.parameters() if id(p) not in embeddings)
    return float(2 * width * config.num_hidden_layers / weights)
