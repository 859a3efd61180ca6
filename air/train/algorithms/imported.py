"""An advantage estimator from outside the package, named by a run file as `module:function`.

The function is called as `function(rewards, **kwargs)`; `Estimator` says what it takes and returns.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from air.config import plugin
from air.errors import ConfigError, UsageError
from air.train.algorithms import Estimator


def find(import_path: str) -> Callable[..., Sequence[float]]:
    """Imports the function.

    Raises:
        ValueError: the path is not of the form `module:name`, it cannot be imported, or is no function.
    """
    try:
        function: Callable[..., Sequence[float]] = plugin(import_path)
    except UsageError as error:
        raise ValueError(str(error)) from None
    if not callable(function):
        raise ValueError(f"{import_path!r} is not a function")
    return function


def check_kwargs(import_path: str, kwargs: Mapping[str, Any]) -> None:
    """Checks that the function can be called with these keyword arguments.

    Raises:
        ValueError: it cannot; or as `find`.
    """
    try:
        inspect.signature(find(import_path)).bind([], **kwargs)
    except TypeError as error:
        raise ValueError(
            f"{import_path!r} cannot be called as `function(rewards, **kwargs)`: {error}"
        ) from None


def load(import_path: str, kwargs: Mapping[str, Any]) -> Estimator:
    """The function as an estimator.

    The estimator raises ConfigError if the function returns another number of advantages than it got
    rewards, or one that is not finite.

    Raises:
        ValueError: as `find`.
    """
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
