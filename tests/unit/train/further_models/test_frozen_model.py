from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from air.errors import ConfigError
from air.train.config.model_options import LoRAConfig
from air.train.further_models.frozen_model import FrozenModel, WithoutAdapter, check_same_tokens
from air.train.model import policy
from air.train.model.policy import Policy
from air.train.tree.sample import Sample


def sample(
    token_ids: list[int], *, mask: list[bool] | None = None, temperature: float = 1.0
) -> Sample:
    """A sample in which all tokens but the first are sampled, or those of `mask`."""
    mask = mask or [place > 0 for place in range(len(token_ids))]
    return Sample(token_ids, mask, [-1.0] * len(token_ids), 0.0, temperature)


def test_scores_are_log_probabilities_in_any_batch(small: Policy) -> None:
    tokens = list(range(10, 40))
    samples = [sample(tokens), sample([5, 6, 7]), sample([*tokens[:20], 99, 98])]
    together = FrozenModel(small, 10_000).score(samples)  # two samples share a prefix
    alone = FrozenModel(small, 1).score(samples)
    assert [len(row) for row in together] == [29, 2, 21]
    for one, other in zip(together, alone, strict=True):
        assert one == pytest.approx(other, abs=1e-4)
    with torch.no_grad():
        logits = small.model(torch.tensor([[5, 6, 7]])).logits[0].double() / 0.5
    expected = logits.log_softmax(-1)
    by_hand = pytest.approx([float(expected[0, 6]), float(expected[1, 7])], abs=1e-4)
    assert FrozenModel(small, 100).score([sample([5, 6, 7], temperature=0.5)]) == [by_hand]
    scorer = FrozenModel(small, 100, temperature=0.5)
    assert scorer.score([sample([5, 6, 7])]) == [by_hand]
    only_last = sample([5, 6, 7], mask=[False, False, True])
    assert scorer.score([only_last]) == [[pytest.approx(float(expected[1, 7]), abs=1e-4)]]
    assert not any(p.requires_grad for p in small.model.parameters())
    assert all(math.isfinite(v) and v <= 0 for row in together for v in row)


def test_the_base_model_of_an_adapter_scores_as_a_model_of_its_own(
    folder: Path, small: Policy
) -> None:
    learner = policy.load(folder, lora=LoRAConfig(rank=2, alpha=4))
    trained = [p for p in learner.model.parameters() if p.requires_grad]
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weights in trained:
            weights.normal_(generator=generator)
    samples = [sample(list(range(10, 40))), sample([5, 6, 7], temperature=0.5)]
    base = WithoutAdapter(learner, 1000)
    assert base.score(samples) == FrozenModel(small, 1000).score(samples)
    assert all(p.requires_grad for p in trained)
    changed = FrozenModel(learner, 1000).score(samples)
    assert abs(changed[0][0] - base.score(samples)[0][0]) > 0.01


def test_another_vocabulary_is_refused(
    small: Policy, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("other") / "model"
    other = policy.load(
        policy.build(folder, ["something else entirely"] * 5, hidden=32, layers=1, vocab=300)
    )
    check_same_tokens(small, small, "key")
    with pytest.raises(ConfigError, match=r"embedded\.reference\.model: .* another vocabulary"):
        check_same_tokens(small, other, "embedded.reference.model")
