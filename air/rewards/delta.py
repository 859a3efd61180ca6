"""The delta reward: a validate earns the move of the normalised score.

    previous   δ_t = φ(s_t) − φ(s_{t−1})
    best       δ_t = max(0, φ(s_t) − max_{k<t} φ(s_k))

with s_0 the declared baseline. The anchor is the φ that the next score is compared with. A move smaller than
the noise floor earns nothing and does not change the anchor, so small steps add up and are paid once their
sum exceeds the floor. So the deltas of an episode always sum to φ(anchor) − φ(baseline), and
validating more often earns nothing.

The floor is the declared `noise_floor` or, where that is more, `noise_sigmas` standard errors of the move,
√(e_t² + e_anchor²), with e the standard errors of the two φ; the baseline's is 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from air.rewards.normalise import Scale, phi_error, phi_on

Mode = Literal["previous", "best"]


@dataclass(frozen=True)
class Paid:
    """The payment for one scored validate."""

    phi: float
    """The normalised score, clipped."""
    delta: float
    """Its reward."""
    floor: float = 0.0
    """The noise floor: a smaller move would have earned nothing."""
    anchor: float = 0.0
    """The φ that `phi` was compared with."""


def delta(phi: float, anchor: float, *, mode: Mode, noise_floor: float = 0.0) -> float:
    """Returns the reward of a normalised score; the next anchor is `anchor` plus the reward."""
    move = phi - anchor
    if abs(move) < noise_floor or (mode == "best" and move < 0):
        return 0.0
    return move


class DeltaReward:
    """Pays one episode's scores in order; it gets only validates that have a score."""

    def __init__(self, scale: Scale, *, mode: Mode = "previous") -> None:
        self._scale = scale
        self._mode = mode
        self._anchor = phi_on(scale, scale.baseline)
        self._anchor_error = 0.0

    def __call__(self, score: float, stderr: float | None = None) -> Paid:
        """Pays for one score, the primary metric as measured, with the standard error `stderr`.

        Raises:
            ValueError: the score is not finite, or the standard error is negative.
        """
        phi = phi_on(self._scale, score)
        error = phi_error(self._scale, score, 0.0 if stderr is None else stderr)
        of_the_move = math.hypot(error, self._anchor_error)
        floor = max(self._scale.noise_floor, self._scale.noise_sigmas * of_the_move)
        anchor = self._anchor
        paid = delta(phi, anchor, mode=self._mode, noise_floor=floor)
        if paid:
            self._anchor, self._anchor_error = phi, error
        return Paid(phi=phi, delta=paid, floor=floor, anchor=anchor)
