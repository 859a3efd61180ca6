"""Settings of the optimiser, the learning-rate schedule and supervised training.

Names, defaults and meanings are those of prime-rl 0.8 (`prime_rl.configs.trainer`, `prime_rl.configs.sft`).
This module does not import torch, so run files can be checked without torch.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from air.config import BaseConfig


class LoRAConfig(BaseConfig):
    """Settings of LoRA: two small matrices beside each chosen weight matrix are trained, and the model's own
    weights do not change."""

    rank: int = Field(16, ge=1, le=512)
    """Rank of the matrices. A higher rank can learn more, and needs more memory."""
    alpha: float = Field(32.0, gt=0)
    """Scale: the product of the matrices is multiplied by `alpha / rank`."""
    dropout: float = Field(0.0, ge=0, le=0)
    """Must be 0: with dropout, the trainer's probabilities would differ from the sampler's."""
    target_modules: list[str] = Field(
        default=[
            "q_proj",
            "k_proj",
            "v_proj",
            "o_proj",
            "gate_proj",
            "up_proj",
            "down_proj",
            "qkv_proj",
            "gate_up_proj",
        ],
        min_length=1,
    )
    """Names of the linear layers that get trained matrices. In the default list, names that the model does
    not have are ignored. In any other list, such a name is an error; its message lists the model's names."""


class _OptimizerConfig(BaseConfig):
    """Base class for the settings of an optimiser."""

    lr: float = Field(1e-6, ge=0)
    """Peak learning rate."""
    weight_decay: float = Field(0.01, ge=0)
    """Weight decay; it is applied to all parameters."""
    max_norm: float | None = Field(1.0, ge=0)
    """Largest gradient norm; larger gradients are scaled down to this norm. None: gradients are not scaled
    down."""


class SGDConfig(_OptimizerConfig):
    """Settings of the optimiser SGD: stochastic gradient descent with momentum."""

    type: Literal["sgd"] = "sgd"
    """The name of the optimiser."""
    nesterov: bool = True
    """Whether to use Nesterov momentum."""
    momentum: float = Field(0.9, ge=0, lt=1)
    """Momentum: the share of the previous step that is added to the next one."""


class AdamWConfig(_OptimizerConfig):
    """Settings of the optimiser AdamW, whose weight decay is decoupled from the gradient."""

    type: Literal["adamw"] = "adamw"
    """The name of the optimiser."""
    betas1: float = Field(0.9, ge=0, lt=1)
    """Decay rate of the running mean of gradients (first moment)."""
    betas2: float = Field(0.999, ge=0, lt=1)
    """Decay rate of the running mean of squared gradients (second moment)."""


def _default_type(value: object) -> object:
    """Returns an optimiser's settings with `type = "adamw"`, prime-rl's default, if `value` is a dict without
    `type`. Returns any other `value` unchanged."""
    if isinstance(value, dict) and "type" not in value:
        return {"type": "adamw", **value}
    return value


OptimizerConfig = Annotated[
    SGDConfig | AdamWConfig, Field(discriminator="type"), BeforeValidator(_default_type)
]


class ConstantSchedulerConfig(BaseConfig):
    """Settings of a constant learning-rate schedule: the learning rate stays at its peak."""

    type: Literal["constant"] = "constant"
    """The name of the learning-rate schedule."""


class LinearSchedulerConfig(BaseConfig):
    """Settings of a linear learning-rate schedule.
    The learning rate rises linearly, stays at its peak, and falls linearly at the end of the run."""

    type: Literal["linear"] = "linear"
    """The name of the learning-rate schedule."""
    warmup_steps: int = Field(10, ge=0)
    """Number of steps in which the learning rate rises from `min_lr` (if 0: nearly 0) to its peak."""
    decay_steps: int = Field(10, ge=0)
    """Number of steps, at the run's end, in which the learning rate falls. A number above 0 needs
    `max_steps`."""
    min_lr: float = Field(0.0, ge=0)
    """Learning rate at the first and the last step."""

    @model_validator(mode="after")
    def _some_phase(self) -> Self:
        if self.warmup_steps == 0 and self.decay_steps == 0:
            raise ValueError("set warmup_steps or decay_steps, or use type = 'constant'")
        return self


class CosineSchedulerConfig(BaseConfig):
    """Settings of a cosine learning-rate schedule.
    The learning rate rises linearly, then falls like half a cosine to `min_lr` at `max_steps` (required)."""

    type: Literal["cosine"] = "cosine"
    """The name of the learning-rate schedule."""
    warmup_steps: int = Field(10, ge=0)
    """Number of steps in which the learning rate rises to its peak."""
    min_lr: float = Field(0.0, ge=0)
    """Learning rate at the last step."""


SchedulerConfig = Annotated[
    ConstantSchedulerConfig | LinearSchedulerConfig | CosineSchedulerConfig,
    Field(discriminator="type"),
]


class DemonstrationsConfig(BaseConfig):
    """Settings of a file of demonstrations (recorded conversations): its path, and the length at which the
    demonstrations are cut."""

    type: Literal["sft"] = "sft"
    """The kind of data; `sft` is the only possible value."""
    name: str = ""
    """Path of a JSON-lines file, absolute or relative to the current folder. Each line is
    `{"messages": [{"role": …, "content": …}, …]}`. The path must be set: the empty default names no file."""
    seq_len: int = Field(128, ge=2)
    """Largest number of tokens of a demonstration; longer demonstrations are cut."""


class SFTDataConfig(DemonstrationsConfig):
    """Settings of the data for supervised training: a file of demonstrations (recorded conversations), and
    how the demonstrations are divided into steps."""

    batch_size: int = Field(128, ge=1)
    """Size of a step: one step trains on at most `batch_size * seq_len` tokens, in whole demonstrations."""
    shuffle: bool = True
    """Whether demonstrations are shuffled at the start of each epoch."""
    seed: int = 0
    """Seed of the shuffling; the number of the epoch is added to this number."""


class SFTValConfig(BaseConfig):
    """Settings of the evaluation on held-out demonstrations: recorded conversations that are not used for
    training."""

    interval: int = Field(50, ge=1)
    """Number of steps between two evaluations. The last step is always followed by an evaluation."""
    eval_on_start: bool = False
    """Whether to evaluate before the first step, too."""
    data: DemonstrationsConfig = DemonstrationsConfig()
    """The file of held-out demonstrations, and the length at which they are cut (`seq_len`)."""


class SFTConfig(BaseConfig):
    """Settings of supervised training: demonstrations, optimiser, learning-rate schedule and steps."""

    data: SFTDataConfig = SFTDataConfig()
    """The demonstrations to train on."""
    val: SFTValConfig | None = None
    """Evaluation on held-out demonstrations. None: no evaluation."""
    optim: OptimizerConfig = AdamWConfig()
    """The optimiser."""
    scheduler: SchedulerConfig = ConstantSchedulerConfig()
    """The learning-rate schedule."""
    max_steps: int = Field(200, ge=1)
    """Number of steps to train."""

    @model_validator(mode="after")
    def _phases_fit(self) -> Self:
        check_schedule(self.scheduler, self.max_steps)
        return self


def check_schedule(scheduler: SchedulerConfig, max_steps: int | None) -> None:
    """Raises ValueError if the learning rate falls in `scheduler`, and either `max_steps` (the number of
    training steps) is None, or the rise and the fall together take more than `max_steps` steps."""
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
