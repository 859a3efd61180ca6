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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@torch.inference_mode()
def test_weights_that_cannot_be_packed_are_those_of_the_modules(dtype: torch.dtype) -> None:
    modules = [torch.nn.Linear(8, 8, dtype=dtype) for _ in range(2)]
    packed, inputs = PackedLinear(*modules), torch.randn(3, 8, dtype=dtype)
    modules[0].weight.zero_()
    wanted = torch.cat([module(inputs) for module in modules], -1)
    assert torch.equal(packed(inputs), wanted)
