"""Checks, before episodes start, that this machine has what the research tasks need, such as Docker, images
and GPUs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from air import actions
from air.env.config import RESEARCH_FORMAT, AirHarnessConfig, ResearchEnvConfig
from air.errors import ConfigError, MissingError
from air.sandbox.docker import air_images
from air.sandbox.pool.gpu_leases import GpuPool, divided
from air.sandbox.pool.gpus import plan
from air.tasks.spec import TaskSpec
from air.tools.mcp.connection import check_package

# verifiers' servers show the messages of loggers below their own name.
_LOG = logging.getLogger("verifiers.v1.air.environment")


def gpu_pools(
    config: ResearchEnvConfig, specs: Sequence[TaskSpec]
) -> tuple[GpuPool | None, GpuPool | None]:
    """Returns two pools of GPUs, the first for agents' boxes and the second for graders' boxes, or (None,
    None) if the settings name no GPUs. Raises ConfigError if there are too few GPUs for the tasks `specs`, or
    if the settings name none although a task needs some."""
    if not config.gpus:
        for spec in specs:
            if spec.gpus or spec.grader.gpus:
                raise ConfigError(
                    f"task {spec.id} needs {spec.needs()}, but boxes have no GPU",
                    where="env.gpus",
                    remedy='set gpus = "auto", or name them: `air gpus` lists them',
                )
        return None, None
    gpus = plan(config.gpus, trainer=config.trainer_gpus, inference=config.inference_gpus)
    return divided(
        gpus,
        box=max(spec.gpus for spec in specs),
        grader=max(spec.grader.gpus for spec in specs),
        slots_per_gpu=config.slots_per_gpu,
        where="env.gpus",
    )


def check_rules(spec: TaskSpec, config: ResearchEnvConfig) -> None:
    """Checks that a task with its own grading rules (`spec.rules`), such as a Harbor task, can be played with
    the settings `config`: for example, that no setting is used that has no effect on it. Raises ConfigError
    if not."""
    spec.box_spec(config.provider)
    for name in ("test_weight", "final"):
        if getattr(config, name) != type(config).model_fields[name].get_default():
            raise ConfigError(
                f"has no effect on {spec.id}, which has one grading and no test split",
                where=f"env.{name}",
                remedy="leave it out",
            )
    assert spec.rules is not None
    spec.rules.check()
    _check_servers(spec, config)
    harness = config.agent.harness
    program = harness is not None and not isinstance(harness, AirHarnessConfig)
    if spec.rules.steps > 1 and spec.rules.shared and program:
        raise ConfigError(
            f"cannot play {spec.id}: the tests of a step run in the agent's box and end its program",
            where="env.agent.harness.id",
            remedy='use env.taskset.harbor.verifier = "separate", or harness id = "air"',
        )
    if spec.rules.steps > 1 and config.delta != "previous":
        raise ConfigError(
            f"would pay the best of the steps of {spec.id} instead of its reward",
            where="env.delta",
            remedy='use delta = "previous"',
        )


def _check_servers(spec: TaskSpec, config: ResearchEnvConfig) -> None:
    """Checks that the model can be offered the tools of a task's MCP servers (servers of tools that speak the
    Model Context Protocol). Raises UsageError if the package for MCP is missing, or the action format cannot
    express tool calls. If a program plays the agent, only warns that it does not get these tools."""
    rules = spec.rules
    if rules is None or not rules.tool_servers:
        return
    harness = config.agent.harness
    if harness is not None and not isinstance(harness, AirHarnessConfig):
        _LOG.warning(
            "%s offers tools of MCP servers, which a program in the box does not get from air: its servers "
            "are not started",
            spec.id,
        )
        return
    check_package()
    name = (harness.format if harness is not None else "") or RESEARCH_FORMAT
    actions.get(name).with_tools([{"name": "probe", "parameters": {"type": "object"}}])


def warn_of_trust(specs: Sequence[TaskSpec]) -> None:
    if names := [spec.id for spec in specs if spec.trust == "evaluator"]:
        _LOG.warning(
            "the evaluation of %s imports the artefact, whose code can make it print any score: do not train "
            "on such a task if its reward must mean something",
            ", ".join(names),
        )
    if names := [spec.id for spec in specs if spec.trust == "shared"]:
        _LOG.warning(
            "the tests of %s run in the agent's own box, whose programs the agent could have changed: such a "
            "reward can be forged",
            ", ".join(names),
        )


def check_docker(image: str) -> None:
    if reason := air_images.why_not_ready(image):
        raise MissingError(
            f"Docker boxes cannot be started: {reason}",
            where="env.agent.runtime.type",
            remedy=("" if " — " in reason else "run `air setup`, ")
            + "or play without isolation in process boxes: "
            "--runtime subprocess (rl: --orchestrator.train.source.0.env.agent.runtime.type subprocess; "
            "air tasks check: --provider process)",
        )


async def check_images(spec: TaskSpec) -> None:
    """Raises MissingError if this machine lacks a container image that `spec` needs. For tasks with their own
    grading rules, such as Harbor tasks."""
    from air.sandbox.docker import engine

    rules = spec.rules
    assert rules is not None
    for name in await asyncio.to_thread(lambda: rules.images):
        if await asyncio.to_thread(engine.image, name) is None:
            raise MissingError(
                f"its image {name} is not here",
                where=spec.id,
                remedy=f"run `{rules.build_command}`",
            )


def check_namespaces() -> None:
    from air.sandbox.process import namespaces

    support = namespaces.detect()
    if support.mode == "plain":
        raise ConfigError(
            "a program plays only in an isolated box, and process boxes here have no namespaces "
            f"({support.reason})",
            where="env.agent.runtime.type",
            remedy='use docker, or harness id = "air"',
        )
