"""How much each sample's tokens weigh in the loss of a step.

S samples are trained. Sample s has n_s trained tokens, and N = Σ n_s. Each token of sample s has the weight

    token       1 / N                            the mean over tokens (prime-rl, DAPO)
    sequence    1 / (S · n_s)                    the mean over samples of the mean over their tokens (GRPO)
    constant    1 / (S · normalization_tokens)   the mean over samples of the sum / constant (Dr. GRPO)
"""

from __future__ import annotations

from collections.abc import Sequence

from air.train.config.loss_options import PolicyLossConfig


def token_weights(counts: Sequence[int], config: PolicyLossConfig) -> list[float]:
    """Returns, for each sample, the weight of each of its trained tokens. `counts` has the n_s, all above
    0."""
    if config.normalization == "token":
        return [1 / sum(counts)] * len(counts)
    if config.normalization == "sequence":
        return [1 / (len(counts) * n) for n in counts]
    assert config.normalization_tokens is not None  # the config checks it
    return [1 / (len(counts) * config.normalization_tokens)] * len(counts)
