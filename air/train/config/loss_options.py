"""Settings of the policy losses: `[trainer.loss]`, and of the penalty for the KL divergence from a reference
model, `[embedded.kl]`.

The settings of the losses `default`, `ipo` and `custom` have the names, defaults and meanings of prime-rl 0.8
(`prime_rl.configs.trainer`). This module does not import torch, so run files can be checked without torch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from air.config import BaseConfig, plugin
from air.errors import UsageError

Normalization = Literal["token", "sequence", "constant"]


class PolicyLossConfig(BaseConfig):
    """Base class with the settings that all policy losses have. These settings exist only in the embedded
    training engine."""

    normalization: Normalization = "token"
    """How the losses of a step's tokens are averaged. `token`: every trained token has the same weight.
    `sequence`: every training sample has the same weight, divided among its trained tokens. `constant`: every
    sample's sum is divided by `normalization_tokens` in place of its number of tokens. A token then weighs
    the same in long and short samples; more trained tokens make a larger update (Dr. GRPO, arXiv
    2503.20783)."""
    normalization_tokens: int | None = Field(None, ge=1)
    """The divisor of `normalization = "constant"`, for example the largest number of tokens that a reply may
    have. None with every other `normalization`."""
    entropy_coefficient: float = Field(0.0, ge=0)
    """Coefficient of the entropy bonus, which rewards exploration: the entropy of each token's prediction is
    multiplied by this number and subtracted from the loss. If it is above 0, tokens with advantage 0 are
    trained, too."""

    @model_validator(mode="after")
    def _constant(self) -> Self:
        if (self.normalization == "constant") != (self.normalization_tokens is not None):
            raise ValueError(
                'normalization_tokens and normalization = "constant" need each other: set both or none'
            )
        return self


class DefaultLossConfig(PolicyLossConfig):
    """Settings of the default policy loss: an importance-weighted policy gradient with a KL term. A token has
    no policy gradient (it is masked) if its probability has changed too much since the token was sampled."""

    type: Literal["default"] = "default"
    """The name of the loss."""
    dppo_mask_low: float = Field(0.2, ge=0)
    """A token with a negative advantage is left out of the policy gradient if its probability has fallen by
    more than this number since the token was sampled."""
    dppo_mask_high: float = Field(0.2, ge=0)
    """A token with a positive advantage is left out of the policy gradient if its probability has risen by
    more than this number since the token was sampled."""
    adv_tau: float = Field(1.0, ge=0)
    """Number by which the advantages are multiplied in the loss."""
    kl_tau: float = Field(1e-3, ge=0)
    """Number by which the KL term is multiplied in the loss. The KL term is the squared logarithm of the
    ratio between a token's probability now and its probability when it was sampled."""


class IPOLossConfig(PolicyLossConfig):
    """Settings of the loss `ipo`. It is the loss `default` with another rule for masking: a token has no
    policy gradient if its probability has moved too far in either direction, whatever the sign of its
    advantage."""

    type: Literal["ipo"] = "ipo"
    """The name of the loss."""
    ipo_threshold: float = Field(0.1, ge=0)
    """A token is left out of the policy gradient if its probability has changed by more than this number
    since the token was sampled."""
    adv_tau: float = Field(1.0, ge=0)
    """Number by which the advantages are multiplied in the loss."""
    kl_tau: float = Field(1e-3, ge=0)
    """Number by which the KL term is multiplied in the loss. The KL term is the squared logarithm of the
    ratio between a token's probability now and its probability when it was sampled."""


class PPOClipLossConfig(PolicyLossConfig):
    """Settings of the loss `ppo_clip`, PPO's clipped objective. Only the embedded engine has it."""

    type: Literal["ppo_clip"] = "ppo_clip"
    """The name of the loss."""
    clip_low: float = Field(0.2, ge=0, lt=1)
    """A token with a negative advantage has no gradient if its probability ratio is below 1 − `clip_low`. The
    ratio is the token's probability now divided by its probability when it was sampled."""
    clip_high: float = Field(0.2, ge=0)
    """A token with a positive advantage has no gradient if its probability ratio is above 1 + `clip_high`.
    DAPO (arXiv 2503.14476) sets 0.28, so that the probability of unlikely tokens can rise further. The
    algorithm `adpo` (of Agent0, arXiv 2511.16043) computes a bound for each group and uses it in place of
    this number."""


class CrossEntropyLossConfig(PolicyLossConfig):
    """Settings of the cross-entropy, with which the algorithm `sft` (supervised training) trains. A run file
    cannot choose this loss as `type` in `[trainer.loss]`; the algorithm sets it."""

    type: Literal["cross_entropy"] = "cross_entropy"
    """The name of the loss."""


class CustomLossConfig(PolicyLossConfig):
    """Settings of the loss `custom`, a function that the user writes."""

    type: Literal["custom"] = "custom"
    """The name of the loss."""
    import_path: str
    """The loss function, as `module.function` or `module:function`; Python must be able to import it. It is
    called once for each sample of a training step (one conversation) as `function(inputs, **kwargs)`.
    `inputs` has `trainer_logprobs`, `inference_logprobs`, `advantages` and `loss_mask`: tensors with one
    element for each trained token. The function returns an object with `loss` (the sum over these tokens) and
    `metrics` (tensors by name; their means over the samples are recorded)."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments with which the user's loss function is called."""

    @model_validator(mode="after")
    def _callable(self) -> Self:
        try:
            inspect.signature(self.function()).bind(None, **self.kwargs)
        except (UsageError, TypeError, ValueError) as error:
            raise ValueError(
                f"{self.import_path!r} cannot be called as `function(inputs, **kwargs)`: {error}"
            ) from None
        return self

    def function(self) -> Callable[..., Any]:
        """Imports and returns the user's loss function. Raises UsageError if the function cannot be
        imported."""
        path = self.import_path
        function: Callable[..., Any] = plugin(
            path if ":" in path else ":".join(path.rsplit(".", 1))
        )
        return function


def _default_type(value: object) -> object:
    return {"type": "default", **value} if isinstance(value, dict) else value


LossConfig = Annotated[
    DefaultLossConfig | IPOLossConfig | PPOClipLossConfig | CustomLossConfig,
    Field(discriminator="type"),
    BeforeValidator(_default_type),
]
"""The settings of a policy loss. The key `type` names the loss."""

KLEstimator = Literal["kl", "abs", "mse", "low_var_kl", "full"]


class KLConfig(BaseConfig):
    """Settings in the run file's table `[embedded.kl]`: a penalty for the KL divergence of the policy from
    the reference model (`[embedded.reference]`)."""

    estimator: KLEstimator = "low_var_kl"
    """How a token's penalty is computed from x: its log-probability under the policy minus that under the
    reference. `kl`: x. `abs`: |x|. `mse`: x²/2. `low_var_kl`: e^−x + x − 1, never negative, with x clamped to
    ±20 and the result to ±10. `full`: the exact divergence, which is the mean of x over all tokens of the
    vocabulary, weighted by the policy's probabilities. `full` costs one more forward pass of both models."""
    place: Literal["reward", "loss"] = "reward"
    """Where the penalty counts. `reward`: it is computed with the policy's probabilities at sampling, and
    subtracted from the reward of each sampled token. `loss`: it is computed with the probabilities of the
    model being trained, and added to the loss of each sampled token; tokens with advantage 0 are then
    trained, too. In the loss, the gradient of the estimator `kl` has the mean 0: it adds noise and does not
    hold the policy back."""
    coefficient: float = Field(1e-3, ge=0)
    """Number by which the penalty is multiplied; with `target`, only at the start of the run. With 0, the
    reference model is loaded only for the metric `train/reference_kl`: remove the table to save its memory
    and time."""
    target: float | None = Field(None, gt=0)
    """The target for the mean penalty of a token, before multiplication: the coefficient is adapted so that
    the mean penalty approaches this number. After each step the coefficient is multiplied by 1 + clip(penalty
    / target − 1, ±0.2) · episodes / horizon (Ziegler et al. 2019, arXiv 1909.08593); this factor is at least
    0.5 and at most 2. None: the coefficient is fixed."""
    horizon: int = Field(10_000, ge=1)
    """Number of episodes that sets how fast the coefficient changes: a larger number means slower changes. It
    matters only with `target`."""

    @model_validator(mode="after")
    def _can_change(self) -> Self:
        if self.target is not None and self.coefficient == 0:
            raise ValueError(
                "target multiplies the coefficient, which stays 0: set coefficient above 0, or remove target"
            )
        if self.target is None and self.horizon != KLConfig.model_fields["horizon"].default:
            raise ValueError("horizon has no effect without target: set target, or remove horizon")
        return self
