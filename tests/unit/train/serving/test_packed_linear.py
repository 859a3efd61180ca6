"""Packed linear layers: the outputs of the modules, from copies of their weights."""

from __future__ import annotations

import pytest
import torch

from air.train.serving.packed_linear import PackedLinear


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 8, 70])
@torch.inference_mode()
def test_outputs_are_those_of_the_modules(rows: int, bias: bool) -> None:
    torch.manual_seed(0)
    modules = [torch.nn.Linear(48, out, bias=bias) for out in (40, 17, 17)]
    packed = PackedLinear(*modules)
    for shape in ((rows, 48), (2, rows, 48)):
        inputs = torch.randn(shape)
        wanted = torch.cat([module(inputs) for module in modules], -1)
        assert torch.allclose(packed(inputs), wanted, rtol=1e-5, atol=1e-5)


@torch.inference_mode()
@pytest.mark.parametrize("count", [1, 2])
def test_weights_are_copied(count: int) -> None:
    modules = [torch.nn.Linear(8, 8, bias=True) for _ in range(count)]
    packed, inputs = PackedLinear(*modules), torch.randn(3, 8)
    before = packed(inputs)
    for module in modules:
        module.weight.zero_()
        module.bias.zero_()
    assert torch.equal(packed(inputs), before)
