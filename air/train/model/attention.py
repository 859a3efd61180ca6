"""Builds attention masks in the form that a model's attention implementation needs.

The sampler and the trainer decide which tokens are visible to a token: all earlier tokens of a request, or
all preceding tokens of its samples in a token tree (a prefix tree of training samples). `attention_mask`
converts this boolean mask to the `attention_mask` argument of a transformers model. SDPA attention (torch's
`scaled_dot_product_attention`) takes a boolean mask. Eager attention adds the mask to its scores, so it must
get numbers: it would treat a boolean mask as 0 and 1, and compute wrong results without an error. In layers
with a sliding window, a token attends only to the last tokens. Here the window is applied to token positions
and not to columns, so it is also exact in token trees and key-value caches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from air.errors import UsageError

FULL_ATTENTION = "full_attention"
SLIDING_ATTENTION = "sliding_attention"
_ALIBI = frozenset({"bloom", "falcon", "mpt"})
"""Model types that compute positions from the attention mask and ignore `position_ids`, unless their config
says `alibi: false`."""


def attention_mask(
    model: Any,
    visible: Tensor,
    positions: Tensor | None = None,
    key_positions: Tensor | None = None,
) -> Tensor | dict[str, Tensor]:
    """Returns the argument `attention_mask` for a call of `model`.

    `visible` is a boolean mask [B, 1, Q, K]: true if query q may attend to key k. Each query must attend to
    at least one key (a padding token to itself), because a softmax over no key is undefined. `positions` [B,
    Q] and `key_positions` [B, K] have the position ids of queries and keys; the first dimension of each may
    be 1. If `key_positions` is None, keys and queries are the same tokens. Positions are needed only for
    models with a sliding window (see `windows`).

    Returns one tensor if all layers need the same mask, otherwise a dict of tensors by type of layer.
    """
    config = model.config.get_text_config()
    spans = windows(config)
    masks = {}
    for kind, window in spans.items():
        mask = visible
        if window is not None:
            mask = mask & _within(window, positions, key_positions)
        masks[kind] = _as_read(mask, config._attn_implementation, model.dtype)
    return masks[FULL_ATTENTION] if set(masks) == {FULL_ATTENTION} else _shaped(config, masks)


def windows(config: Any) -> dict[str, int | None]:
    """Returns a dict from each type of attention layer in a text model's config to the size of its sliding
    window in tokens (None: no window). Raises KeyError for a type of layer other than full and sliding-window
    attention."""
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds:
        lengths = {FULL_ATTENTION: None, SLIDING_ATTENTION: window}
        return {kind: lengths[kind] for kind in sorted(set(kinds))}
    if window is not None:  # the window is the same in every layer, as in Mistral and Phi 3
        return {SLIDING_ATTENTION: int(window)}
    return {FULL_ATTENTION: None}


def check_supported(config: Any, name: str) -> None:
    """Raises UsageError, which names the model `name`, if the model also reads images or sound, or if masks
    and position ids cannot describe its attention: if it has other layers than full or sliding-window
    attention, computes positions from the mask (ALiBi), or has rotary positions that depend on the sequence's
    length. `check_length` makes one further check."""
    if config.get_text_config() is not config:
        raise UsageError(
            f"is a model of more than text (type {config.model_type})",
            where=name,
            remedy="the embedded engine trains language models alone: choose a text-only model, or save the "
            "language model of this one to a folder (such as with Gemma3ForCausalLM for gemma3)",
        )
    kinds = {*(getattr(config, "layer_types", None) or ()), *_local_layers(config)}
    problem = ""
    if others := kinds - {FULL_ATTENTION, SLIDING_ATTENTION}:
        problem = f"has layers of kind {', '.join(sorted(others))}"
    elif config.model_type in _ALIBI and getattr(config, "alibi", True):
        problem = (
            f"computes positions from the prompt's mask (ALiBi, model type {config.model_type})"
        )
    elif any("dynamic" in rope["rope_type"] for rope in _ropes(config)):
        problem = "has rotary positions that depend on the sequence's length (rope_type dynamic)"
    if problem:
        raise UsageError(
            problem,
            where=name,
            remedy="the embedded engine trains models whose attention takes any mask; "
            "choose another model, or use prime-rl with vLLM",
        )


def check_length(config: Any, name: str, tokens: int, key: str) -> None:
    """Raises UsageError if the model's rotary positions are of the type `longrope` and sequences of `tokens`
    tokens exceed the original context length. With `longrope`, one such sequence changes the positions of all
    sequences in its batch. The error names the model `name` and `key`, the setting that limits the length of
    sequences."""
    config = config.get_text_config()
    for rope in _ropes(config):
        original = rope.get("original_max_position_embeddings") or getattr(
            config, "original_max_position_embeddings", None
        )
        if rope["rope_type"] == "longrope" and original and tokens > original:
            raise UsageError(
                f"the rotary positions of {name} change beyond {original} tokens (rope_type longrope)",
                where=key,
                remedy=f"set it to at most {original}, or choose another model",
            )


def _ropes(config: Any) -> list[Mapping[str, Any]]:
    """Returns the model's settings of rotary position embeddings: one mapping for all layers, or one for each
    type of layer."""
    settings = getattr(config, "rope_parameters", None) or {}
    parts = [settings, *settings.values()]
    return [part for part in parts if isinstance(part, Mapping) and "rope_type" in part]


def _local_layers(config: Any) -> set[str]:
    """Returns {"local"} if the model has local attention layers (as GPT-Neo does), otherwise an empty set.
    Such layers are not supported, because their window counts columns of the mask, not token positions."""
    return {"local"} & set(getattr(config, "attention_layers", None) or ())


def _within(window: int, positions: Tensor | None, key_positions: Tensor | None) -> Tensor:
    if positions is None:
        raise ValueError("a model with a sliding window needs `positions`")
    keys = positions if key_positions is None else key_positions
    return (keys[:, None, None, :] > positions[:, None, :, None] - window).expand(
        -1, 1, positions.shape[1], keys.shape[1]
    )


def _as_read(mask: Tensor, implementation: str, dtype: torch.dtype) -> Tensor:
    if implementation == "sdpa":
        return mask
    lowest = torch.finfo(dtype).min  # not -inf: -inf minus -inf is undefined
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, lowest)


def _shaped(config: Any, masks: Mapping[str, Tensor]) -> Tensor | dict[str, Tensor]:
    """Returns the masks in the form that the model takes: a dict by type of layer if the config lists the
    types of the layers, otherwise the one mask that all layers use, which `masks` has under the key of
    sliding-window attention."""
    if not getattr(config, "layer_types", None):
        return masks[SLIDING_ATTENTION]
    return dict(masks)
