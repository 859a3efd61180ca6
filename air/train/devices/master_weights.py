"""An optimiser for models in bfloat16, which updates float32 copies (master weights) of the model's weights.

A bfloat16 number has 8 significant bits, so rounding loses an update that is smaller than about 1/256 of the
weight. At a learning rate of 1e-6, nearly all updates are that small. So the optimiser updates float32
copies, in which small updates accumulate, and the model gets the rounded copies. The gradients of a step's
backward passes are summed in float32, too. Each trained weight takes 18 bytes in all: 2 (model), 4 (copy), 4
(gradient) and 8 (AdamW's states).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from air.errors import UsageError


class MasterWeights:
    """An optimiser for a model whose weights have a lower precision than float32. It keeps a copy of each
    weight in float32, updates the copies, and writes them, rounded, into the model. It has only those methods
    of a torch optimiser that the trainer calls. `make` is a function that builds a torch optimiser, called
    the inner optimiser, for the list of copies."""

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        make: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer],
    ) -> None:
        self.weights = list(parameters)
        self.masters = [_master(weight) for weight in self.weights]
        self.inner = make(self.masters)
        for weight, master in zip(self.weights, self.masters, strict=True):
            if master is not weight:
                weight.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    _collector(master)
                )

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups of the inner torch optimiser, which updates the float32 copies, with their
        settings, such as `lr`."""
        return self.inner.param_groups

    def step(self) -> None:
        """Updates the float32 copies with their gradients, and writes them, rounded, into the model."""
        self.inner.step()
        with torch.no_grad():
            for weight, master in zip(self.weights, self.masters, strict=True):
                if master is not weight:
                    weight.copy_(master)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients of the float32 copies and of the model."""
        self.inner.zero_grad(set_to_none=set_to_none)
        for weight in self.weights:
            weight.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Returns the inner optimiser's state and, under the key `masters`, the float32 copies, for a
        checkpoint."""
        return {**self.inner.state_dict(), "masters": [m.detach() for m in self.masters]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the inner optimiser's state and the float32 copies from `state`, a result of `state_dict`.
        Raises UsageError if `state` lacks the float32 copies: the checkpoint then comes from a training in
        float32."""
        masters: list[Tensor] | None = state.get("masters")
        if masters is None or len(masters) != len(self.masters):
            raise UsageError(
                "the checkpoint has no float32 copies of these weights: it was trained in float32",
                where="embedded.dtype",
                remedy='resume with dtype = "float32"',
            )
        self.inner.load_state_dict({k: v for k, v in state.items() if k != "masters"})
        with torch.no_grad():
            for weight, master, saved in zip(self.weights, self.masters, masters, strict=True):
                master.copy_(saved)
                weight.copy_(saved)


def _master(weight: torch.nn.Parameter) -> torch.nn.Parameter:
    if weight.dtype == torch.float32:
        return weight
    return torch.nn.Parameter(weight.detach().float())


def _collector(master: torch.nn.Parameter) -> Callable[[Tensor], None]:
    def collect(weight: Tensor) -> None:
        assert weight.grad is not None
        gradient = weight.grad.float()
        master.grad = gradient if master.grad is None else master.grad.add_(gradient)
        weight.grad = None

    return collect
