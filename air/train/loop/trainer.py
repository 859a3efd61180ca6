"""Trains the policy: makes one update of its weights for each batch of samples."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from air.train.algorithms.loss import default_loss, token_statistics
from air.train.config.model_options import (
    ConstantSchedulerConfig,
    DefaultLossConfig,
    OptimizerConfig,
    SchedulerConfig,
)
from air.train.model.optimizer import learning_rate, optimizer, update
from air.train.model.padding import micro_batches, pad
from air.train.model.policy import Policy

Listener = Callable[["Sample", Tensor], None]
"""Receives a sample, and a tensor [T] on the CPU with the trainer's log-probabilities of its T tokens, as the
loss used them. The value at position 0 has no meaning."""


@dataclass(frozen=True)
class Sample:
    """A token sequence to train on: exactly the tokens of an episode. Lists have one element per token."""

    token_ids: list[int]
    """The tokens of prompts and replies, as the model saw them."""
    mask: list[bool]
    """True for tokens that the policy sampled and that are trained; false elsewhere, also at position 0."""
    logprobs: list[float]
    """The log-probability of each sampled token at the time of sampling; other elements are ignored."""
    advantage: float | list[float]
    """One advantage for all sampled tokens, or a list with one per token, used only where `mask` is true."""
    temperature: float
    """The temperature at which the replies were sampled."""
    nodes: tuple[Any, ...] = field(default=(), compare=False, repr=False)
    """The messages (verifiers' nodes) whose tokens these are, in order; empty if they have none."""
    arrays: dict[str, list[float]] = field(default_factory=dict)
    """What the algorithm gave besides advantages, one number per token by name: `returns` and `clip_high`
    (see `air.train.algorithms.base.Credit`)."""

    def __post_init__(self) -> None:
        counts = [len(self.token_ids), len(self.mask), len(self.logprobs)]
        if isinstance(self.advantage, list):
            counts.append(len(self.advantage))
        counts += [len(values) for values in self.arrays.values()]
        if len(set(counts)) > 1 or counts[0] == 0:
            raise ValueError(f"a sample's lists must be equally long and not empty, got {counts}")
        if self.mask[0] or self.temperature <= 0:
            raise ValueError("position 0 cannot be trained, and the temperature must be above 0")

    def advantages(self) -> list[float]:
        """Returns one advantage per token, which is 0 where `mask` is false."""
        each = self.advantage
        if not isinstance(each, list):
            each = [each] * len(self.mask)
        return [a if sampled else 0.0 for a, sampled in zip(each, self.mask, strict=True)]


class Trainer:
    """Trains a policy's weights in place. Each call of `step` makes one update.

    Tokens with advantage 0 are not trained, and the mean loss does not count them, as in prime-rl. A schedule
    that lowers the learning rate needs `max_steps`. `micro_batch_tokens` limits the tokens (number of samples
    x longest sample) of one forward and backward pass, and so the memory use; it does not change the result.
    """

    def __init__(
        self,
        policy: Policy,
        optim: OptimizerConfig,
        *,
        scheduler: SchedulerConfig | None = None,
        loss: DefaultLossConfig | None = None,
        max_steps: int | None = None,
        micro_batch_tokens: int = 8192,
    ) -> None:
        self.policy = policy
        self.config = optim
        self.scheduler = scheduler or ConstantSchedulerConfig()
        self.loss = loss or DefaultLossConfig()
        self.max_steps = max_steps
        self.micro_batch_tokens = micro_batch_tokens
        self.parameters = [p for p in policy.model.parameters() if p.requires_grad]
        self.optimizer = optimizer(self.parameters, optim)
        self.steps = 0

    def step(self, samples: Sequence[Sample], listener: Listener | None = None) -> dict[str, float]:
        """Updates the weights once with these samples, and returns the metrics of the update by name.

        If all advantages are 0, the weights do not change, but the learning rate's schedule counts the step.
        `listener` is called for each sample with an advantage that is not 0.
        Metrics: `loss`, `grad_norm`, `lr`; `entropy` and `mismatch_kl` (nats per trained token); `is_masked`,
        `is_masked_high` and `is_masked_low` (shares of trained tokens that the first term of the loss leaves
        out); `tokens` (trained), `train_tokens` (all), `samples` (with an advantage), `updated` (1 if the
        weights changed, else 0), `train_seconds`.

        Raises InfrastructureError if the gradients are not finite; no update was made.
        """
        start = time.perf_counter()
        lr = learning_rate(self.steps, self.config.lr, self.scheduler, self.max_steps)
        used = [s for s in samples if any(s.advantages())]
        tokens = sum(sum(a != 0 for a in s.advantages()) for s in used)
        sums: Counter[str] = Counter()
        norm = 0.0
        if used:
            for group in micro_batches([len(s.token_ids) for s in used], self.micro_batch_tokens):
                sums.update(self._backward([used[i] for i in group], tokens, listener))
            for settings in self.optimizer.param_groups:
                settings["lr"] = lr
            norm = update(self.optimizer, self.parameters, self.config)
        self.steps += 1
        means = ("loss", "entropy", "mismatch_kl", "is_masked", "is_masked_high", "is_masked_low")
        return {
            **{name: sums[name] / max(1, tokens) for name in means},
            "grad_norm": norm,
            "lr": lr,
            "tokens": float(tokens),
            "train_tokens": float(sum(len(s.token_ids) for s in used)),
            "samples": float(len(used)),
            "updated": float(bool(used)),
            "train_seconds": time.perf_counter() - start,
        }

    def _backward(
        self, samples: list[Sample], tokens: int, listener: Listener | None
    ) -> dict[str, float]:
        device = self.policy.device
        ids = pad([s.token_ids for s in samples], 0, torch.long, device)
        advantages = pad([s.advantages() for s in samples], 0.0, torch.float32, device)
        sampled = pad([s.logprobs for s in samples], 0.0, torch.float32, device)
        temperature = torch.tensor([s.temperature for s in samples], device=device)
        mask: Tensor = advantages != 0
        logprobs, entropy = token_statistics(self.policy.model, ids, temperature)
        loss, sums = default_loss(logprobs, sampled, advantages, mask, self.loss)
        (loss / tokens).backward()  # type: ignore[no-untyped-call]
        if listener is not None:
            for sample, row in zip(samples, logprobs.detach().cpu(), strict=True):
                listener(sample, row[: len(sample.token_ids)])
        metrics = {name: float(value) for name, value in sums.items()}
        return {**metrics, "loss": float(loss.detach()), "entropy": float(entropy[mask].sum())}

    def state_dict(self) -> dict[str, Any]:
        """Returns the optimiser's state and the number of steps, for a checkpoint."""
        return {"steps": self.steps, "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the optimiser's state and the number of steps from a result of `state_dict`."""
        self.steps = int(state["steps"])
        self.optimizer.load_state_dict(state["optimizer"])
