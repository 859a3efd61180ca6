"""Reads the reward files of a Harbor verifier, and combines the rewards of steps. Pure functions."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from statistics import fmean

MAIN_KEY = "reward"


def read_json(data: bytes) -> dict[str, float]:
    """Returns the rewards in the file `reward.json`, an object of finite numbers; true and false are 1 and 0.
    Raises ValueError, which says what is wrong, if the file is something else."""
    if not data:
        raise ValueError("reward.json is empty")
    try:
        rewards = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"reward.json is no JSON: {error}") from None
    if not isinstance(rewards, dict):
        raise ValueError("reward.json holds no object with one number for each key")
    for key, value in rewards.items():
        if not isinstance(value, int | float) or not _finite(value):
            raise ValueError(f"reward.json: {key!r:.40} is {value!r:.40}, not a finite number")
    return {str(key): float(value) for key, value in rewards.items()}


def read_text(data: bytes) -> dict[str, float]:
    """Returns the reward in the file `reward.txt`, one finite number. Raises ValueError, which says what is
    wrong, if the file is something else."""
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
    """Returns the rewards as metrics. The metric `reward` is the reward that counts: the one named `key`. If
    `key` is empty, it is the one named `reward`, or the only one. Raises ValueError if there is no such
    reward."""
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
    """Returns the reward of a task from the rewards of its played steps, as Harbor computes it: the mean over
    the steps (strategy `mean`), or the reward of the last step (`final`).

    A reward of None means that grading failed; it counts as `lowest`. `unplayed` is the number of further
    steps that were not played because the agent ended the episode. They count as `lowest`, too, so that an
    agent cannot avoid a hard step."""
    values = [lowest if reward is None else reward for reward in rewards] + [lowest] * unplayed
    return values[-1] if strategy == "final" else fmean(values)


def enough(metrics: Mapping[str, float], least: float | Mapping[str, float] | None) -> bool:
    """Whether a step's rewards reach `least`, the step's `min_reward`: a number for the key `reward`, or a
    number for each named key. A missing key does not reach its number."""
    if least is None:
        return True
    needed = least if isinstance(least, Mapping) else {MAIN_KEY: least}
    return all(metrics.get(key, -math.inf) >= number for key, number in needed.items())


def _finite(value: float) -> bool:
    try:
        return math.isfinite(float(value))
    except OverflowError:  # an integer of hundreds of digits
        return False
