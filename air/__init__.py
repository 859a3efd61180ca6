"""air: trains language-model agents, by reinforcement learning, to do machine-learning research.

The package is a plugin of the library `verifiers` (environments for reinforcement learning). `verifiers`
expects a plugin to export exactly one Taskset class (loads the tasks), one Env class (plays the episodes) and
one Harness class (drives the conversation between model and task). Each of these three classes is imported
only when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from air.env.chat.harness import AirHarness
    from air.env.environment import ResearchEnv
    from air.env.taskset import AirTaskset

__all__ = ["AirHarness", "AirTaskset", "ResearchEnv"]

_WHERE = {
    "AirHarness": "air.env.chat.harness",
    "AirTaskset": "air.env.taskset",
    "ResearchEnv": "air.env.environment",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'air' has no attribute {name!r}")
    from importlib import import_module

    try:
        return getattr(import_module(_WHERE[name]), name)
    except (ModuleNotFoundError, AttributeError) as error:
        # verifiers takes both errors to mean "no plugin here", and would use its own environment instead.
        raise ImportError(f"air.{name} cannot be loaded: {error}") from error
