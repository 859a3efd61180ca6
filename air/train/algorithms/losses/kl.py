"""Estimators of the KL divergence of the policy from a reference model, from the sampled tokens alone.

x is a token's log-probability under the policy minus its log-probability under the reference:

    kl          x                        unbiased for tokens that the policy sampled; may be negative
    abs         |x|
    mse         x²/2
    low_var_kl  e^−x + x − 1             unbiased, too, and never negative

The estimator `full` is not a function of one token's x. It is the expectation of x under the policy's
distribution over the vocabulary, and is computed in `air.train.model.logprobs`.

The clamps of `low_var_kl` (x to ±20, the result to ±10) are those of AgentFly and verl (`kl_penalty`).
Schulman 2020 (http://joschu.net/blog/kl-approx.html) calls `kl`, `mse` and `low_var_kl` k1, k2 and k3.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from air.train.config.loss_options import KLEstimator


def low_var_kl(x: Tensor) -> Tensor:
    """Returns e^−x + x − 1 for each element of `x`: the low-variance estimate of the KL divergence, where `x`
    is a token's log-probability under the policy minus that under the reference model. `x` is clamped to ±20,
    and the result to ±10."""
    x = x.clamp(-20, 20)
    return ((-x).exp() + x - 1).clamp(-10, 10)


KL: dict[KLEstimator, Callable[[Tensor], Tensor]] = {
    "kl": lambda x: x,
    "abs": lambda x: x.abs(),
    "mse": lambda x: x.square() / 2,
    "low_var_kl": low_var_kl,
}
"""Maps the name of each estimator of the KL divergence, except `full`, to a function. Its argument is a
tensor with each token's log-probability under the policy minus that under the reference model; its result has
the estimate for each token."""
