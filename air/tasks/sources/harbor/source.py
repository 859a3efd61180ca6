"""Loads a Harbor task's folder as a `TaskSpec` (air's declaration of a task), whose `Rules` prepare the
task's sandboxes and grade the task as Harbor does."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from air.errors import BoxFileError, ConfigError, StagingError, boundary
from air.sandbox.contract.box import Box, BoxSpec
from air.tasks.rules import Artefact, GraderResult, ToolServer
from air.tasks.sources import harbor_images as images
from air.tasks.sources.harbor import artefact as artefacts
from air.tasks.sources.harbor import (
    boxes,
    ids,
    rewards,
    solution,
    staging,
    unsupported_features,
    verifier,
)
from air.tasks.sources.harbor.commands import wait_until_healthy
from air.tasks.sources.harbor.folder import HarborFolder
from air.tasks.sources.harbor.schema import Agent, Artifact, Environment, Step, User, Verifier
from air.tasks.sources.harbor.settings import ROOT_VARIABLE, HarborSettings
from air.tasks.spec import TaskLimits, TaskSpec

METRIC = "reward"
SHARED_CAVEAT = "the tests run in the agent's own box, whose programs the agent could have changed"


def load(task_id: str, settings: HarborSettings) -> TaskSpec:
    """Returns the Harbor task with the id `task_id`, which has the form `harbor:PATH`. Raises MissingError if
    there is no such task, and ConfigError, which names the file and the key, if the task is invalid or air
    does not support it."""
    settings = settings.fixed()
    folder = ids.locate(task_id, settings.folder).read()
    if refused := unsupported_features.refusals(folder):
        raise ConfigError(
            f"cannot be played: {'; '.join(refused)}", where=str(folder.path / "task.toml")
        )
    own = [folder.config.verifier, *(step.verifier for step in folder.config.steps)]
    if settings.verifier == "shared" and any(one.environment or one.network_mode for one in own):
        raise ConfigError(
            "`verifier`: its own environment or network needs a box of its own",
            where=str(folder.path / "task.toml"),
            remedy='use env.taskset.harbor.verifier = "separate"',
        )
    return HarborRules(task_id, folder, settings).spec()


@dataclass(frozen=True)
class HarborRules:
    """The `Rules` (see `air.tasks.rules`) of one Harbor task: they prepare the task's boxes (sandboxes), and
    collect and grade the agent's files, as Harbor does."""

    task_id: str
    """The task's id."""
    folder: HarborFolder
    """The task's folder on disk."""
    settings: HarborSettings
    """The run's settings for Harbor tasks."""

    def spec(self) -> TaskSpec:
        """Returns the task as a `TaskSpec` (air's declaration of a task) that uses this object as its rules:
        it prepares and grades the task."""
        config = self.folder.config
        task = TaskSpec(
            id=self.task_id,
            name=self.folder.name,
            description=self.instruction(0) or self.folder.name,
            metric=METRIC,
            direction="higher",
            baseline=0.0,
            target=1.0,
            normalise="none",
            phi_clip=self.settings.range,
            artefact="workdir/",
            image=self.image,
            network=boxes.hosts(config.environment, config.agent, self.settings),
            gpus=config.environment.gpus or 0,
            trust="shared" if self.shared else "separate",
            caveat=SHARED_CAVEAT if self.shared else "",
            limits=self._limits,
        )
        return task.played_by(self, self.folder.path, self._digest())

    def _digest(self) -> str:
        settings = self.settings.model_dump(
            mode="json", include={"verifier", "reward_key", "network"}
        )
        text = json.dumps([self.folder.digest, settings], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @cached_property
    def image(self) -> str:
        """The name of the container image of the agent's box (sandbox)."""
        return images.agent_image(self.folder)

    @property
    def images(self) -> Sequence[str]:
        """The names of the container images that the task needs: first the image of the agent's box
        (sandbox), then the images of the tests, if the tests have their own."""
        return [wanted.tag for wanted in images.wanted(self.folder)]

    @property
    def build_command(self) -> str:
        command = f"air images build {shlex.quote(self.task_id)}"
        root, usual = self.settings.folder, HarborSettings().folder
        return command if root == usual else f"{ROOT_VARIABLE}={shlex.quote(str(root))} {command}"

    @property
    def shared(self) -> bool:
        return self.settings.verifier == "shared"

    @property
    def steps(self) -> int:
        return max(1, len(self.folder.config.steps))

    def _step(self, number: int) -> Step | None:
        steps = self.folder.config.steps
        return steps[number] if steps else None

    def _agent(self, number: int) -> Agent:
        """Returns the agent's settings (time limit, user, network access) in the task's step numbered
        `number`, from 0. The settings of the step take precedence over those of the task."""
        task, step = self.folder.config.agent, self._step(number)
        if step is None:
            return task
        own = step.agent
        return Agent(
            timeout_sec=own.timeout_sec or task.timeout_sec,
            user=task.user if own.user is None else own.user,
            network_mode=own.network_mode or task.network_mode,
            allowed_hosts=own.allowed_hosts if own.network_mode else task.allowed_hosts,
        )

    def _verifier(self, number: int) -> Verifier:
        """Returns the settings of the verifier (the tests) in the task's step numbered `number`, from 0. The
        settings of the step take precedence over those of the task. Environment variables and `collect`
        commands of the step are added to those of the task. As in Harbor, the time limit is always the step's
        own, even if only the task sets one."""
        task, step = self.folder.config.verifier, self._step(number)
        if step is None:
            return task
        own = step.verifier
        network = own if own.network_mode else task
        settings = {
            "env": {**task.env, **own.env},
            "user": task.user if own.user is None else own.user,
            "network_mode": network.network_mode,
            "allowed_hosts": network.allowed_hosts,
            "environment": own.environment or task.environment,
            "collect": (*task.collect, *own.collect),
        }
        return own.model_copy(update=settings)

    def _verifier_environment(self, number: int) -> Environment | None:
        """Returns the settings of the container in which the tests run apart from the agent
        (`verifier.environment` in `task.toml`), for the task's step numbered `number`, from 0. Returns None
        if there are no such settings, or if the task's author wants the tests to run in the agent's
        container."""
        if self.folder.config.verifier_mode(self._step(number)) == "shared":
            return None
        return self._verifier(number).environment

    def _verifier_image(self, number: int) -> str | None:
        return images.verifier_image(self.folder, self._step(number))

    @cached_property
    def _limits(self) -> TaskLimits:
        numbers = range(self.steps)
        seconds = [self._agent(n).timeout_sec or boxes.EPISODE_SECONDS for n in numbers]
        tests = max(self._verifier(n).timeout_sec for n in numbers)
        environment = self.folder.config.environment
        return boxes.limits(environment, sum(seconds), tests, self.settings)

    @property
    def tool_servers(self) -> Sequence[ToolServer]:
        agent = self._agent(0)
        hosts = boxes.hosts(self.folder.config.environment, agent, self.settings)
        user = None if agent.user is None else str(agent.user)
        return [
            ToolServer(
                name=re.sub(r"[^A-Za-z0-9_-]", "_", one.name)[:32],
                command=(one.command, *one.args) if one.command else (),
                user=user,
                url="" if one.command else one.url or "",
                transport=one.transport,
                headers=boxes.resolved(
                    one.headers,
                    self.settings,
                    where=f"{self.task_id}: environment.mcp_servers.headers",
                ),
                hosts=hosts,
            )
            for one in self.folder.config.environment.mcp_servers
        ]

    def instruction(self, step: int) -> str:
        return self.folder.instruction(self._step(step)) + staging.notes(
            self.folder.config.environment
        )

    def total(self, scores: Sequence[float | None], *, ended: bool) -> float:
        strategy = self.folder.config.multi_step_reward_strategy or "mean"
        unplayed = self.steps - len(scores) if ended else 0
        return rewards.total(scores, strategy, self.settings.range[0], unplayed=unplayed)

    def goes_on(self, step: int, metrics: Mapping[str, float]) -> bool:
        declared = self._step(step)
        if declared is None or step + 1 >= self.steps:
            return False
        return rewards.enough(metrics, declared.min_reward)

    def agent_box(self) -> BoxSpec:
        limits, graded = self._limits, self._limits.grade_seconds * 3 * self.steps
        return boxes.box(
            self.image,
            self.folder.config.environment,
            self._agent(0),
            self._agent(0).user,
            limits,
            limits.episode_seconds + (graded if self.shared else 0.0),
            self.settings,
            where=self.task_id,
        )

    def grading_box(self, artefact: Artefact) -> BoxSpec:
        number = artefacts.step_of(artefact)
        declared, own = self._verifier(number), self._verifier_environment(number)
        environment = own or self.folder.config.environment
        image = self.image if self.shared else self._verifier_image(number) or self.image
        limits = self._limits if own is None else boxes.limits(own, 1.0, 1.0, self.settings)
        return boxes.box(
            image,
            environment,
            declared,
            declared.user,
            limits,
            declared.timeout_sec,
            self.settings,
            where=self.task_id,
        )

    def check(self) -> None:
        for number in range(self.steps):
            self.grading_box(self.untouched(number))
            self._test_variables(number)
        _ = self.tool_servers

    async def stage(self, box: Box, step: int) -> None:
        declared, agent = self._step(step), self._agent(step)
        if step == 0:
            await verifier.prepare_logs(box)
            check = self.folder.config.environment.healthcheck
            await wait_until_healthy(box, check, box.image_user)
        if declared is not None:
            # The agent of an earlier step can have put a folder where a file belongs.
            with boundary(StagingError, f"steps/{declared.name}/workdir", BoxFileError):
                await staging.set_up(box, self.folder, declared, agent.user)
            await wait_until_healthy(box, declared.healthcheck, agent.user)

    async def collect(self, box: Box, step: int) -> Artefact:
        declared = self._step(step)
        await staging.run_collectors(box, self._verifier(step).collect)
        named: tuple[Artifact, ...] = self.folder.config.artifacts
        if declared is not None:
            named += declared.artifacts
        most = int(self.settings.artefact_mb * 2**20)
        own = not self.shared and self._verifier_image(step) is not None
        return await artefacts.read(box, named, step=step, most_bytes=most, own_image=own)

    def has_solution(self, step: int) -> bool:
        return all(solution.files(self.folder, self._step(n)) for n in range(step + 1))

    async def solve(self, box: Box, step: int) -> str:
        problems = []
        for number in range(step + 1):
            await self.stage(box, number)
            problems.append(await self.solve_step(box, number))
        return "; ".join(filter(None, problems))

    async def solve_step(self, box: Box, step: int) -> str:
        """Runs the reference solution of one step of the task in the agent's box (sandbox). Returns a message
        if its script failed, otherwise an empty string (see `solution.run`)."""
        seconds = self._limits.exec_seconds
        return await solution.run(box, self.folder, self._step(step), self.settings, seconds)

    def step_of(self, artefact: Artefact) -> int:
        return artefacts.step_of(artefact)

    def untouched(self, step: int) -> Artefact:
        return artefacts.untouched(step)

    async def grade(self, box: Box, artefact: Artefact) -> GraderResult:
        number = artefacts.step_of(artefact)
        own = self._verifier_environment(number)
        where = f"the tests of {self.task_id}"
        await verifier.prepare_logs(box)
        check = own.healthcheck if own else None
        await wait_until_healthy(box, check, self._verifier(number).user)
        try:
            await artefacts.lay_out(box, artefact)
        except BoxFileError as error:
            return GraderResult(
                message=f"it does not fit into the grading box: {error}", cacheable=False
            )
        if self._verifier_image(number) is None or self.shared:
            await verifier.put(box, self.folder.tests(self._step(number)), verifier.TESTS)
        outcome = await self._run(box, number, None, where)
        return outcome if not box.spec.network else _not_cacheable(outcome)

    async def grade_shared(self, box: Box, step: int) -> GraderResult:
        where = f"the tests of {self.task_id} in the agent's box"
        tests = self.folder.tests(self._step(step))
        with boundary(StagingError, where, BoxFileError):  # such as a file in the place of /logs
            await staging.clear_for_tests(box)
            await verifier.put(box, tests, verifier.TESTS)
            user = self._verifier(step).user
            user = box.image_user if user is None else user
            outcome = await self._run(box, step, user, where)
            await staging.clear_after_tests(box)
        return outcome

    async def _run(self, box: Box, number: int, user: User, where: str) -> GraderResult:
        return await verifier.run_tests(
            box,
            user=user,
            env=self._test_variables(number),
            seconds=self._verifier(number).timeout_sec,
            key=self.settings.reward_key,
            where=where,
        )

    def _test_variables(self, number: int) -> dict[str, str]:
        env = self._verifier(number).env
        return boxes.resolved(env, self.settings, where=f"{self.task_id}: verifier.env")


def _not_cacheable(outcome: GraderResult) -> GraderResult:
    return GraderResult(metrics=outcome.metrics, cacheable=False, seconds=outcome.seconds)
