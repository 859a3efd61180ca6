"""A user's loss, called as prime-rl calls it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from air import train
from air.errors import ConfigError
from air.train.algorithms.losses import total_loss
from air.train.algorithms.losses.base import LossInputs
from air.train.config.loss_options import CustomLossConfig, DefaultLossConfig
from air.train.config.model_options import AdamWConfig
from air.train.loop.trainer import Trainer
from air.train.model.policy import Policy
from air.train.tree.sample import Sample
from tests.unit.train.test_from_python import SETTINGS


@dataclass
class Outputs:
    loss: Any
    metrics: dict[str, torch.Tensor] = field(default_factory=dict)


def by_sample(inputs: Any, scale: float = 1.0) -> Outputs:
    """One ratio for all tokens of a sample."""
    log_ratio = (inputs.trainer_logprobs - inputs.inference_logprobs)[inputs.loss_mask].sum()
    loss = -scale * inputs.advantages[0] * log_ratio.exp()
    return Outputs(loss, {"ratio": log_ratio.exp().detach()})


def as_default(inputs: Any) -> Outputs:
    """prime-rl's default loss without its mask, in prime-rl's names."""
    assert inputs.ref_logprobs is None
    assert inputs.loss_weights is None
    log_ratio = inputs.trainer_logprobs - inputs.inference_logprobs
    each = 1e-3 * log_ratio**2 - inputs.advantages * log_ratio.exp()
    return Outputs((each * inputs.loss_mask).sum())


def no_tensor(inputs: Any) -> Outputs:
    return Outputs(1.0)


def no_metric(inputs: Any) -> Outputs:
    return Outputs(inputs.trainer_logprobs.sum(), {"ratio": 1.0})  # type: ignore[dict-item]


def config(function: Any, **kwargs: Any) -> CustomLossConfig:
    return CustomLossConfig(import_path=f"{__name__}.{function.__name__}", kwargs=kwargs)


def logs(*probabilities: float) -> torch.Tensor:
    return torch.tensor(probabilities).log()


def test_a_loss_of_whole_samples_by_hand() -> None:
    """Sample 0 has the first and the third entry: ratio .6/.5 · .5/.5 = 1.2, with A = 2 and scale .5: -1.2.
    Sample 1: ratio .2/.4 = .5, with A = -1: .25."""
    now, advantages = logs(0.6, 0.2, 0.5).requires_grad_(), torch.tensor([2.0, -1.0, 2.0])
    then, numbers = logs(0.5, 0.4, 0.5), torch.tensor([0, 1, 0])
    inputs = LossInputs(now, then, advantages, samples=numbers)
    losses, sums = total_loss(inputs, torch.zeros(3), config(by_sample, scale=0.5))
    each = losses.detach()
    assert [float(each[numbers == n].sum()) for n in (0, 1)] == pytest.approx([-1.2, 0.25])
    assert float(sums["ratio/mean"]) == pytest.approx(1.7)
    # The derivative of -1.2 = -exp(log ratio) by each log-probability of the sample is -1.2.
    assert torch.autograd.grad(losses.sum(), now)[0].tolist() == pytest.approx([-1.2, 0.25, -1.2])


def test_the_default_loss_as_a_custom_one_trains_the_same(small: Policy) -> None:
    samples = [
        Sample([5, 6, 7, 8], [False, True, True, True], [0.0, -5.9, -6.1, -6.0], 1.0, 1.0),
        Sample([5, 6, 9], [False, False, True], [0.0, 0.0, -6.2], [0.0, 0.0, -0.5], 1.0),
    ]
    before = {name: weight.clone() for name, weight in small.model.state_dict().items()}
    found = []
    for loss in (DefaultLossConfig(), config(as_default)):
        small.model.load_state_dict(before)
        report = Trainer(small, AdamWConfig(lr=1e-3), loss=loss).step(samples)
        found.append((report["loss"], report["grad_norm"], report["entropy"]))
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    small.model.load_state_dict(before)
    report = Trainer(small, AdamWConfig(lr=1e-3), loss=config(by_sample)).step(samples)
    ratios = report["ratio/mean"]
    assert 0 < ratios < 3  # the mean of the two samples' ratios, recorded under prime-rl's name


def test_a_function_that_cannot_be_called_is_named() -> None:
    for loss, words in (
        ({"import_path": "no_such_module.loss"}, "no_such_module"),
        ({"import_path": f"{__name__}.by_sample", "kwargs": {"other": 1}}, "other"),
        ({"import_path": "loss"}, "module:name"),
    ):
        with pytest.raises(ConfigError, match=words):
            train.load(SETTINGS, {"trainer": {"loss": {"type": "custom", **loss}}})


@pytest.mark.parametrize(
    ("function", "words"),
    [(no_tensor, "scalar tensor with a gradient"), (no_metric, "tensors by name, got .*ratio")],
)
def test_what_is_no_tensor_is_refused(function: Any, words: str) -> None:
    now, one = logs(0.5).requires_grad_(), torch.tensor([1.0])
    inputs = LossInputs(now, logs(0.5), one, samples=torch.tensor([0]))
    with pytest.raises(ConfigError, match=words):
        total_loss(inputs, torch.zeros(1), config(function))
