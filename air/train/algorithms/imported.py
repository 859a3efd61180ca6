"""Imports an advantage estimator from outside this package, which a run file names as `module:function`.

The function is called as `function(rewards, **kwargs)`; `air.train.algorithms.Estimator` says what it must
take and return.
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
    """Imports and returns the function that `import_path` names.

    Raises:
        ValueError: the path is not of the form `module:name`, or a function cannot be imported from it.
    """
    try:
        function: Callable[..., Sequence[float]] = plugin(import_path)
    except UsageError as error:
        raise ValueError(str(error)) from None
    if not callable(function):
        raise ValueError(f"{import_path!r} is not a function")
    return function


def check_kwargs(import_path: str, kwargs: Mapping[str, Any]) -> None:
    """Checks that the function can be called as `function(rewards, **kwargs)`.

    Raises:
        ValueError: the function does not take these arguments, or `find` cannot import it.
    """
    try:
        inspect.signature(find(import_path)).bind([], **kwargs)
    except TypeError as error:
        raise ValueError(
            f"{import_path!r} cannot be called as `function(rewards, **kwargs)`: {error}"
        ) from None


def load(import_path: str, kwargs: Mapping[str, Any]) -> Estimator:
    """Imports the function and returns it as an estimator that checks each result.

    The estimator raises ConfigError if the function does not return exactly one finite advantage for each
    reward.

    Raises:
        ValueError: `find` cannot import the function.
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
