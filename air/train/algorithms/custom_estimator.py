"""Imports a user's advantage estimator, which a run file (TOML) names as `module:function`.

The function is called as `function(rewards, **kwargs)` for each group that is trained. `rewards` has one
number per episode, or None for an episode that is not trained, because it ended with an infrastructure error.
The function returns one finite advantage per episode. `kwargs` come from the run file
(`[embedded.estimator]`).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from air.config import plugin
from air.errors import ConfigError, UsageError
from air.train.algorithms.episode_baselines import Estimator


def find(import_path: str) -> Callable[..., Sequence[float]]:
    """Imports and returns the function that `import_path` names, in the form `module:name`. Raises ValueError
    if the path does not have this form, if the import fails, or if the object is not callable."""
    try:
        function: Callable[..., Sequence[float]] = plugin(import_path)
    except UsageError as error:
        raise ValueError(str(error)) from None
    if not callable(function):
        raise ValueError(f"{import_path!r} is not a function")
    return function


def check_kwargs(import_path: str, kwargs: Mapping[str, Any]) -> None:
    """Raises ValueError if the function at `import_path` does not accept the call `function(rewards,
    **kwargs)`, or cannot be imported. The function is not called."""
    try:
        inspect.signature(find(import_path)).bind([], **kwargs)
    except TypeError as error:
        raise ValueError(
            f"{import_path!r} cannot be called as `function(rewards, **kwargs)`: {error}"
        ) from None


def load(import_path: str, kwargs: Mapping[str, Any]) -> Estimator:
    """Imports the function that `import_path` names, and returns an estimator that calls it with `kwargs`.
    The estimator raises ConfigError if the function does not return exactly one finite advantage for each
    reward. Raises ValueError if the function cannot be imported."""
    function = find(import_path)

    def estimate(rewards: Sequence[float | None]) -> list[float]:
        advantages = [float(value) for value in function(rewards, **kwargs)]
        if len(advantages) != len(rewards) or not all(map(math.isfinite, advantages)):
            raise ConfigError(
                f"{import_path!r} returned {advantages} for the rewards {list(rewards)}",
                where="embedded.estimator.import_path",
                remedy="return one finite number for each reward",
            )
        return advantages

    return estimate
