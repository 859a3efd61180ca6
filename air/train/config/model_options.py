"""Settings of the model side of the embedded engine, under prime-rl's names and with its meanings.

Loads no torch, so a run file can be checked without it. Source of names and defaults: prime-rl 0.8,
`prime_rl.configs.trainer` and `prime_rl.configs.sft`.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from air.config import BaseConfig


class DefaultLossConfig(BaseConfig):
    """The default policy loss: masked importance-weighted policy gradient with a KL term."""

    type: Literal["default"] = "default"
    """Which loss."""
    dppo_mask_low: float = Field(0.2, ge=0)
    """A token with a negative advantage is dropped when its probability fell by more than this."""
    dppo_mask_high: float = Field(0.2, ge=0)
    """A token with a positive advantage is dropped when its probability rose by more than this."""
    adv_tau: float = Field(1.0, ge=0)
    """Factor on the advantages."""
    kl_tau: float = Field(1e-3, ge=0)
    """Factor on the squared log importance ratio."""


class _OptimizerConfig(BaseConfig):
    """What all optimisers share."""

    lr: float = Field(1e-6, ge=0)
    """Peak learning rate."""
    weight_decay: float = Field(0.01, ge=0)
    """Weight decay, on all parameters."""
    max_norm: float | None = Field(1.0, ge=0)
    """Largest gradient norm; larger gradients are scaled down to it. None: no clipping."""


class SGDConfig(_OptimizerConfig):
    """Stochastic gradient descent with momentum."""

    type: Literal["sgd"] = "sgd"
    """Which optimiser."""
    nesterov: bool = True
    """Whether the momentum is Nesterov's."""
    momentum: float = Field(0.9, ge=0, lt=1)
    """Share of the last step that is added to the next one."""


class AdamWConfig(_OptimizerConfig):
    """The AdamW optimiser; its weight decay is decoupled."""

    type: Literal["adamw"] = "adamw"
    """Which optimiser."""
    betas1: float = Field(0.9, ge=0, lt=1)
    """Decay of the first moment."""
    betas2: float = Field(0.999, ge=0, lt=1)
    """Decay of the second moment."""


def _default_type(value: object) -> object:
    """An optimiser without a `type` is AdamW, as in prime-rl."""
    if isinstance(value, dict) and "type" not in value:
        return {"type": "adamw", **value}
    return value


OptimizerConfig = Annotated[
    SGDConfig | AdamWConfig, Field(discriminator="type"), BeforeValidator(_default_type)
]


class ConstantSchedulerConfig(BaseConfig):
    """The learning rate stays at its peak."""

    type: Literal["constant"] = "constant"
    """Which schedule."""


class LinearSchedulerConfig(BaseConfig):
    """Linear rise, plateau, linear fall."""

    type: Literal["linear"] = "linear"
    """Which schedule."""
    warmup_steps: int = Field(10, ge=0)
    """Steps of the rise from `min_lr` (or nearly 0) to the peak."""
    decay_steps: int = Field(10, ge=0)
    """Steps of the fall at the end of the run; needs `max_steps`."""
    min_lr: float = Field(0.0, ge=0)
    """Learning rate at both ends."""

    @model_validator(mode="after")
    def _some_phase(self) -> Self:
        if self.warmup_steps == 0 and self.decay_steps == 0:
            raise ValueError("set warmup_steps or decay_steps, or use type = 'constant'")
        return self


class CosineSchedulerConfig(BaseConfig):
    """Linear rise, then half a cosine down to `min_lr`; needs `max_steps`."""

    type: Literal["cosine"] = "cosine"
    """Which schedule."""
    warmup_steps: int = Field(10, ge=0)
    """Steps of the rise."""
    min_lr: float = Field(0.0, ge=0)
    """Learning rate at the end."""


SchedulerConfig = Annotated[
    ConstantSchedulerConfig | LinearSchedulerConfig | CosineSchedulerConfig,
    Field(discriminator="type"),
]


class SFTDataConfig(BaseConfig):
    """The demonstrations of a warm start."""

    type: Literal["sft"] = "sft"
    """Which kind of data."""
    name: str = ""
    """A JSON-lines file; each line is {"messages": [{"role": …, "content": …}, …]}."""
    batch_size: int = Field(128, ge=1)
    """Rows per step. One step sees at most `batch_size * seq_len` tokens."""
    seq_len: int = Field(128, ge=2)
    """Tokens per row; a longer demonstration is cut and counted (`truncated`)."""
    shuffle: bool = True
    """Shuffle anew at the start of each epoch."""
    seed: int = 0
    """Seed of the shuffle; the epoch's number is added."""


class SFTValConfig(BaseConfig):
    """The held-out demonstrations."""

    interval: int = Field(50, ge=1)
    """Steps between two evaluations; there is always one after the last step."""
    eval_on_start: bool = False
    """Evaluate before the first step, too."""
    data: SFTDataConfig = SFTDataConfig()
    """The file and the batch size."""


class SFTConfig(BaseConfig):
    """Settings of a warm start, except the model."""

    data: SFTDataConfig = SFTDataConfig()
    """The demonstrations."""
    val: SFTValConfig | None = None
    """The held-out demonstrations; None: no evaluation."""
    optim: OptimizerConfig = AdamWConfig()
    """The optimiser."""
    scheduler: SchedulerConfig = ConstantSchedulerConfig()
    """The learning-rate schedule."""
    max_steps: int = Field(200, ge=1)
    """Steps to train."""

    @model_validator(mode="after")
    def _phases_fit(self) -> Self:
        check_schedule(self.scheduler, self.max_steps)
        return self


def check_schedule(scheduler: SchedulerConfig, max_steps: int | None) -> None:
    """Raises ValueError when the phases of a schedule don't fit into `max_steps`."""
    if isinstance(scheduler, ConstantSchedulerConfig):
        return
    decay = scheduler.decay_steps if isinstance(scheduler, LinearSchedulerConfig) else 1
    if decay and max_steps is None:
        raise ValueError(f"a {scheduler.type} scheduler that decays needs max_steps")
    if max_steps is not None and decay and scheduler.warmup_steps + decay > max_steps:
        raise ValueError(
            f"warmup_steps ({scheduler.warmup_steps}) + decay_steps ({decay}) exceed "
            f"max_steps ({max_steps}); shorten the phases"
        )
