"""Computes the settings of a Harbor task's boxes (sandboxes): environment variables, network access, limits
and users."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from air.errors import ConfigError
from air.sandbox.contract.box import BoxSpec, OpenBox
from air.tasks.sources.harbor.schema import Environment, Network, User
from air.tasks.sources.harbor.settings import HarborSettings
from air.tasks.spec import TaskLimits

CPUS, MEMORY_MB, DISK_MB, PIDS = 1.0, 2048, 4096, 512
"""Limits of a box (sandbox) whose task declares none: CPU cores, memory in MiB, disk in MiB, number of
processes. Harbor sets no limits for such a task, but every box of air has limits."""
EPISODE_SECONDS = 3600.0
"""The time limit of the agent, in seconds, if the task declares none."""
COMMAND_SECONDS = 600.0
"""The largest time limit of one command of the agent, in seconds."""
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


def limits(
    environment: Environment, seconds: float, grade_seconds: float, settings: HarborSettings
) -> TaskLimits:
    """Returns the limits of a task's boxes and commands. `environment` is the section of `task.toml` with CPU
    cores, memory and disk; where it declares no limit, the defaults of this module apply. `seconds` is the
    agent's time limit, and `grade_seconds` that of the tests. `settings` has the maximum size of the agent's
    artefact."""
    return TaskLimits(
        exec_seconds=min(seconds, COMMAND_SECONDS),
        grade_seconds=grade_seconds,
        episode_seconds=seconds,
        cpus=environment.cpus or CPUS,
        memory_mb=max(32, environment.memory_mb or MEMORY_MB),
        pids=PIDS,
        disk_mb=environment.storage_mb or DISK_MB,
        artefact_mb=settings.artefact_mb,
    )


def box(
    image: str,
    environment: Environment,
    phase: Network,
    user: User,
    limits: TaskLimits,
    seconds: float,
    settings: HarborSettings,
    *,
    where: str,
) -> BoxSpec:
    """Returns the settings of a box (sandbox) with the container image `image` and the settings in
    `environment`, a section of the task's `task.toml`. `phase` is the task's section `agent` or `verifier`,
    whose network keys take precedence over those of `environment`. The box's commands run as `user`, and its
    lifetime suffices for `seconds` seconds of work. Raises ConfigError, whose message begins with `where`, if
    an environment variable has no value (see `resolved`)."""
    env = resolved(environment.env, settings, where=f"{where}: environment.env")
    return BoxSpec(
        image=image,
        limits=limits.box(seconds),
        env=env,
        gpus=environment.gpus or 0,
        network=hosts(environment, phase, settings),
        open=OpenBox(
            keep=True,
            user="" if user is None else str(user),
            workspace=environment.workdir or "",
        ),
    )


def hosts(environment: Network, phase: Network, settings: HarborSettings) -> tuple[str, ...]:
    """Returns the names of the hosts that a box (sandbox) can reach while the agent works or while the
    verifier (the tests) runs; `phase` is the task's section for one of the two. If the phase declares a
    network mode, this mode replaces the environment's. `*` means all public hosts; this is Harbor's
    default."""
    declared = phase if phase.network_mode is not None else environment
    if settings.network == "none" or declared.network_mode == "no-network":
        return ()
    if declared.network_mode == "allowlist":
        return tuple(declared.allowed_hosts or ())
    return ("*",)


def resolved(env: Mapping[str, str], settings: HarborSettings, *, where: str) -> dict[str, str]:
    """Returns environment variables in whose values each `${NAME}` is replaced: by this machine's variable
    NAME if the setting `host_env` lists NAME and the variable is set, otherwise by the default in
    `${NAME:-default}`. Raises ConfigError, whose message begins with `where`, if a `${NAME}` has no value."""

    def value(match: re.Match[str]) -> str:
        name, default = match[1], match[2]
        allowed = name in settings.host_env
        if allowed and name in os.environ:
            return os.environ[name]
        if default is not None:
            return default
        raise ConfigError(
            f"needs the variable {name} of this machine, "
            + ("which is not set" if allowed else "which the run does not allow"),
            where=where,
            remedy=f"set {name}" if allowed else f"env.taskset.harbor.host_env = [{name!r}]",
        )

    return {name: _VARIABLE.sub(value, text) for name, text in env.items()}
