"""Training on token trees gives the loss and the gradients of training on each sample alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from air.train.algorithms.losses.base import LossInputs, TokenLosses
from air.train.algorithms.losses.default import default_loss
from air.train.algorithms.losses.ppo_clip import ppo_clip_loss
from air.train.config.loss_options import DefaultLossConfig, PPOClipLossConfig
from air.train.tree.entry_logprobs import entry_statistics, mask_cost
from air.train.tree.pack import pack
from air.train.tree.sample import Sample
from tests.unit.train import families
from tests.unit.train.tree.test_build import random_samples

CPU = torch.device("cpu")
TREES = 3
"""The number of random sets of samples for each family, attention and loss."""
Loss = Callable[[LossInputs], TokenLosses]


def dppo(inputs: LossInputs) -> TokenLosses:
    # Bounds so narrow that the mask leaves out unlikely tokens, too, and a large KL term.
    config = DefaultLossConfig(dppo_mask_low=1e-5, dppo_mask_high=1e-5, kl_tau=0.1)
    return default_loss(inputs, config)


def ppo_clip(inputs: LossInputs) -> TokenLosses:
    return ppo_clip_loss(inputs, PPOClipLossConfig(clip_low=0.2, clip_high=0.25))


LOSSES: dict[str, Loss] = {"dppo": dppo, "ppo_clip": ppo_clip}


def gradients(model: Any, loss: Tensor) -> list[Tensor]:
    used = [p for p in model.parameters() if p.requires_grad]
    return [g for g in torch.autograd.grad(loss, used, allow_unused=True) if g is not None]


def logprobs_of(model: Any, sample: Sample) -> Tensor:
    """The log-probabilities of all tokens of a sample but the first, by the plain softmax over all logits."""
    ids = torch.tensor(sample.token_ids)
    logits = model(input_ids=ids[None], use_cache=False).logits[0, :-1]
    every = (logits / sample.temperature).log_softmax(-1)
    return every.gather(-1, ids[1:, None])[:, 0]


@torch.no_grad()
def sampled_nearby(model: Any, sample: Sample, draw: random.Random) -> Sample:
    """This sample as if a model had sampled it whose probabilities are up to 1.8 times as large or small."""
    moved = [p + draw.uniform(-0.6, 0.6) for p in logprobs_of(model, sample).tolist()]
    return replace(sample, logprobs=[0.0, *(min(p, 0.0) for p in moved)])


def dense(model: Any, samples: list[Sample], loss: Loss) -> tuple[TokenLosses, list[Tensor]]:
    """The loss of every sample computed alone, and the gradients of its sum."""
    columns: list[tuple[Tensor, Tensor, Tensor]] = []
    for sample in samples:
        mask = torch.tensor(sample.mask)[1:]
        sampled = torch.tensor(sample.logprobs)[1:]
        advantages = torch.tensor(sample.advantages())[1:]
        logprobs = logprobs_of(model, sample)
        columns.append((logprobs[mask], sampled[mask], advantages[mask]))
    result = loss(LossInputs(*(torch.cat(column) for column in zip(*columns, strict=True))))
    return result, gradients(model, result.loss.sum())


def as_trees(
    model: Any, samples: list[Sample], loss: Loss, limit: int
) -> tuple[Tensor, list[Tensor]]:
    """The sum of the losses computed on token trees of at most `limit` tokens, and its gradients."""
    total = torch.zeros(())
    for batch in pack(samples, limit, CPU, mask_cost=mask_cost(model)):
        logprobs, entries = entry_statistics(model, batch).logprobs, batch.entries
        inputs = LossInputs(logprobs, entries.sampler_logprobs, entries.advantages)
        total = total + loss(inputs).loss.sum()
    return total, gradients(model, total)


def cases() -> Iterator[Any]:
    """Every family, attention and loss with several trees. By default only a part, in which each family has
    both losses and each attention, and each attention has both losses."""
    names, losses = [*families.FAMILIES, *families.CHANGED_LOGITS], list(LOSSES)
    for family, attention in families.pairs(names):
        alone = len(families.pairs([family])) == 1
        place = names.index(family) + (attention == "eager")
        for loss, tree in product(losses, range(TREES)):
            default = tree == 0 and (alone or loss == losses[place % 2])
            marks = () if default else pytest.mark.full
            yield pytest.param(family, attention, loss, tree, marks=marks)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "attention", "loss", "tree"), cases())
def test_loss_and_gradients_are_those_of_the_dense_form(
    family: str, attention: str, loss: str, tree: int
) -> None:
    # Smaller weights than in other tests: rounding is a tenth of the bound, wrong masks are far above it.
    model = families.model(family, attention, spread=0.1)
    draw = random.Random(f"{family} {attention} {loss} {tree}")
    samples = [sampled_nearby(model, one, draw) for one in random_samples(draw, 12)]
    expected, expected_slopes = dense(model, samples, LOSSES[loss])
    assert expected.left_out.any()
    assert not expected.left_out.all()
    scale = expected.loss.abs().sum()  # the sum itself may be near 0
    norm = torch.stack([slope.norm() for slope in expected_slopes]).norm()
    for limit in (40, 1000):
        value, slopes = as_trees(model, samples, LOSSES[loss], limit)
        assert (value - expected.loss.sum()).abs() <= 1e-5 * scale
        pairs = zip(slopes, expected_slopes, strict=True)
        assert torch.stack([(a - b).norm() for a, b in pairs]).norm() <= 1e-5 * norm


def test_a_token_that_samples_share_counts_for_each_of_them() -> None:
    # The first is clipped (its ratio rose far), the second is not: they cannot be summed before the loss.
    model = families.model("qwen3")
    ids = [5, 6, 7]
    samples = [
        Sample(ids, [False, False, True], [0.0, 0.0, then], 1.0, 1.0) for then in (-30.0, -0.01)
    ]
    expected, slopes = dense(model, samples, ppo_clip)
    value, found = as_trees(model, samples, ppo_clip, 1000)
    assert value.item() == pytest.approx(expected.loss.sum().item(), rel=1e-5)
    assert all(
        torch.allclose(a, b, rtol=1e-4, atol=1e-7) for a, b in zip(found, slopes, strict=True)
    )
