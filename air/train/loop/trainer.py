"""Trains the policy: one update of the weights for each training step's samples."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from air.train.algorithms.losses import total_loss
from air.train.algorithms.losses.base import LossInputs
from air.train.algorithms.losses.normalization import token_weights
from air.train.config.loss_options import DefaultLossConfig, KLEstimator, PolicyLossConfig
from air.train.config.model_options import (
    ConstantSchedulerConfig,
    OptimizerConfig,
    SchedulerConfig,
)
from air.train.model.gradient_checkpointing import check_layers, recomputed
from air.train.model.heap import keep_freed_memory, return_large_blocks, trim_heap
from air.train.model.optimizer import learning_rate, optimizer, restore, update
from air.train.model.policy import Policy
from air.train.tree.entry_logprobs import Reference, entry_statistics, mask_cost
from air.train.tree.pack import MicroBatch, pack
from air.train.tree.sample import Sample

Listener = Callable[[Sample, Tensor], None]
"""A callback for each sample on which the policy is trained. Its arguments are the sample, and a CPU tensor
[T] with the log-probabilities of the sample's T tokens that the loss used. The tensor is NaN at tokens for
which `Sample.mask` is false."""


class Trainer:
    """Trains a policy's weights in place. Each call of `step` makes one update. Without `scheduler`, the
    learning rate is constant; without `loss`, the default loss is used.

    Tokens with advantage 0 are not trained and do not count in the mean of the loss, as in prime-rl (another
    trainer). But if the loss has a KL penalty (`kl` names its estimator, see `losses.total_loss`) or an
    entropy bonus, all sampled tokens are trained. `max_steps`, the number of the run's training steps, may be
    None unless the schedule lowers the learning rate.

    Two settings save memory without changing the result. `micro_batch_tokens` limits the number of tokens,
    including padding, of one forward and backward pass; a prefix that samples share counts once (see
    `tree.pack`). With `gradient_checkpointing`, the backward pass computes the layers' activations again.
    `reference` is the reference model; it is given only for the KL estimator `full`.
    """

    def __init__(
        self,
        policy: Policy,
        optim: OptimizerConfig,
        *,
        scheduler: SchedulerConfig | None = None,
        loss: PolicyLossConfig | None = None,
        kl: KLEstimator | None = None,
        reference: Reference | None = None,
        max_steps: int | None = None,
        micro_batch_tokens: int = 8192,
        gradient_checkpointing: bool = False,
    ) -> None:
        if gradient_checkpointing:
            check_layers(policy.model, policy.name)
            return_large_blocks()
        else:
            keep_freed_memory()
        self.gradient_checkpointing = gradient_checkpointing
        self.policy = policy
        self.config = optim
        self.scheduler = scheduler or ConstantSchedulerConfig()
        self.loss, self.kl = loss or DefaultLossConfig(), kl
        self._reference = reference
        self.trains_zeros = kl is not None or self.loss.entropy_coefficient > 0
        self.max_steps = max_steps
        self.micro_batch_tokens = micro_batch_tokens
        self.parameters = [p for p in policy.model.parameters() if p.requires_grad]
        self.optimizer = optimizer(self.parameters, optim)
        self.steps = 0

    def step(self, samples: Sequence[Sample], listener: Listener | None = None) -> dict[str, float]:
        """Updates the weights once with `samples`, and returns the metrics of the update by name.

        If no token is trained, because all advantages are 0, the weights do not change, but the learning
        rate's schedule advances by one step. `listener` is called for each sample that is trained.

        Metrics: `loss`, `grad_norm`, `lr`; `entropy` and `mismatch_kl` (nats per trained token); `is_masked`,
        `is_masked_high` and `is_masked_low` (shares of trained tokens whose policy gradient the loss leaves
        out; see `losses.total_loss`); `tokens` (number of trained tokens), `train_tokens` (number of all
        tokens of the trained samples), `shared_tokens` (number of tokens that were not computed again,
        because another sample has the same prefix), `samples` (number of trained samples), `updated` (1 if
        the weights changed, otherwise 0), `train_seconds`; and the metrics of the loss `custom`.

        Raises InfrastructureError, without an update, if the gradients are not finite.
        """
        start = time.perf_counter()
        lr = learning_rate(self.steps, self.config.lr, self.scheduler, self.max_steps)
        counts = {
            id(s): sum(s.mask if self.trains_zeros else map(bool, s.advantages())) for s in samples
        }
        used = [s for s in samples if counts[id(s)]]
        tokens = sum(counts.values())
        train_tokens = sum(len(s.token_ids) for s in used)
        sums: Counter[str] = Counter()
        norm = 0.0
        if used:
            each = token_weights([counts[id(s)] for s in used], self.loss)
            weights = {id(s): weight for s, weight in zip(used, each, strict=True)}
            with recomputed(self.policy.model) if self.gradient_checkpointing else nullcontext():
                for batch in self._pack(used):
                    sums.update(self._backward(batch, weights, listener))
            for settings in self.optimizer.param_groups:
                settings["lr"] = lr
            norm = update(self.optimizer, self.parameters, self.config)
            trim_heap()  # boxes may need the memory
        self.steps += 1
        means = ("entropy", "mismatch_kl", "is_masked", "is_masked_high", "is_masked_low")
        return {
            "loss": sums["loss"],
            **{name: sums[name] / max(1, tokens) for name in means},
            "grad_norm": norm,
            "lr": lr,
            "tokens": float(tokens),
            "train_tokens": float(train_tokens),
            "shared_tokens": float(train_tokens - sums["forward_tokens"]),
            "samples": float(len(used)),
            "updated": float(bool(used)),
            "train_seconds": time.perf_counter() - start,
            **{name: value / len(used) for name, value in sums.items() if "/" in name},
        }

    def _pack(self, samples: Sequence[Sample]) -> Iterator[MicroBatch]:
        return pack(
            samples,
            self.micro_batch_tokens,
            self.policy.device,
            mask_cost=mask_cost(self.policy.model),
        )

    def _backward(
        self, batch: MicroBatch, weights: Mapping[int, float], listener: Listener | None
    ) -> dict[str, float]:
        """Computes the gradients of a micro-batch's loss and adds them to the accumulated gradients. Returns
        metrics by name, each summed (not averaged) over the trained tokens. `weights` maps the `id()` of each
        sample to the weight of its tokens in the loss."""
        bonus = self.loss.entropy_coefficient > 0
        logprobs, entropy, divergence = entry_statistics(
            self.policy.model, batch, entropy_gradient=bonus, reference=self._reference
        )
        entries = batch.entries
        trained = torch.ones_like(logprobs).bool() if self.trains_zeros else entries.advantages != 0
        losses, sums = total_loss(
            LossInputs(
                logprobs[trained],
                entries.sampler_logprobs[trained],
                entries.advantages[trained],
                {name: values[trained] for name, values in entries.arrays.items()},
                entries.samples[trained],
                None if self._reference is None else divergence[trained],
            ),
            entropy[trained],
            self.loss,
            self.kl,
        )
        each = torch.tensor([weights[id(sample)] for sample in batch.samples], device=losses.device)
        loss = (losses * each[entries.samples[trained]]).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        if listener is not None:
            _tell(listener, batch, logprobs.detach().cpu())
        metrics = {name: float(value) for name, value in sums.items()}
        return {
            **metrics,
            "loss": float(loss.detach()),
            "entropy": float(entropy[trained].detach().sum()),
            "forward_tokens": batch.tokens,
        }

    def state_dict(self) -> dict[str, Any]:
        """Returns the optimiser's state and the number of steps so far, for a checkpoint."""
        return {"steps": self.steps, "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the optimiser's state and the number of steps from a result of `state_dict`. Raises
        UsageError if the state belongs to weights of another data type (such as float32 instead of
        bfloat16)."""
        self.steps = int(state["steps"])
        restore(self.optimizer, state["optimizer"])


def _tell(listener: Listener, batch: MicroBatch, logprobs: Tensor) -> None:
    """Calls `listener` for each sample of a micro-batch. `logprobs` [N] has the log-probabilities of all
    entries (sampled tokens) of the batch, sample by sample."""
    counts = torch.bincount(batch.entries.samples, minlength=len(batch.samples)).tolist()
    for sample, own in zip(batch.samples, torch.split(logprobs, counts), strict=True):
        row = torch.full((len(sample.mask),), torch.nan)
        row[torch.tensor(sample.mask)] = own
        listener(sample, row)
