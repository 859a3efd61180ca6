"""The advantage estimator GRPO: an episode's advantage is its reward minus the mean reward of its group.

As in prime-rl 0.8, `prime_rl/orchestrator/algo/grpo.py`: GRPO of Shao et al. 2024 (arXiv 2402.03300) without
the division by the standard deviation, which Liu et al. 2025 (arXiv 2503.20783) found biased to easy groups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def grpo(rewards: Sequence[float | None]) -> list[float]:
    """Returns one advantage for each episode of a group: its reward minus the mean reward of the group.
    Episodes without a reward (None) do not count and get 0. Raises ValueError if a reward is not finite."""
    scored = [r for r in rewards if r is not None]
    if not all(math.isfinite(r) for r in scored):
        raise ValueError(f"rewards must be finite, got {list(rewards)}")
    if not scored:
        return [0.0] * len(rewards)
    mean = math.fsum(scored) / len(scored)
    return [0.0 if r is None else r - mean for r in rewards]
