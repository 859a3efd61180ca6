"""Computes the weight of each trained token in the loss of a training step.

A step trains S samples (conversations). Sample s has n_s trained tokens, and N = Σ n_s. The setting
`normalization` chooses the weight of each token of sample s:

    token       1 / N                            the mean over tokens (prime-rl, DAPO)
    sequence    1 / (S · n_s)                    the mean over samples of the mean over their tokens (GRPO)
    constant    1 / (S · normalization_tokens)   the mean over samples of the sum / constant (Dr. GRPO)
"""

from __future__ import annotations

from collections.abc import Sequence

from air.train.config.loss_options import PolicyLossConfig


def token_weights(counts: Sequence[int], config: PolicyLossConfig) -> list[float]:
    """Returns a list with one weight per training sample. The loss of each trained token of the sample is
    multiplied by this weight before the losses are summed. `counts` has n_s, the number of trained tokens, of
    each of the S samples, which must be positive. The weight is 1 / Σ n_s, 1 / (S · n_s) or 1 / (S ·
    `normalization_tokens`) if the setting `normalization` of `config` is `token`, `sequence` or
    `constant`."""
    if config.normalization == "token":
        return [1 / sum(counts)] * len(counts)
    if config.normalization == "sequence":
        return [1 / (len(counts) * n) for n in counts]
    assert config.normalization_tokens is not None  # the config checks it
    return [1 / (len(counts) * config.normalization_tokens)] * len(counts)
