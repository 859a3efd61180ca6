"""Computes the inputs of a loss from a micro-batch: log-probabilities and entropies of its entries."""

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
    """A model whose predictions are compared with the policy's over the whole vocabulary."""

    def hidden(self, batch: MicroBatch) -> Tensor:
        """Returns the last hidden states of a micro-batch, as `batch_hidden_states` does."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Returns the logits [R, vocabulary] of R of these hidden states, without gradients."""


def entry_statistics(
    model: Any,
    batch: MicroBatch,
    *,
    entropy_gradient: bool = False,
    reference: Reference | None = None,
) -> Predictions:
    """Returns for each of the N entries of a micro-batch the token's log-probability and the entropy of its
    prediction; with `reference`, also the divergence of the prediction from the reference's. All are [N], in
    nats, at the entry's temperature. The entropy has a gradient only with `entropy_gradient`."""
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
    """Returns the last hidden states of a micro-batch, [rows x tokens, hidden], as `Entries` indexes them."""
    mask = None
    if batch.mask is not None:
        mask = attention_mask(model, batch.mask, batch.position_ids)
    return hidden_states(model, batch.input_ids, batch.position_ids, mask).flatten(0, 1)


def mask_cost(model: Any) -> float:
    """Returns the cost of one element of a row's mask, relative to the cost of a token in the rest of the
    backbone. It is 0 if the model's attention skips hidden elements. A token costs two operations per weight;
    a mask element costs four per number in a query."""
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
