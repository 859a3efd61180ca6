"""Which models the decoder of the Llama family takes, and that it predicts as transformers does."""

from __future__ import annotations

import pytest
import torch

from air.train.config.model_options import LoRAConfig
from air.train.model import adapters
from air.train.serving.kv_cache import RowCache
from air.train.serving.llama_decoder import LlamaDecoder, copied_bytes
from air.train.serving.row_attention import bias_of
from tests.unit.train import families


class Rounded(torch.nn.Linear):
    """A linear layer with a forward pass of its own, as quantised models have."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs.round())


@pytest.mark.parametrize("family", sorted(families.FAMILIES.keys() - {"gemma2", "gptj", "codegen"}))
def test_only_what_is_known_is_taken(family: str) -> None:
    """Not for the families that have only eager attention."""
    taken = LlamaDecoder.of(families.model(family)) is not None
    assert taken == (family in {"llama", "qwen2", "qwen3"})


def test_what_was_put_on_a_model_is_not_lost() -> None:
    assert LlamaDecoder.of(families.model("llama", "eager")) is None
    assert LlamaDecoder.of(families.model("llama").bfloat16()) is None
    hooked = families.model("llama")
    hooked.model.layers[1].mlp.register_forward_hook(lambda *_: None)
    assert LlamaDecoder.of(hooked) is None
    patched = families.model("llama")
    patched.model.norm.forward = lambda hidden: hidden
    assert LlamaDecoder.of(patched) is None
    quantised = families.model("llama")
    quantised.model.layers[0].mlp.up_proj.__class__ = Rounded
    assert LlamaDecoder.of(quantised) is None
    adapted = families.model("llama")
    adapters.add(adapted, LoRAConfig(rank=2, alpha=4), "tiny")
    assert LlamaDecoder.of(adapted) is None


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@torch.no_grad()
def test_logits_are_those_of_transformers(family: str) -> None:
    """Two rows of 5 tokens, token by token, beside the whole rows at once."""
    model = families.model(family)
    for name, values in model.named_parameters():
        if name.endswith("bias"):
            values.normal_()
    decoder, cache = LlamaDecoder.of(model), RowCache(2)
    assert decoder is not None
    ids = torch.arange(3, 13).view(2, 5)
    wanted = model(input_ids=ids).logits
    for place in range(5):
        cache.aim(0, [place] * 2, [1] * 2, "cpu", in_parts=True)
        columns = cache.positions("cpu")
        visible = (columns <= place)[:, None, None]
        positions = torch.full((2, 1), place)
        found = decoder.logits(ids[:, place : place + 1], positions, cache, bias_of(visible))
        assert torch.allclose(found, wanted[:, place], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("in_parts", [False, True])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@torch.no_grad()
def test_several_tokens_at_once(family: str, in_parts: bool) -> None:
    """Rows of 6 and 4 tokens, padded at the beginning, then 3 tokens more; the weights change between."""
    model = families.model(family)
    decoder = LlamaDecoder.of(model)
    assert decoder is not None
    ids = torch.arange(3, 21).view(2, 9)
    for released in (True, False, False):
        wanted, cache = model(input_ids=ids).logits, RowCache(2)
        for starts, counts in (([0, 0], [6, 4]), ([6, 4], [3, 3])):
            width, ends = max(counts), torch.tensor(starts) + torch.tensor(counts)
            positions = (ends[:, None] + torch.arange(-width, 0)).clamp(min=0)
            cache.aim(0, starts, counts, "cpu", in_parts=in_parts)
            columns = cache.positions("cpu")
            visible = (columns[:, None] <= positions[..., None])[:, None]
            found = decoder.logits(ids.gather(1, positions), positions, cache, bias_of(visible))
            expected = torch.stack([wanted[0, ends[0] - 1], wanted[1, ends[1] - 1]])
            assert torch.allclose(found, expected, rtol=1e-4, atol=1e-4)
        if released:
            decoder.release()
        for values in model.parameters():
            values.mul_(1.1)


def test_the_copies_are_those_of_all_linear_weights() -> None:
    model = families.model("llama")
    inner = [
        part.weight.numel()
        for name, part in model.named_modules()
        if name.endswith(("_proj", "lm_head"))
    ]
    assert copied_bytes(model) == 4 * sum(inner)
    assert copied_bytes(families.model("llama", "eager")) == 0  # no decoder
    assert copied_bytes(families.model("llama").bfloat16()) == 0
