"""The delta reward: each `validate` by the agent earns the change of the normalised score φ.

The setting `delta` decides with which earlier φ the new φ is compared:

    previous   δ_t = φ(s_t) − φ(s_{t−1})
    best       δ_t = max(0, φ(s_t) − max_{k<t} φ(s_k))

s_t is the score of the t-th validate, and s_0 the task's baseline. The anchor is the φ with which the next
score is compared. A change smaller than the noise floor earns nothing and leaves the anchor as it is. So
small changes are added up, and their sum is earned as soon as it reaches the noise floor. The deltas of an
episode always sum to φ(last anchor) − φ(baseline), so validating more often earns nothing.

The noise floor is the larger of the task's `noise_floor` and `noise_sigmas` · √(e_t² + e_anchor²), in which
e_t and e_anchor are the standard errors of the two φ. The baseline has a standard error of 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from air.rewards.normalise import Scale, phi_error, phi_on

Mode = Literal["previous", "best"]


@dataclass(frozen=True)
class Paid:
    """The reward for one validate, with the normalised scores φ from which the reward was computed."""

    phi: float
    """The normalised and clipped score φ of this validate."""
    delta: float
    """The reward for this validate."""
    floor: float = 0.0
    """The noise floor: the smallest change of φ that earns a reward."""
    anchor: float = 0.0
    """The earlier φ with which `phi` was compared."""


def delta(phi: float, anchor: float, *, mode: Mode, noise_floor: float = 0.0) -> float:
    """Returns the delta reward for a validate: `phi` − `anchor`, or 0 if this change earns nothing.

    Args:
        phi: the normalised score of the validate.
        anchor: the earlier normalised score with which `phi` is compared. The anchor of the next validate is
            `anchor` plus the result.
        mode: `best` rewards only improvements; `previous` also gives negative rewards.
        noise_floor: the smallest change that earns a reward; a smaller change earns 0.
    """
    move = phi - anchor
    if abs(move) < noise_floor or (mode == "best" and move < 0):
        return 0.0
    return move


class DeltaReward:
    """Computes the delta rewards of one episode, and stores the score with which the next score is compared.

    Call the object once for each validate that has a score, in the order of the validates.

    Args:
        scale: the task's settings by which scores are normalised.
        mode: `previous` compares each score with the previous score, `best` with the best score so far.
    """

    def __init__(self, scale: Scale, *, mode: Mode = "previous") -> None:
        self._scale = scale
        self._mode = mode
        self._anchor = phi_on(scale, scale.baseline)
        self._anchor_error = 0.0

    def __call__(self, score: float, stderr: float | None = None) -> Paid:
        """Returns the reward for one validate, and stores the score for the next comparison.

        The next score is compared with `score`. But if the reward is 0, the next score is compared with the
        same earlier score again.

        Args:
            score: the value of the primary metric, not normalised.
            stderr: the standard error of `score`; None counts as 0.

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
