"""The delta reward: each `validate` (an action with which the agent has its work graded) earns the change of
the normalised score φ.

The setting `delta` selects the earlier φ with which the new φ is compared (s_t is the score of validate t,
s_0 the task's baseline):

    previous   δ_t = φ(s_t) − φ(s_{t−1})
    best       δ_t = max(0, φ(s_t) − max_{k<t} φ(s_k))

A validate without a score (the artefact, which is the file or folder to be graded, is missing or malformed,
or the agent's sandbox has ended) counts as the lowest φ, so that an agent gains nothing by deleting a bad
artefact. With `unscored = "unchanged"` such a validate earns nothing instead.

A change below the noise floor earns nothing. The anchor (the φ with which the next φ is compared) then stays
the same, so small changes add up. The deltas always sum to the last anchor − φ(baseline), so validating more
often earns nothing. The noise floor is the larger of the task's `noise_floor` and `noise_sigmas` · √(e_t² +
e_anchor²). Here e_t and e_anchor are the standard errors of φ(s_t) and of the anchor; the standard error of
the baseline is 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from air.rewards.normalise import Scale, phi_error, phi_on

Mode = Literal["previous", "best"]
Unscored = Literal["lowest", "unchanged"]
Counts = Literal["last", "best"]
"""Which artefact (the agent's file or folder that is graded) is graded on the test split at the end of an
episode: that of the last `validate` (graded attempt), or that of the `validate` with the best score."""


@dataclass(frozen=True)
class ValidateReward:
    """The reward for one `validate` (an action with which the agent has its work graded), and the normalised
    scores φ from which the reward was computed."""

    phi: float
    """The normalised and clipped score φ of this `validate` (graded attempt)."""
    delta: float
    """The reward for this `validate`: the normalised score `phi` minus the earlier one, `anchor`. It is 0 if
    the difference is below the noise floor or, with the setting `delta = "best"`, if the score fell."""
    floor: float = 0.0
    """The noise floor: the smallest difference of two normalised scores that earns a reward."""
    anchor: float = 0.0
    """The earlier normalised score with which `phi` was compared; the setting `delta` determines which
    one."""


def delta(phi: float, anchor: float, *, mode: Mode, noise_floor: float = 0.0) -> float:
    """Returns the delta reward for one `validate` (an action with which the agent has its work graded): `phi`
    (its normalised score φ) minus `anchor` (the earlier φ with which `phi` is compared). Returns 0 if the
    absolute value of this difference is below `noise_floor` or, in mode `best`, if the difference is
    negative.

    The anchor of the next validate is `anchor` plus the result.
    """
    move = phi - anchor
    if abs(move) < noise_floor or (mode == "best" and move < 0):
        return 0.0
    return move


def validate_that_counts(
    scores: Sequence[float | None], counts: Counts, direction: Literal["higher", "lower"]
) -> int | None:
    """Returns the index, from 0, of the `validate` (graded attempt of the agent) whose artefact (the graded
    file or folder) is graded again at the end of the episode, on the test split; None if there is no
    validate.

    `scores` has one entry for each validate so far; None stands for an artefact without a score. `direction`
    says whether higher or lower scores are better. If `counts` is `last`, the result is the last validate. If
    `counts` is `best`, the result is the first validate with the best score, or the last validate if none has
    a score.
    """
    scored = [index for index, score in enumerate(scores) if score is not None]
    if counts == "last" or not scored:
        return len(scores) - 1 if scores else None
    sign = 1.0 if direction == "higher" else -1.0
    return max(scored, key=lambda index: (sign * (scores[index] or 0.0), -index))


class DeltaReward:
    """Computes the delta rewards of one episode: the reward for each `validate`, an action with which the
    agent has its work graded. Call the object itself or its method `of` once for each validate, in order.
    `scale` has the task's settings for normalising scores. `mode` and `unscored` are the settings `delta` and
    `unscored` of `RewardSettings`."""

    def __init__(
        self, scale: Scale, *, mode: Mode = "previous", unscored: Unscored = "lowest"
    ) -> None:
        self._scale = scale
        self._mode = mode
        self._unscored = unscored
        self._anchor = phi_on(scale, scale.baseline)
        self._anchor_error = 0.0

    def __call__(self, score: float, stderr: float | None = None) -> ValidateReward:
        """Returns the reward for one `validate` (a graded attempt of the agent), from its unnormalised
        `score` and the standard error of the score (None counts as 0).

        The reward is φ, the normalised score, minus the anchor, an earlier φ. It is 0 if the two differ by
        less than the noise floor or, in mode `best`, if φ fell. If the reward is not 0, this φ becomes the
        next anchor. Raises ValueError if the score is not finite, or the standard error is negative.
        """
        phi = phi_on(self._scale, score)
        error = phi_error(self._scale, score, 0.0 if stderr is None else stderr)
        return self._pay(phi, error)

    def of(self, score: float | None, stderr: float | None = None) -> ValidateReward | None:
        """Returns the reward for one `validate` (a graded attempt of the agent), as `__call__` does. `score`
        may also be None: the artefact (the graded file or folder) has no score. Then returns the reward for
        the lowest φ, or None (the validate earns nothing) if the setting `unscored` is `unchanged`."""
        if score is not None:
            return self(score, stderr)
        return None if self._unscored == "unchanged" else self._pay(self._scale.phi_clip[0], 0.0)

    def _pay(self, phi: float, error: float) -> ValidateReward:
        of_the_move = math.hypot(error, self._anchor_error)
        floor = max(self._scale.noise_floor, self._scale.noise_sigmas * of_the_move)
        anchor = self._anchor
        reward = delta(phi, anchor, mode=self._mode, noise_floor=floor)
        if reward:
            self._anchor, self._anchor_error = phi, error
        return ValidateReward(phi=phi, delta=reward, floor=floor, anchor=anchor)
