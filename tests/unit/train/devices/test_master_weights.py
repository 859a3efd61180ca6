from __future__ import annotations

import pytest
import torch

from air.errors import InfrastructureError, UsageError
from air.train.config.model_options import AdamWConfig, SGDConfig
from air.train.devices.master_weights import MasterWeights
from air.train.model.optimizer import optimizer, restore, update


def pushed(weights: torch.nn.Parameter, config: SGDConfig | AdamWConfig, times: int) -> None:
    stepper = optimizer([weights], config)
    for _ in range(times):
        (weights.sum()).backward()  # type: ignore[no-untyped-call]
        update(stepper, [weights], config)


def test_small_updates_add_up_instead_of_being_lost() -> None:
    # Near 1, bfloat16 numbers are 2**-8 = 0.0039 apart (below 1; above it 2**-7). 64 updates of 1e-4 make
    # 0.0064, one and a half such distances; each alone is rounded away.
    config = SGDConfig(lr=1e-4, weight_decay=0, momentum=0, max_norm=None)
    kept = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    pushed(kept, config, 64)
    assert kept.dtype == torch.bfloat16
    assert kept.tolist() == [1 - 2 * 2**-8] * 3  # 0.9936 rounds to 0.9921875
    lost = torch.ones(3, dtype=torch.bfloat16)
    for _ in range(64):
        lost -= 1e-4
    assert lost.tolist() == [1.0] * 3


def test_updates_equal_those_in_float32() -> None:
    torch.manual_seed(0)
    start = torch.randn(20)
    config = AdamWConfig(lr=1e-3, max_norm=1.0)
    exact = torch.nn.Parameter(start.bfloat16().float())
    rounded = torch.nn.Parameter(start.bfloat16())
    pushed(exact, config, 5)
    pushed(rounded, config, 5)
    assert rounded.equal(exact.detach().bfloat16())


def test_gradients_of_micro_batches_are_summed_in_float32() -> None:
    weights = torch.nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    config = SGDConfig(lr=1.0, weight_decay=0, momentum=0, max_norm=None)
    stepper = optimizer([weights], config)
    assert isinstance(stepper, MasterWeights)
    for factor in (1.0, 1 / 512, 1 / 512):  # each too small to be added to 1 in bfloat16
        (weights * factor).sum().backward()  # type: ignore[no-untyped-call]
    assert update(stepper, [weights], config) == 1 + 2 / 512
    assert weights.grad is None


def test_state_goes_on_exactly() -> None:
    config = AdamWConfig(lr=1e-4)
    torch.manual_seed(1)
    start = torch.randn(8).bfloat16()
    first, second = (torch.nn.Parameter(start.clone()) for _ in "12")
    one = optimizer([first], config)
    (first**2).sum().backward()
    update(one, [first], config)
    two = optimizer([second], config)
    two.load_state_dict(one.state_dict())
    for weights, stepper in ((first, one), (second, two)):
        (weights**2).sum().backward()
        update(stepper, [weights], config)
    assert isinstance(one, MasterWeights)
    assert isinstance(two, MasterWeights)
    assert one.masters[0].equal(two.masters[0])
    plain = optimizer([torch.nn.Parameter(torch.ones(8))], config)
    with pytest.raises(UsageError, match=r"no float32 copies.*dtype = \"float32\""):
        two.load_state_dict(plain.state_dict())
    with pytest.raises(UsageError, match=r"trained in bfloat16.*dtype = \"bfloat16\""):
        restore(plain, two.state_dict())
    restore(two, one.state_dict())


def test_infinite_gradients_change_nothing() -> None:
    weights = torch.nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    stepper = optimizer([weights], AdamWConfig())
    (weights * float("inf")).sum().backward()
    with pytest.raises(InfrastructureError, match="not finite"):
        update(stepper, [weights], AdamWConfig())
    assert weights.item() == 1.0


def test_a_model_without_trained_weights_is_refused() -> None:
    frozen = torch.nn.Parameter(torch.ones(1), requires_grad=False)
    with pytest.raises(UsageError, match=r"LoRA adapter.*trainer\.model\.lora"):
        optimizer([frozen], AdamWConfig())
