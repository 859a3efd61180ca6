"""Linear layers whose weights are stored in the order in which the processor's matrix product reads them.

A matrix product of a few rows with a large weight spends most of its time on reordering the weight. On a CPU,
torch's oneDNN operations can reorder a weight once and then use it for many products; torch's own compiler
uses them in the same way. Where torch has no such operations, for example on a GPU, an ordinary linear
operation is used. Results differ from those of the original modules only by rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class PackedLinear:
    """One or more linear modules that get the same input, computed together: the output is the concatenation
    of their outputs.

    On a CPU, one matrix product with reordered copies of the weights is computed, so later changes to the
    modules have no effect on this object. Elsewhere, and for weights that are not float32, the modules' own
    weights are used. Either all modules or none must have a bias.
    """

    def __init__(self, *modules: Any) -> None:
        biases = [module.bias.detach() for module in modules if module.bias is not None]
        assert len(biases) in {0, len(modules)}
        self._modules: Sequence[Any] = modules
        self._packed: Tensor | None = None
        self._bias = torch.cat(biases) if biases else None
        if all(can_pack(module.weight) for module in modules):
            weight = torch.cat([module.weight.detach() for module in modules])
            self._packed = torch.ops.mkldnn._reorder_linear_weight(weight)

    def __call__(self, inputs: Tensor) -> Tensor:
        """Returns the concatenated outputs [..., sum of the modules' out_features] for `inputs` [...,
        in_features]."""
        if self._packed is None:
            each = [F.linear(inputs, module.weight, module.bias) for module in self._modules]
            return each[0] if len(each) == 1 else torch.cat(each, -1)
        outputs: Tensor = torch.ops.mkldnn._linear_pointwise(
            inputs, self._packed, self._bias, "none", [], ""
        )
        return outputs


def can_pack(weight: Tensor) -> bool:
    """Returns whether `weight` can be stored in the faster order: it must be a float32 tensor on a CPU, and
    this build of torch must have the operations. They are not part of torch's public interface, so some
    versions may lack them."""
    operations = torch.ops.mkldnn
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and torch._C._has_mkldnn
        and hasattr(operations, "_reorder_linear_weight")
        and hasattr(operations, "_linear_pointwise")
    )
