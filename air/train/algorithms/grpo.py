"""GRPO: reward minus the group's mean, not divided by the standard deviation.

Source: prime-rl 0.8, `prime_rl/orchestrator/algo/grpo.py` (Shao et al. 2024, arXiv 2402.03300, less
the normalisation that Liu et al. 2025, arXiv 2503.20783, found to bias towards easy groups).
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def grpo(rewards: Sequence[float | None]) -> list[float]:
    """Returns the advantages of one group.

    Args:
        rewards: one per episode; None masks an episode that could not be scored: the mean leaves it out
            and its advantage is 0.

    Raises:
        ValueError: a reward is not finite.
    """
    scored = [r for r in rewards if r is not None]
    if not all(math.isfinite(r) for r in scored):
        raise ValueError(f"rewards must be finite, got {list(rewards)}")
    if not scored:
        return [0.0] * len(rewards)
    mean = math.fsum(scored) / len(scored)
    return [0.0 if r is None else r - mean for r in rewards]
