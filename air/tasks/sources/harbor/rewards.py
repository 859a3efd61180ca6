"""Parses the reward files that a Harbor task's tests write, and combines the rewards of a task's steps. Pure
functions, without side effects."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from air import json_lines

MAIN_KEY = "reward"


def read_json(data: bytes) -> dict[str, float]:
    """Returns the rewards in the file `reward.json`, an object whose values are finite numbers or booleans;
    true counts as 1, false as 0. Raises ValueError, whose message states the problem, if the content is
    anything else."""
    if not data:
        raise ValueError("reward.json is empty")
    try:
        rewards = json_lines.decode(data)
    except ValueError as error:
        raise ValueError(f"reward.json is no JSON: {error}") from None
    if not isinstance(rewards, dict):
        raise ValueError("reward.json holds no object with one number for each key")
    for key, value in rewards.items():
        if not isinstance(value, int | float) or not _finite(value):
            raise ValueError(f"reward.json: {key!r:.40} is {value!r:.40}, not a finite number")
    return {str(key): float(value) for key, value in rewards.items()}


def read_text(data: bytes) -> dict[str, float]:
    """Returns the reward in the file `reward.txt`, one finite number, as a dict with the key `reward`. Raises
    ValueError, whose message states the problem, if the content is anything else."""
    if not data:
        raise ValueError("reward.txt is empty")
    try:
        value = float(data.decode())
    except ValueError:
        raise ValueError(f"reward.txt is {data[:40]!r}, not a number") from None
    if not math.isfinite(value):
        raise ValueError(f"reward.txt is {value!r}, not a finite number")
    return {MAIN_KEY: value}


def metrics(rewards: Mapping[str, float], key: str = "") -> dict[str, float]:
    """Returns a copy of `rewards` with one more entry, or a replaced one, under the key `reward`: the task's
    score. The score is the reward named `key`. If `key` is empty, it is the reward named `reward` or, if
    there is no such reward, the only reward. Raises ValueError if the score cannot be determined."""
    chosen = key or (next(iter(rewards)) if len(rewards) == 1 else MAIN_KEY)
    if chosen not in rewards:
        keys = ", ".join(sorted(rewards))[:200] or "none"
        remedy = "" if key else "; say which counts: env.taskset.harbor.reward_key"
        raise ValueError(f"there is no reward {chosen!r} among the keys ({keys}){remedy}")
    return {**rewards, MAIN_KEY: rewards[chosen]}


def total(
    rewards: Sequence[float | None],
    strategy: str,
    lowest: float,
    *,
    unplayed: int = 0,
) -> float:
    """Computes a task's reward from `rewards`, the rewards of its played steps (stages), as Harbor does: the
    mean over the steps (strategy `mean`), or the reward of the last step (`final`).

    A reward of None means that grading failed; it counts as `lowest`. `unplayed` is the number of further
    steps that were not played because the agent ended the episode. They count as `lowest`, too, so that an
    agent cannot avoid a hard step."""
    values = [lowest if reward is None else reward for reward in rewards] + [lowest] * unplayed
    return values[-1] if strategy == "final" else fmean(values)


def enough(metrics: Mapping[str, float], least: float | Mapping[str, float] | None) -> bool:
    """Whether the task continues after a step: the step's rewards reach `least`, the step's setting
    `min_reward`. `least` is a threshold for the reward named `reward`, or a threshold for each of several
    rewards by name, which must all be reached; None is always reached. A missing reward does not reach its
    threshold."""
    if least is None:
        return True
    needed = least if isinstance(least, Mapping) else {MAIN_KEY: least}
    return all(metrics.get(key, -math.inf) >= number for key, number in needed.items())


def _finite(value: float) -> bool:
    try:
        return math.isfinite(float(value))
    except OverflowError:  # an integer of hundreds of digits
        return False
