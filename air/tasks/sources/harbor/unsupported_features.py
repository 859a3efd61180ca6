"""Finds the features of a Harbor task that air does not support. Air refuses a task that uses one of them,
even if the task is valid."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

from pydantic import ValidationError

from air.config import first_problem
from air.sandbox.contract.network_rules import is_address, rule
from air.sandbox.contract.open_box import OpenBox
from air.tasks.sources.harbor.artefact import NEVER
from air.tasks.sources.harbor.folder import HarborFolder
from air.tasks.sources.harbor.schema import MAIN_SERVICE, Environment, HarborConfig, Network, User

_ADDRESS = re.compile(r"[0-9.]+(/[0-9]+)?|.*:.*")
COMPOSE = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")


def refusals(folder: HarborFolder) -> list[str]:
    """Returns the reasons why air cannot run the task. Each reason is one line of text that begins with the
    name of a key in `task.toml` or of a file. The list is empty if air can run it."""
    return [*_of_files(folder), *_of_config(folder)]


def _of_files(folder: HarborFolder) -> Iterator[str]:
    steps = folder.config.steps
    for part in ("environment", "tests", *(f"steps/{step.name}/tests" for step in steps)):
        for name in COMPOSE:
            if (folder.path / part / name).is_file():
                yield (
                    f"{part}/{name}: a compose file can mount folders of this machine and starts further "
                    "containers; only one container is supported"
                )
    if not folder.config.environment.docker_image and folder.dockerfile is None:
        yield "environment/: there is no Dockerfile, and environment.docker_image names no image"
    for step in steps or (None,):
        where = "" if step is None else f"steps/{step.name}/"
        if (folder.path / where / "trajectory.json").is_file():
            yield f"{where}trajectory.json: an episode cannot begin with earlier turns"


def _of_config(folder: HarborFolder) -> Iterator[str]:
    config = folder.config
    yield from _of_environment("environment", config.environment)
    yield from _of_servers(config)
    yield from _of_network("agent", config.agent)
    yield from _of_user("agent", config.agent.user)
    verifiers = [("verifier", config.verifier)]
    verifiers += [(f"steps.{step.name}.verifier", step.verifier) for step in config.steps]
    for name, verifier in verifiers:
        yield from _of_network(name, verifier)
        yield from _of_user(name, verifier.user)
        if verifier.environment is not None:
            yield from _of_environment(f"{name}.environment", verifier.environment)
            if verifier.environment.mcp_servers:
                yield f"{name}.environment.mcp_servers: only an agent has tools"
        for collect in verifier.collect:
            yield from _of_user(f"{name}.collect", collect.user)
            if collect.service != MAIN_SERVICE:
                yield f"{name}.collect: the service {collect.service!r} needs a compose file"
    for step in config.steps:
        yield from _of_network(f"steps.{step.name}.agent", step.agent)
        for key in ("user", "network_mode", "allowed_hosts"):
            own, others = getattr(step.agent, key), getattr(config.agent, key)
            if own is not None and own != others:
                yield (
                    f"steps.{step.name}.agent.{key}: the agent's box keeps its user and its network "
                    f"for all steps; set agent.{key}"
                )
    for artifact in (*config.artifacts, *(one for step in config.steps for one in step.artifacts)):
        if artifact.service not in (None, MAIN_SERVICE):
            yield f"artifacts: the service {artifact.service!r} needs a compose file"
        elif _is_never_handed_in(artifact.source):
            yield f"artifacts: {artifact.source!r} is never handed in"


def _is_never_handed_in(source: str) -> bool:
    path = posixpath.normpath(source)
    return not path.strip("/") or any(f"{path}/".startswith(f"{never}/") for never in NEVER)


def _of_servers(config: HarborConfig) -> Iterator[str]:
    """Yields the reasons why air cannot offer the task's tool servers (of the Model Context Protocol, MCP) to
    the agent."""
    names = [server.name for server in config.environment.mcp_servers]
    for server in config.environment.mcp_servers:
        where = f"environment.mcp_servers: {server.name!r}"
        if names.count(server.name) > 1:
            yield f"{where}: two servers have this name"
        if server.transport == "stdio":
            continue
        try:
            parts = urlsplit(server.url or "")
            host = parts.hostname or ""
            port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:
            host, port = "", 0
        if not host or parts.scheme not in ("http", "https"):
            yield f"{where}: {server.url!r} is no address of the form http://HOST/…"
        elif host == "localhost" or is_address(host):
            yield (
                f"{where}: {host} is an address, perhaps in the box itself; only a server with a public "
                'name, or in the box with transport = "stdio", can be reached'
            )
        elif not any(rule(one).allows(host, port) for one in _opened(config)):
            yield f"{where}: the agent's network does not open {host}:{port}"


def _opened(config: HarborConfig) -> Sequence[str]:
    """Returns the names of the hosts to which the agent may connect according to the task's network settings.
    `*` stands for all hosts; the list is empty if there is no network."""
    phase = config.agent if config.agent.network_mode is not None else config.environment
    mode = phase.network_mode or "public"
    hosts = [host for host in phase.allowed_hosts or () if not _ADDRESS.fullmatch(host)]
    return {"no-network": [], "public": ["*"], "allowlist": hosts}[mode]


def _of_environment(name: str, environment: Environment) -> Iterator[str]:
    if environment.os != "linux":
        yield f"{name}.os: {environment.os} containers are not supported"
    if environment.tpu is not None:
        yield f"{name}.tpu: TPUs are not supported"
    if environment.gpu_types:
        yield f"{name}.gpu_types: GPUs cannot be chosen by model; name them in the run file (env.gpus)"
    yield from _refusals_of_box_settings(f"{name}.workdir", workspace=environment.workdir or "")
    yield from _of_network(name, environment)


def _of_network(name: str, network: Network) -> Iterator[str]:
    for host in network.allowed_hosts or ():
        if _ADDRESS.fullmatch(host):
            yield f"{name}.allowed_hosts: {host!r} is an address; only names of hosts can be opened"
            continue
        try:
            rule(host)
        except ValueError as error:
            yield f"{name}.allowed_hosts: {error}"


def _of_user(name: str, user: User) -> Iterator[str]:
    yield from _refusals_of_box_settings(f"{name}.user", user="" if user is None else str(user))


def _refusals_of_box_settings(name: str, **settings: str) -> Iterator[str]:
    """Checks whether a box (sandbox) can have `settings`, some fields of the class `OpenBox`, such as `user`.
    If not, yields one line of text with the reason, which begins with `name`, the key in the task's
    `task.toml`. Yields nothing if it can."""
    try:
        OpenBox(keep=True, **settings)
    except ValidationError as error:
        reason = first_problem(error, settings).reason.partition(": ")[2]
        yield f"{name}: {reason}"
