"""Computes log-probabilities and entropies of tokens with a causal language model, in bounded memory.

The logits of all tokens, [tokens, vocabulary], never exist in memory at once. The model's backbone computes
the hidden states, and the model's own head computes the logits from them in chunks; the backward pass
computes the chunks again. Because the model's own head is used, everything that a model family does to its
logits (scaling, a bias, a soft cap) is included.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_outputs import BaseModelOutputWithPast

CHUNK_LOGITS = 2**24
"""The largest number of logits (positions · vocabulary) that are computed at once. In float32, they take 64
MiB."""


def at_least_float32(values: Tensor) -> Tensor:
    """Converts values of a lower precision to float32. Returns float32 and float64 values unchanged."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def hidden_states(
    model: Any,
    input_ids: Tensor,
    position_ids: Tensor | None = None,
    attention_mask: Tensor | dict[str, Tensor] | None = None,
) -> Tensor:
    """Runs the backbone of a causal language model on `input_ids` [B, T], and returns its last hidden states
    [B, T, hidden]. `position_ids` is [B, T]; None: 0, 1, 2, … in each row. `attention_mask` is a result of
    `attention.attention_mask`; None: attention is causal, so every token attends to itself and all earlier
    tokens of its row."""
    arguments: dict[str, Any] = {"input_ids": input_ids, "use_cache": False}
    if position_ids is not None:
        arguments["position_ids"] = position_ids
    if attention_mask is not None:
        arguments["attention_mask"] = attention_mask
    hidden: Tensor = _without_adapters(model).base_model(**arguments).last_hidden_state
    return hidden


class Predictions(NamedTuple):
    """Statistics, in nats, of R predictions (distributions over the vocabulary) and of the N tokens whose
    log-probabilities are read from these predictions."""

    logprobs: Tensor
    """[N]: the log-probability of each of the N tokens, in nats."""
    entropy: Tensor
    """[R]: the entropy of each of the R predicted distributions, in nats."""
    divergence: Tensor
    """[R]: the Kullback-Leibler divergence of each prediction from that of the reference model. Empty if
    there is no reference."""


@dataclass(frozen=True)
class ReferencePredictions:
    """What is needed to compute the reference model's R predictions (distributions over the vocabulary), at
    the same positions as the model's."""

    hidden: Tensor
    """[R, hidden]: the reference model's last hidden states."""
    logits: Callable[[Tensor], Tensor]
    """A function that computes the reference model's logits [r, vocabulary] from r rows of `hidden`, without
    gradients."""


def chosen_logprobs(
    model: Any,
    hidden: Tensor,
    temperature: Tensor,
    rows: Tensor,
    token_ids: Tensor,
    *,
    entropy_gradient: bool = False,
    reference: ReferencePredictions | None = None,
    chunk_logits: int = CHUNK_LOGITS,
) -> Predictions:
    """Computes R predictions (distributions over the vocabulary). Returns the log-probability of each of N
    tokens and the entropy of each prediction. With `reference`, also returns the KL divergence of each
    prediction from that of the reference model, at the same temperature.

    `hidden` [R, hidden] has the hidden state of each prediction, and `temperature` [R] divides its logits.
    `token_ids` [N] are the tokens, and `rows` [N] has the index of the prediction for each token, in
    ascending order. The softmax is computed in float32, or in float64 for float64 logits. The entropy has a
    gradient only with `entropy_gradient`. At most `chunk_logits` logits (but at least one row) are computed
    at once. The backward pass computes the logits again, unless all fit into one chunk.
    """
    head = _head(_without_adapters(model))
    size = max(1, chunk_logits // int(model.config.get_text_config().vocab_size))
    chunks: list[tuple[Tensor, ...]] = []
    for start in range(0, len(hidden), size):
        end = min(start + size, len(hidden))
        first, last = torch.searchsorted(
            rows, torch.tensor([start, end], device=rows.device)
        ).tolist()
        arguments = (
            head, hidden[start:end], temperature[start:end],
            rows[first:last] - start, token_ids[first:last], entropy_gradient,
            None if reference is None else reference.logits,
            None if reference is None else reference.hidden[start:end],
        )  # fmt: skip
        if size >= len(hidden):
            chunks.append(_chunk(*arguments))
        else:
            chunks.append(
                checkpoint(_chunk, *arguments, use_reentrant=False, preserve_rng_state=False)
            )
    if not chunks:
        return Predictions(*(hidden.new_zeros(0, dtype=torch.float32) for _ in range(3)))
    return Predictions(*(torch.cat(parts) for parts in zip(*chunks, strict=True)))


@torch.no_grad()
def head_logits(model: Any, hidden: Tensor) -> Tensor:
    """Returns the logits [R, vocabulary] that the model's head computes from the last hidden states `hidden`
    [R, hidden], without gradients."""
    logits: Tensor = _head(_without_adapters(model))(
        inputs_embeds=hidden[None], use_cache=False
    ).logits[0]
    return logits


def token_statistics(
    model: Any, input_ids: Tensor, temperature: float | Tensor = 1.0
) -> tuple[Tensor, Tensor]:
    """Runs a causal language model, and returns two tensors [B, T], in nats: the log-probability of each
    token, and the entropy of the distribution that predicted the token.

    `input_ids` is [B, T], padded on the right, so no attention mask is needed. `temperature`, one number or a
    tensor [B], divides the logits. The elements at position t belong to token t, given all earlier tokens.
    They are 0 at position 0, because nothing predicts the first token. The entropy has no gradient.
    """
    hidden = hidden_states(model, input_ids)[:, :-1]
    count, length, _ = hidden.shape
    each = torch.as_tensor(temperature, dtype=torch.float32, device=hidden.device)
    chosen, entropy, _ = chosen_logprobs(
        model,
        hidden.flatten(0, 1),
        each.expand(count).repeat_interleave(length),
        torch.arange(count * length, device=hidden.device),
        input_ids[:, 1:].flatten(),
    )
    first = chosen.new_zeros((count, 1))
    return (
        torch.cat([first, chosen.view(count, length)], 1),
        torch.cat([first, entropy.view(count, length)], 1),
    )


def token_logprobs(model: Any, input_ids: Tensor, temperature: float | Tensor = 1.0) -> Tensor:
    """Runs a causal language model, and returns a tensor [B, T]: the log-probability, in nats, of each token
    of `input_ids` [B, T], given all earlier tokens of its row. It is 0 at position 0. `input_ids` must be
    padded on the right. `temperature`, one number or a tensor [B], divides the logits."""
    return token_statistics(model, input_ids, temperature)[0]


def _chunk(
    head: Any,
    hidden: Tensor,
    temperature: Tensor,
    rows: Tensor,
    token_ids: Tensor,
    entropy_gradient: bool,
    reference_logits: Callable[[Tensor], Tensor] | None,
    reference_hidden: Tensor | None,
) -> tuple[Tensor, ...]:
    reference = None
    if reference_logits is not None:
        reference = reference_logits(reference_hidden)  # type: ignore[arg-type]
    logits = head(inputs_embeds=hidden[None], use_cache=False).logits[0]
    statistics: tuple[Tensor, ...] = _Statistics.apply(  # type: ignore[no-untyped-call]
        logits, temperature, rows, token_ids, entropy_gradient, reference
    )
    return statistics


class _Statistics(torch.autograd.Function):
    """A torch function with a gradient of its own. From `logits` [R, vocabulary], it computes the
    log-probabilities of tokens, and the entropy and the KL divergence of each of the R predictions. The other
    arguments are those that `chosen_logprobs` takes (the temperatures, and the tokens with the index of each
    token's prediction); `reference` has the logits of the reference model.

    Let p be the model's probabilities over the vocabulary, and q the reference's. The gradients with respect
    to the logits, before division by the temperature, are: for the log-probability of a token t, 1 at t (0
    elsewhere) minus p; for the entropy H, -p (log p + H); for the divergence D, p (log p - log q - D).
    Torch's own operations would need twice as many tensors of the size of `logits`.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        temperature: Tensor,
        rows: Tensor,
        token_ids: Tensor,
        entropy_gradient: bool,
        reference: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        logprobs = _log_softmax(logits, temperature)
        probabilities = logprobs.exp()[:, None]
        entropy = -torch.bmm(probabilities, logprobs[:, :, None])[:, 0, 0]
        divergence, others = logprobs.new_zeros(0), None
        if reference is not None:
            others = _log_softmax(reference, temperature)
            # The sum of the differences, not the difference of the sums, because both models are nearly
            # equal.
            divergence = torch.bmm(probabilities, (logprobs - others)[:, :, None])[:, 0, 0]
        ctx.save_for_backward(logprobs, entropy, temperature, rows, token_ids, divergence, others)
        ctx.dtype = logits.dtype
        constant = [] if entropy_gradient else [entropy]
        ctx.mark_non_differentiable(*constant, *([divergence] if reference is None else []))
        ctx.entropy_gradient = entropy_gradient
        return logprobs[rows, token_ids], entropy, divergence

    @staticmethod
    def backward(
        ctx: Any, of_chosen: Tensor, of_entropy: Tensor, of_divergence: Tensor
    ) -> tuple[Tensor | None, ...]:
        logprobs, entropy, temperature, rows, token_ids, divergence, others = ctx.saved_tensors
        factor = -torch.zeros_like(entropy).index_add_(0, rows, of_chosen)[:, None]
        if ctx.entropy_gradient:
            factor = factor - of_entropy[:, None] * (logprobs + entropy[:, None])
        if others is not None:
            distance = logprobs - others - divergence[:, None]
            factor = factor + of_divergence[:, None] * distance
        gradient = logprobs.exp()
        gradient *= factor
        gradient.index_put_((rows, token_ids), of_chosen, accumulate=True)
        gradient /= temperature[:, None]
        return gradient.to(ctx.dtype), None, None, None, None, None


def _log_softmax(logits: Tensor, temperature: Tensor) -> Tensor:
    scaled = at_least_float32(logits)
    if bool((temperature != 1).any()):
        scaled = scaled / temperature[:, None]
    return scaled.log_softmax(-1)


class _BackboneOutput(BaseModelOutputWithPast):
    """The output of `_Passthrough`, in place of the output class that a model family has for its backbone.
    Each family reads other fields of the output, so a field that was not set is None and raises no
    AttributeError."""

    def __getattr__(self, name: str) -> None:
        return None


class _Passthrough(nn.Module):
    """A module that replaces a model's backbone: it returns its argument `inputs_embeds` as the last hidden
    states."""

    def forward(self, *args: Any, inputs_embeds: Tensor, **kwargs: Any) -> BaseModelOutputWithPast:
        return _BackboneOutput(last_hidden_state=inputs_embeds)

    @property
    def decoder(self) -> _Passthrough:
        """This module itself. Needed for OPT models, which call the decoder of their backbone, not the
        backbone."""
        return self


def _head(model: Any) -> Any:
    """Returns a copy of `model` that shares its weights but has no backbone. The copy computes logits from
    last hidden states, which are passed as `inputs_embeds`."""
    head = copy.copy(model)
    head._modules = dict(model._modules)
    head._modules[model.base_model_prefix] = _Passthrough()
    return head


def _without_adapters(model: Any) -> Any:
    """Returns the transformers model inside a wrapper of the package `peft`, or `model` itself if it has no
    such wrapper."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model
