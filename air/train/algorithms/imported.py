"""An advantage estimator from outside the package, by its import path.

The path is dotted and names a function of a module that this Python can import, as prime-rl's import paths
do. The function is called as `function(rewards, **kwargs)`; `Estimator` says what it takes and returns.
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from air.errors import ConfigError
from air.train.algorithms import Estimator


def find(import_path: str) -> Callable[..., Sequence[float]]:
    """Imports the function.

    Raises:
        ValueError: the path has no module, the module cannot be imported, or it has no such function.
    """
    module, _, name = import_path.rpartition(".")
    if not module or not name:
        raise ValueError(f"{import_path!r} names no function; write `module.function`")
    try:
        function = getattr(importlib.import_module(module), name, None)
    except ImportError as error:
        raise ValueError(
            f"cannot import {module!r} ({error}); install it, or add its folder to PYTHONPATH"
        ) from None
    if function is None:
        raise ValueError(f"module {module!r} has no function {name!r}")
    if not callable(function):
        raise ValueError(f"{import_path!r} is not a function")
    result: Callable[..., Sequence[float]] = function
    return result


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
