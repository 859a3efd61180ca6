"""Log-probabilities and entropies, computed in chunks with the model's own head."""

from __future__ import annotations

import pytest
import torch

from air.train.model.logprobs import token_statistics
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
