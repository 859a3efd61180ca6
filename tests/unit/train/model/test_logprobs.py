"""Log-probabilities and entropies, computed in chunks with the model's own head."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import Gemma2Config, Gemma2ForCausalLM

from air.train.model.logprobs import ReferencePredictions, chosen_logprobs, token_statistics
from air.train.model.policy import Policy


def test_token_statistics_against_the_plain_softmax(small: Policy) -> None:
    ids = torch.tensor([[5, 6, 7, 8], [9, 10, 0, 0]])
    with torch.no_grad():
        logprobs, entropy = token_statistics(small.model, ids, torch.tensor([1.0, 0.5]))
        logits = small.model(input_ids=ids[1:, :2]).logits[0, 0] / 0.5
    probabilities = logits.softmax(-1)
    assert logprobs.shape == entropy.shape == (2, 4)
    assert logprobs[:, 0].tolist() == [0.0, 0.0]
    assert logprobs[1, 1].item() == pytest.approx(probabilities[10].log().item(), abs=1e-5)
    expected = -(probabilities * probabilities.log()).sum().item()
    assert entropy[1, 1].item() == pytest.approx(expected, abs=1e-4)


class Largest(TorchDispatchMode):
    """Notes the most elements of any tensor that an operation makes, apart from the given shapes."""

    def __init__(self, apart: set[torch.Size]) -> None:
        super().__init__()
        self.elements, self.apart = 0, apart

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for each in result if isinstance(result, tuple | list) else [result]:
            if isinstance(each, torch.Tensor) and each.shape not in self.apart:
                self.elements = max(self.elements, each.numel())
        return result


def gradients_in_chunks(
    model: Any, chunk_logits: int
) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor], int]:
    torch.manual_seed(1)
    hidden = torch.randn(37, 16, requires_grad=True)
    temperature = torch.linspace(0.5, 1.5, 37)
    rows = torch.randint(37, (60,)).sort().values
    ids = torch.randint(1000, (60,))
    weights = [p for p in model.parameters() if p.shape[0] == 1000]
    transposed = {torch.Size((16, 1000)), torch.Size((1000, 16))}
    with Largest(transposed) as largest:
        logprobs, entropy, _ = chosen_logprobs(
            model, hidden, temperature, rows, ids, chunk_logits=chunk_logits
        )
        (logprobs * torch.linspace(-1, 1, 60)).sum().backward()
    gradients = [hidden.grad, *(w.grad for w in weights)]
    model.zero_grad()
    return logprobs.detach(), entropy, [g for g in gradients if g is not None], largest.elements


def test_the_logits_of_all_tokens_are_never_held_at_once() -> None:
    # A soft cap, scaled logits and a temperature for each row: all of it in each chunk.
    config = Gemma2Config(
        vocab_size=1000, hidden_size=16, intermediate_size=16, num_hidden_layers=1, head_dim=8,
        num_attention_heads=2, num_key_value_heads=1, final_logit_softcapping=2.0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = Gemma2ForCausalLM(config).eval()
    whole = gradients_in_chunks(model, 10**9)
    chunked = gradients_in_chunks(model, 5000)
    assert whole[3] >= 37 * 1000
    assert chunked[3] <= 5000
    for a, b in zip(whole[:2], chunked[:2], strict=True):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-6)
    assert len(whole[2]) == len(chunked[2]) == 2
    for a, b in zip(whole[2], chunked[2], strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("with_reference", [False, True])
@pytest.mark.parametrize("entropy_gradient", [False, True])
def test_gradients_are_those_of_torchs_own_operations(
    entropy_gradient: bool, with_reference: bool
) -> None:
    """Log-probabilities, entropies, divergences and their gradients, with and without that of the entropy;
    with the reference, in chunks of two predictions."""
    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=50, hidden_size=16, intermediate_size=16, num_hidden_layers=1, head_dim=8,
        num_attention_heads=2, num_key_value_heads=1, final_logit_softcapping=5.0,
    )  # fmt: skip
    model = Gemma2ForCausalLM(config).eval()
    model.lm_head.weight.data.normal_()
    hidden = torch.randn(6, 16, requires_grad=True)
    temperature = torch.tensor([1.0, 0.5, 2.0, 1.0, 1.5, 0.7])
    rows, ids = torch.tensor([0, 0, 1, 3, 4, 5]), torch.tensor([7, 7, 3, 49, 0, 12])
    coefficients = torch.linspace(-1, 1, 6)
    other, others_hidden = torch.randn(50, 16), torch.randn(6, 16)
    found = chosen_logprobs(
        model, hidden, temperature, rows, ids, entropy_gradient=entropy_gradient,
        reference=ReferencePredictions(others_hidden, lambda some: some @ other.T)
        if with_reference
        else None,
        chunk_logits=2 * 50 if with_reference else 1000,
    )  # fmt: skip
    cap = config.final_logit_softcapping
    logits = cap * torch.tanh(model.lm_head(hidden) / cap)
    every = (logits / temperature[:, None]).log_softmax(-1)
    theirs = (others_hidden @ other.T / temperature[:, None]).log_softmax(-1)
    divergence = (every.exp() * (every - theirs)).sum(-1)
    wanted = every[rows, ids], -(every.exp() * every).sum(-1), divergence
    used = wanted if with_reference else wanted[:2]
    assert len(found.divergence) == (6 if with_reference else 0)
    for a, b in zip(found, used, strict=False):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-6)
    assert found.entropy.requires_grad == entropy_gradient
    slopes = []
    for logprobs, entropy, divergence in (found, wanted):
        loss = (coefficients * logprobs).sum()
        if entropy_gradient:
            loss = loss + (coefficients * entropy).sum()
        if with_reference:
            loss = loss + (coefficients.flip(0) * divergence).sum()
        slopes.append(torch.autograd.grad(loss, [hidden, model.lm_head.weight], retain_graph=True))
    for a, b in zip(*slopes, strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-5)
