"""What else an episode earns beside its deltas: one pure function a term, signed as it enters the reward.

    format            −weight · replies that were no action
    failed_validates  −weight · validates whose artefact was missing or malformed
    time              −weight · min(1, seconds / limit)
    test_score        +weight · φ(test score); φ's lowest value where there is no score

A weight of 0 turns a term off; then it is 0.0, never −0.0. The reward is the sum of all terms, the
deltas among them.
"""

from __future__ import annotations

from air.rewards.normalise import Scale, phi_on


def format_errors(count: int, weight: float) -> float:
    """What `count` replies that were no action cost together."""
    return 0.0 - weight * count


def failed_validates(count: int, weight: float) -> float:
    """What `count` validates without a gradable artefact cost together."""
    return 0.0 - weight * count


def time_used(seconds: float, limit: float, weight: float) -> float:
    """What the time costs: the share of the limit that was used, at most all of it.

    Args:
        seconds: the agent's own time, at least 0.
        limit: the longest episode, in seconds.

    Raises:
        ValueError: the limit is not positive, or the time is negative or no number.
    """
    if not limit > 0 or not seconds >= 0:
        raise ValueError(f"{seconds} s of {limit} s is no share of a limit")
    return 0.0 - weight * min(1.0, seconds / limit)


def final_score(score: float | None, scale: Scale, weight: float) -> float:
    """What the last artefact earns by its normalised score on the test split.

    Without a score it counts as the worst that `scale.phi_clip` knows, so that taking a bad artefact
    away never earns anything.

    Raises:
        ValueError: the score is not finite.
    """
    if weight == 0:
        return 0.0
    return weight * (scale.phi_clip[0] if score is None else phi_on(scale, score))
