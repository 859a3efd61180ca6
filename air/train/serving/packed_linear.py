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
    """The outputs of one or more linear modules with the same input, concatenated, as one matrix product.

    The weights and biases are copied: later changes to the modules have no effect on this object. All modules
    must have a bias, or none. The weights must be float32.
    """

    def __init__(self, *modules: Any) -> None:
        weights = [module.weight.detach() for module in modules]
        biases = [module.bias.detach() for module in modules if module.bias is not None]
        assert len(biases) in {0, len(modules)}
        self._weight, self._bias = _joined(weights), _joined(biases) if biases else None
        self._is_packed = _can_pack(self._weight)
        if self._is_packed:
            self._weight = torch.ops.mkldnn._reorder_linear_weight(self._weight)

    def __call__(self, inputs: Tensor) -> Tensor:
        """Returns the outputs [..., sum of out_features] for `inputs` [..., in_features]."""
        if not self._is_packed:
            return F.linear(inputs, self._weight, self._bias)
        outputs: Tensor = torch.ops.mkldnn._linear_pointwise(
            inputs, self._weight, self._bias, "none", [], ""
        )
        return outputs


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    """Returns a copy of the tensors, concatenated along the first dimension."""
    return torch.cat(list(tensors))


def _can_pack(weight: Tensor) -> bool:
    """Returns whether this build of torch can pack `weight`. The operations are not part of torch's public
    interface, so a version without them is possible."""
    operations = torch.ops.mkldnn
    return (
        weight.device.type == "cpu"
        and torch._C._has_mkldnn
        and hasattr(operations, "_reorder_linear_weight")
        and hasattr(operations, "_linear_pointwise")
    )
