"""The value model of PPO: predicts, before each sampled token, the sum of the later rewards.

The value model is a copy of a causal language model, in which a linear head on the last hidden state replaces
the output layer, as in the training frameworks verl, AgentFly and TRL. It shares no weights with the policy,
so the value loss does not disturb the policy. It takes the memory of a second trained model: weights,
gradients and optimiser state. The head's weights start at 0, so the first values are 0 in every run.

For a token with the return R and the value V, which was V_old before the step, the loss is, as in verl,

    ½ max((V − R)², (clip(V, V_old − clip, V_old + clip) − R)²)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from air.train.config.further_models_config import ValueModelConfig
from air.train.further_models.frozen_model import by_sample
from air.train.model.optimizer import optimizer, update
from air.train.model.policy import Policy
from air.train.tree.entry_logprobs import batch_hidden_states, mask_cost
from air.train.tree.pack import MicroBatch, pack
from air.train.tree.sample import Sample


@dataclass(frozen=True)
class ValueTarget:
    """A sample on which the value model is trained. `values` and `returns` have one element per sampled token
    (each token for which `Sample.mask` is true)."""

    sample: Sample
    values: Sequence[float]
    """V_old: the value model's prediction before each token, with the weights before the training step."""
    returns: Sequence[float]
    """R: the return of each token, as the algorithm computed it. The model is trained to predict it."""


class ValueModel:
    """Predicts, before each sampled token, the sum of the later rewards (the value), and trains the model
    that predicts it. The value model takes over all layers of the model `start` except the output layer, and
    changes their weights in place. One forward pass has at most `micro_batch_tokens` tokens."""

    def __init__(self, start: Policy, config: ValueModelConfig, micro_batch_tokens: int) -> None:
        self.config, self.device = config, start.device
        self._micro_batch_tokens = micro_batch_tokens
        self.backbone: Any = start.model.base_model
        weight = next(self.backbone.parameters())
        self.head = torch.nn.Linear(start.model.config.get_text_config().hidden_size, 1)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)
        self.head.to(device=weight.device)
        self.parameters = [*self.backbone.parameters(), *self.head.parameters()]
        for parameter in self.parameters:
            parameter.requires_grad_(True)
        self.optimizer = optimizer(self.parameters, config.optim)

    @torch.no_grad()
    def values(self, samples: Sequence[Sample]) -> list[list[float]]:
        """Returns, for each sample, the predicted value before each sampled token, given all earlier
        tokens."""
        found: dict[int, list[float]] = {}
        for batch in self._pack(samples):
            found |= by_sample(batch, self._forward(batch))
        return [found[id(sample)] for sample in samples]

    def train(self, targets: Sequence[ValueTarget]) -> dict[str, float]:
        """Trains the value model on all targets, as many times as the setting `epochs` says, with one
        optimiser step each time. Returns metrics by name.

        `value_loss`, `value_grad_norm` and `value_clipped` (the share of tokens whose loss is the clipped
        term) are means over the epochs. `value_explained_variance` is 1 − var(R − V_old) / var(R): 1 if the
        values before this step were right, 0 if a constant would be as good; it is absent if all returns are
        equal. `value_mean` and `return_mean` are the means of V_old and R. The result is empty if `targets`
        have no sampled token. Raises InfrastructureError if the gradients are not finite.
        """
        count = sum(len(t.values) for t in targets)
        if not count:
            return {}
        by_id = {id(t.sample): t for t in targets}
        sums = {"value_loss": 0.0, "value_clipped": 0.0, "value_grad_norm": 0.0}
        for _ in range(self.config.epochs):
            for batch in self._pack([t.sample for t in targets]):
                of_batch = [by_id[id(sample)] for sample in batch.samples]
                loss, clipped = self._loss(batch, of_batch)
                (loss / count).backward()  # type: ignore[no-untyped-call]
                sums["value_loss"] += float(loss.detach()) / count
                sums["value_clipped"] += clipped / count
            sums["value_grad_norm"] += update(self.optimizer, self.parameters, self.config.optim)
        return {
            **{name: value / self.config.epochs for name, value in sums.items()},
            **statistics(
                [v for t in targets for v in t.values], [r for t in targets for r in t.returns]
            ),
        }

    def state_dict(self) -> dict[str, Any]:
        """Returns the weights and the optimiser's state, for a checkpoint."""
        return {
            "backbone": self.backbone.state_dict(),
            "head": self.head.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the weights and the optimiser's state from a result of `state_dict`."""
        self.backbone.load_state_dict(state["backbone"])
        self.head.load_state_dict(state["head"])
        self.optimizer.load_state_dict(state["optimizer"])

    def _pack(self, samples: Sequence[Sample]) -> Iterator[MicroBatch]:
        return pack(
            samples,
            self._micro_batch_tokens,
            self.device,
            mask_cost=mask_cost(self.backbone),
        )

    def _forward(self, batch: MicroBatch) -> Tensor:
        """Returns the predicted values [N], with gradient, for the N entries (sampled tokens) of a
        micro-batch. A token's value is predicted from the tokens before it."""
        hidden = batch_hidden_states(self.backbone, batch)[batch.entries.parents]
        values: Tensor = self.head(hidden.float())[:, 0]
        return values

    def _loss(self, batch: MicroBatch, targets: Sequence[ValueTarget]) -> tuple[Tensor, float]:
        old = torch.tensor([v for t in targets for v in t.values], device=self.device)
        returns = torch.tensor([r for t in targets for r in t.returns], device=self.device)
        return value_loss(self._forward(batch), old, returns, self.config.clip)


def value_loss(
    values: Tensor, old: Tensor, returns: Tensor, clip: float | None
) -> tuple[Tensor, float]:
    """Returns the sum of the value loss over N tokens, and the number of tokens whose loss is the clipped
    term. A token's loss is half the larger of two squared errors: the error of the value, and the error of
    the value clipped to within `clip` of `old`, the value before the step. The target of both is the token's
    return. All tensors are [N]. If `clip` is None, there is only the first error."""
    error = (values - returns).square()
    if clip is None:
        return 0.5 * error.sum(), 0.0
    near = torch.clamp(values, old - clip, old + clip)
    clipped = (near - returns).square()
    return 0.5 * torch.maximum(error, clipped).sum(), float((clipped > error).sum())


def statistics(values: Sequence[float], returns: Sequence[float]) -> dict[str, float]:
    """Returns metrics of the predictions `values` for the targets `returns`: `value_mean`, `return_mean`, and
    `value_explained_variance`, the share of the returns' variance that the values explain. The last metric is
    absent if all returns are equal."""
    v, r = torch.tensor(values, dtype=torch.float64), torch.tensor(returns, dtype=torch.float64)
    metrics = {"value_mean": float(v.mean()), "return_mean": float(r.mean())}
    spread = float(r.var(correction=0))
    if spread > 0:
        explained = 1.0 - float((r - v).var(correction=0)) / spread
        metrics["value_explained_variance"] = explained
    return metrics
