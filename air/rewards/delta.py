"""The delta reward: what a validate earns is how far the normalised score moved.

    previous   δ_t = φ(s_t) − φ(s_{t−1})
    best       δ_t = max(0, φ(s_t) − max_{k<t} φ(s_k))

with s_0 the declared baseline. A move smaller than `noise_floor` earns nothing and leaves the anchor, the
φ that the next score is compared with, where it was: small steps add up and are paid once they
exceed the floor together. So the deltas of an episode always sum to φ(anchor) − φ(baseline), and
validating more often earns nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from air.rewards.normalise import Scale, phi_on

Mode = Literal["previous", "best"]


@dataclass(frozen=True)
class Paid:
    """What one scored validate earned."""

    phi: float
    """The normalised score, clipped."""
    delta: float
    """Its reward."""


def delta(phi: float, anchor: float, *, mode: Mode, noise_floor: float = 0.0) -> float:
    """The reward of a normalised score against the anchor; the next anchor is `anchor` plus it."""
    move = phi - anchor
    if abs(move) < noise_floor or (mode == "best" and move < 0):
        return 0.0
    return move


class DeltaReward:
    """Pays one episode's scores in turn. Only scored validates are given to it."""

    def __init__(self, scale: Scale, *, mode: Mode = "previous") -> None:
        self._scale = scale
        self._mode = mode
        self._anchor = phi_on(scale, scale.baseline)

    def __call__(self, score: float) -> Paid:
        """Pays for one score, the primary metric as measured.

        Raises:
            ValueError: the score is not finite.
        """
        phi = phi_on(self._scale, score)
        paid = delta(phi, self._anchor, mode=self._mode, noise_floor=self._scale.noise_floor)
        if paid:
            self._anchor = phi
        return Paid(phi=phi, delta=paid)
