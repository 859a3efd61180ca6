from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from air.train.config.further_models_config import ValueModelConfig
from air.train.config.model_options import AdamWConfig
from air.train.further_models.value_model import ValueModel, ValueTarget, statistics, value_loss
from air.train.model import policy as policies
from air.train.model.policy import Policy
from tests.unit.train.further_models.test_frozen_model import sample

TOKENS = list(range(20, 40))


def test_the_loss_by_hand() -> None:
    # V = 1, 2 and 3 with R = 0, 2.5 and 2: errors 1, .25 and 1; half of the sum is 1.125.
    values = torch.tensor([1.0, 2.0, 3.0])
    old, returns = torch.tensor([1.5, 1.0, 3.0]), torch.tensor([0.0, 2.5, 2.0])
    loss, clipped = value_loss(values, old, returns, None)
    assert (float(loss), clipped) == pytest.approx((1.125, 0.0))
    # Clip .2: V becomes 1.3, 1.2 and 3, with the errors 1.69, 1.69 and 1; half of their sum is 2.19.
    loss, clipped = value_loss(values, old, returns, 0.2)
    assert (float(loss), clipped) == pytest.approx((2.19, 2.0))


def test_a_value_that_moved_too_far_towards_its_return_is_not_trained() -> None:
    values = torch.tensor([2.0, 0.2], requires_grad=True)
    old, returns = torch.tensor([1.0, 0.0]), torch.tensor([3.0, 3.0])
    loss, _ = value_loss(values, old, returns, 0.5)
    loss.backward()  # type: ignore[no-untyped-call]
    assert values.grad is not None
    assert values.grad.tolist() == pytest.approx([0.0, 0.2 - 3.0])


def test_statistics_by_hand() -> None:
    # R: mean 2, variance 2/3. R − V = .5, 0 and −.5: variance 1/6. So 1 − 1/4.
    found = statistics([0.5, 2.0, 3.5], [1.0, 2.0, 3.0])
    assert found == pytest.approx(
        {"value_mean": 2.0, "return_mean": 2.0, "value_explained_variance": 0.75}
    )
    assert "value_explained_variance" not in statistics([0.0, 1.0], [1.0, 1.0])


def model(policy: Policy, budget: int = 4096, **keys: object) -> ValueModel:
    config = ValueModelConfig.model_validate({"optim": AdamWConfig(lr=3e-3), **keys})
    return ValueModel(policy, config, budget)


def test_values_are_of_the_tokens_before(small: Policy) -> None:
    values = model(small)
    assert values.values([sample(TOKENS), sample([3, 4])]) == [
        [0.0] * 19,
        [0.0],
    ]  # the head starts at 0
    torch.nn.init.constant_(values.head.weight, 0.1)
    alone = values.values([sample(TOKENS)])[0]
    first, second = values.values([sample(TOKENS), sample([*TOKENS[:10], 99, *TOKENS[11:]])])
    assert first == pytest.approx(alone, abs=1e-4)
    # The samples differ at token 10: values before it, and its own, do not know that.
    assert second[:10] == pytest.approx(first[:10], abs=1e-5)
    assert second[10] != pytest.approx(first[10], abs=1e-4)


def target(values: ValueModel, returns: list[float]) -> ValueTarget:
    trained = sample(TOKENS, mask=[place in (5, 6, 15) for place in range(20)])
    return ValueTarget(trained, values.values([trained])[0], returns)


def test_training_learns_the_returns(small: Policy) -> None:
    values = model(small, epochs=5, clip=None)
    first = values.train([target(values, [1.0, 0.0, -1.0])])
    assert first["value_explained_variance"] == pytest.approx(0.0)  # all values were 0
    assert first["value_mean"] == 0
    for _ in range(5):
        last = values.train([target(values, [1.0, 0.0, -1.0])])
    assert last["value_loss"] < 0.2 * first["value_loss"]
    assert last["value_explained_variance"] > 0.8
    assert values.train([]) == {}


def test_micro_batches_do_not_change_the_update(folder: Path) -> None:
    losses = []
    for budget in (4096, 1):
        values = model(policies.load(folder), budget, epochs=2)
        other = sample(TOKENS[:9], mask=[place == 4 for place in range(9)])
        targets = [target(values, [1.0, 0.0, -1.0]), ValueTarget(other, [0.0], [2.0])]
        losses.append(values.train(targets))
    assert losses[0] == pytest.approx(losses[1], rel=1e-4, abs=1e-6)
    # The first epoch's loss is ½(1 + 0 + 1 + 4)/4 = .75; the second one's is smaller.
    assert 0.375 < losses[0]["value_loss"] < 0.75


def test_a_restored_model_goes_on_exactly(small: Policy, folder: Path) -> None:
    first = model(small)
    first.train([target(first, [1.0, 0.0, -1.0])])
    again = model(policies.load(folder))
    again.load_state_dict(copy.deepcopy(first.state_dict()))  # torch would share the tensors
    reports = [m.train([target(m, [0.5, 0.5, 2.0])]) for m in (first, again)]
    assert reports[0] == reports[1]
    assert first.values([sample(TOKENS)]) == again.values([sample(TOKENS)])
