"""Provides boxes (containers or processes in which commands run) to worlds, such as question sets with tools,
that are not research tasks: one box for each agent, and a new box for each check of an answer by running
code."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from air.env.config import ResearchEnvConfig
from air.env.world_episode import WatchedWorld
from air.errors import BoxDiedError, BoxEndedError, ConfigError, GradingError
from air.sandbox.contract.box import Box, BoxSpec
from air.sandbox.contract.result import Command, ExecResult
from air.sandbox.pool.box_pool import Pool
from air.worlds.base import Run
from air.worlds.sources import WorldTask

_KILLED = 137


class WorldBoxes:
    """Lends boxes (containers or processes) to all episodes in this process. `agents` is the pool of agents'
    boxes, and `checks` the pool of boxes in which answers are checked. The pools are separate, because an
    agent keeps its box during a check, and might otherwise wait for ever for a second one."""

    def __init__(self, agents: Pool, checks: Pool, config: ResearchEnvConfig) -> None:
        self.agents, self.checks, self._config = agents, checks, config

    def spec(self, spec: BoxSpec) -> BoxSpec:
        """Returns a copy of `spec` in which two fields follow from the run's settings: `provider`, the kind
        of box (`docker` or `process`), and `reusable`, whether the box may serve several episodes."""
        provider = self._config.provider
        closed = provider == "docker" and not (spec.network or spec.gpus or spec.open)
        return spec.model_copy(
            update={"provider": provider, "reusable": self._config.reuse_boxes and closed}
        )

    @asynccontextmanager
    async def lease(self, spec: BoxSpec) -> AsyncIterator[Box]:
        """Async context manager: yields a box for an agent. After the block, a reusable box is reset for
        another episode, and any other box is removed. If the block raises an exception, the box is removed in
        any case."""
        box = await self.agents.take(spec)
        try:
            yield box
        except BaseException:  # cancellation too: a command may still run
            self.agents.give_back(box)
            raise
        if box.spec.reusable:
            self.agents.give_back_for_reuse(box)
        else:
            self.agents.give_back(box)

    @asynccontextmanager
    async def world(self, task: WorldTask) -> AsyncIterator[WatchedWorld]:
        """Async context manager: yields a new world (what an agent acts in) of `task` for one episode, with
        the boxes that it needs. The caller must call the world's `reset`, and its `close` inside the
        block."""
        run = None if task.check_box is None else self.runner(task.check_box)
        if task.box is None:
            yield WatchedWorld(task.world(run=run), task.unanswered)
            return
        began = time.monotonic()
        async with self.lease(self.spec(task.box)) as box:
            seconds = time.monotonic() - began
            yield WatchedWorld(task.world(box, run), task.unanswered, box=box, box_seconds=seconds)

    def runner(self, spec: BoxSpec) -> Run:
        """Returns a function with which a checker of answers runs the agent's code. The function runs one
        command in a new box with the settings `spec`, and returns its result; if the command ended the box,
        the result has exit code 137. If the box fails for another reason, it raises GradingError."""
        spec = spec.model_copy(update={"provider": self._config.provider, "reusable": False})

        async def run(
            command: Command,
            *,
            seconds: float,
            stdin: bytes = b"",
            files: Mapping[str, bytes] | None = None,
            max_bytes: int = 1_000_000,
        ) -> ExecResult:
            async with self.checks.lease(spec) as box:
                try:
                    async with box.attributing():
                        return await box.exec(
                            command, timeout=seconds, stdin=stdin, files=files, max_bytes=max_bytes
                        )
                except BoxEndedError:
                    return ExecResult(code=_KILLED, stdout=b"", stderr=b"", signal=9)
                except BoxDiedError as error:  # GradingError, because this box is not the agent's
                    raise GradingError(f"the box of a check: {error}") from error

        return run


@asynccontextmanager
async def lent(task: WorldTask, boxes: WorldBoxes | None) -> AsyncIterator[WatchedWorld]:
    """Async context manager: yields a new world (what an agent acts in) of `task` for one episode. If the
    task needs boxes, takes them from `boxes`; raises ConfigError if `boxes` is None then."""
    if not task.in_boxes:
        yield WatchedWorld(task.world(), task.unanswered)
        return
    if boxes is None:
        raise ConfigError("needs boxes, which nothing lends here", where=task.id)
    async with boxes.world(task) as world:
        yield world
