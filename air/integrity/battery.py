"""Runs attacks (scripted agents that try to cheat) against tasks as real episodes, and judges each attack by
the reward of its episode.

Every attack is compared with two plain episodes, without an attack, of the same task in the same kind of box
(container, or process). In one, the agent hands in what the task's starter files produce if nobody changes
them; in the other, it hands in nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import verifiers.v1 as vf

from air import tasks
from air.aio import run_concurrently
from air.env.config import AirHarnessConfig, AirTasksetConfig, ResearchEnvConfig
from air.env.environment import ResearchEnv
from air.errors import InfrastructureError, UsageError
from air.integrity.attack import (
    DEFAULT,
    VALIDATES,
    Attack,
    Family,
    Setup,
    Target,
    turn,
)
from air.integrity.attack_episode import play
from air.integrity.host import Host
from air.integrity.verdict import (
    EVERY_TASK,
    MARGIN,
    AttackVerdict,
    Result,
    broken,
    too_low,
)
from air.sandbox import conformance
from air.sandbox.conformance import KNOWN_GAPS
from air.sandbox.conformance.check import Check, Unmet
from air.sandbox.contract.box import BoxSpec
from air.sandbox.contract.kinds import KINDS
from air.sandbox.docker import air_images
from air.tasks.check import read_solvers
from air.tasks.spec import Provider, TaskSpec

TURNS = 6
HARNESS_IMAGE = "air-harness"
"""The image of the agent's container in episodes in which a program in the container plays the agent."""


@dataclass
class Battery:
    """Runs attacks (scripted agents that try to cheat) against the tasks with the ids `names`, in one kind of
    box (container or process). `task_roots` and `mlgym_root` are folders in which the tasks are searched (see
    `air.tasks.load`)."""

    names: Sequence[str]
    provider: Provider
    attacks: Sequence[Attack]
    task_roots: Sequence[Path] = ()
    mlgym_root: Path | None = None
    at_once: int = 4
    """The number of episodes that run at the same time."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Further settings of air's environment for the episodes, by their names in `ResearchEnvConfig`. air's
    own tests pass weaker settings, to show that attacks then earn more."""
    on_verdict: Callable[[AttackVerdict], None] = lambda verdict: None
    """A function that is called with each verdict as soon as it is known."""

    async def run(self, record_dir: Path) -> list[AttackVerdict]:
        """Runs all attacks on all tasks; trajectories (records of the episodes) are written to `record_dir`.
        Returns one verdict for each attack on each task. If the result of an attack depends only on the kind
        of box, the attack is run on only one task.

        Raises UsageError if a task has no reference solutions, and InfrastructureError if a plain episode
        (one without an attack) failed.
        """
        async with Host.open(record_dir) as host, self._environment(record_dir, DEFAULT) as env:
            targets = [self._target(env, name, host) for name in self.names]
            plain = await run_concurrently(
                [self._plain(env, target) for target in targets], self.at_once
            )
            pairs = list(zip(targets, plain, strict=True))
            verdicts = []
            for setup in dict.fromkeys(attack.setup for attack in self.attacks):
                attacks = [attack for attack in self.attacks if attack.setup == setup]
                verdicts += await self._with_setup(attacks, setup, pairs, env, record_dir)
            return verdicts

    async def _with_setup(
        self,
        attacks: Sequence[Attack],
        setup: Setup,
        pairs: list[tuple[Target, dict[str, float]]],
        plain: ResearchEnv,
        record_dir: Path,
    ) -> list[AttackVerdict]:
        """Runs `attacks`, which all need the settings `setup`, on the targets in `pairs`, and returns their
        verdicts. Each pair is a target (a task in a kind of box) and a dict with the largest rewards that an
        attack may earn on it, by the keys `starter` and `lowest` (see `Bound`). `plain` is the environment
        with the default settings. The episodes are recorded in `record_dir`."""
        why_not = self._missing(setup)
        async with AsyncExitStack() as stack:
            env = plain
            if setup != DEFAULT and not why_not:
                env = await stack.enter_async_context(self._environment(record_dir, setup))
            works = [
                self._verdict(env, plain, attack, target, bounds, why_not)
                for attack in attacks
                for target, bounds in (_first_that_applies(attack, pairs) if attack.once else pairs)
            ]
            return await run_concurrently(works, self.at_once)

    def _missing(self, setup: Setup) -> str:
        """Checks that episodes with the settings `setup` can run on this machine. Returns the reason why they
        cannot, or an empty string if they can."""
        if setup.sampled and find_spec("transformers") is None:
            return "the model's tokens need transformers: install the extra `train`"
        if setup.harness == "air":
            return ""
        if self.provider == "process":
            plain = isolation(self.provider) == "process/plain"
            return "a program plays only in isolated boxes" if plain else ""
        if air_images.describe(HARNESS_IMAGE).current:
            return ""
        return f"the image {HARNESS_IMAGE} is not built: run `air images build harness`"

    @asynccontextmanager
    async def _environment(self, record_dir: Path, setup: Setup) -> AsyncIterator[ResearchEnv]:
        runtime = next(kind.runtime for kind in KINDS if kind.provider == self.provider)
        own = setup.harness == "air"
        agent = vf.AgentConfig.model_validate(
            {
                "harness": AirHarnessConfig(format=setup.format).model_dump()
                if own
                else {"id": setup.harness},
                "runtime": {"type": runtime},
                "max_turns": TURNS,
                "timeout": {"rollout": setup.seconds},
            }
        )
        settings: dict[str, Any] = {
            "max_validates": VALIDATES,
            "delta": setup.delta,
            **self.settings,
        }
        config = ResearchEnvConfig(
            taskset=AirTasksetConfig(
                tasks=list(self.names),
                task_roots=list(self.task_roots),
                mlgym_root=self.mlgym_root,
            ),
            agent=agent,
            image=None if own or self.provider == "process" else HARNESS_IMAGE,
            record_dir=record_dir,
            max_boxes=self.at_once,
            grader_boxes=self.at_once,
            max_failures=0,
            **settings,
        )
        env = ResearchEnv(config)
        async with env.serving():
            yield env

    def _target(self, env: ResearchEnv, name: str, host: Host) -> Target:
        # The recorded scores of reference solutions belong to the task as it is loaded, on its public split.
        loaded = tasks.load(name, list(self.task_roots), mlgym_root=self.mlgym_root)
        return Target(
            task=env.spec(name),
            provider=self.provider,
            starter=starter_script(loaded),
            isolation=isolation(self.provider),
            host=host,
        )

    async def _plain(self, env: ResearchEnv, target: Target) -> dict[str, float]:
        """Runs two episodes without an attack on a target: in one, the agent hands in what the task's
        unchanged starter files produce; in the other, nothing. Returns the largest rewards that attacks
        deserve, as a dict. `starter` is the higher of the two rewards. `lowest` is the task's lowest
        normalised score φ, or the reward for handing in nothing if it is lower. Raises InfrastructureError if
        one of the episodes failed."""
        starter = await play(env, target.task.id, [turn(target, "", "submit", starter=True)])
        nothing = await play(env, target.task.id, [turn(target, 'rm -rf "$ARTEFACT"', "submit")])
        for name, played in (("starter", starter), ("nothing", nothing)):
            if played.reward is None:
                raise InfrastructureError(
                    f"task {target.task.id}: the plain episode ({name}) failed: {played.error}"
                )
        assert starter.reward is not None
        assert nothing.reward is not None
        # A weaker setting may pay more for nothing; an attack still deserves no more than the lowest φ.
        lowest = min(nothing.reward, target.task.phi_clip[0])
        return {"starter": max(starter.reward, nothing.reward), "lowest": lowest}

    async def _verdict(
        self,
        env: ResearchEnv,
        plain: ResearchEnv,
        attack: Attack,
        target: Target,
        bounds: dict[str, float],
        why_not: str,
    ) -> AttackVerdict:
        why_not = why_not or attack.applies(target) or _too_dangerous(attack, target)
        bound = bounds[attack.bound]
        if attack.setup.delta == "best":
            bound = max(bound, 0.0)  # a bad artefact earns 0 with this setting
        bound += MARGIN
        began = asyncio.get_running_loop().time()
        reward, reason = None, why_not
        if not why_not:
            for _ in range(attack.episodes):
                played = await play(env, target.task.id, attack.replies(target), attack.setup)
            reward = played.reward
            reason = broken(played, bound) or attack.check(target, played)
            if attack.low_reward_breaks and not reason:
                reason = too_low(played, bounds["starter"] - MARGIN)
            if played.reward is None:
                await self._plain(plain, target)  # raises an error if the infrastructure is broken
        verdict = AttackVerdict(
            attack=attack.name,
            family=attack.family,
            aim=attack.aim,
            task=EVERY_TASK if attack.once else target.task.id,
            provider=self.provider,
            result="not applicable" if why_not else "broken" if reason else "held",
            reason=reason,
            reward=reward,
            bound=None if why_not else bound,
            seconds=round(asyncio.get_running_loop().time() - began, 2),
        )
        self.on_verdict(verdict)
        return verdict


async def attack_boxes(
    attacks: Sequence[tuple[Family, Check]],
    provider: Provider,
    at_once: int,
    on_verdict: Callable[[AttackVerdict], None] = lambda verdict: None,
) -> list[AttackVerdict]:
    """Runs attacks on the box itself, without a task, each in a new box of the kind `provider`; returns one
    verdict for each attack. An attack is a pair: its family (its goal), and the check of air's conformance
    suite (tests that every kind of box must pass) that carries it out. At most `at_once` attacks run at the
    same time. `on_verdict` is called with each verdict as soon as it is known."""
    gaps = KNOWN_GAPS[isolation(provider)]

    async def one(family: Family, check: Check) -> AttackVerdict:
        began = asyncio.get_running_loop().time()
        reason = gaps.get(check.name, "")
        result: Result = "not applicable" if reason else "held"
        if not reason:
            try:
                await conformance.run(check, BoxSpec(provider=provider))
            except Unmet as error:
                result, reason = "broken", f"a promise of boxes is not kept: {error}"
        verdict = AttackVerdict(
            attack=check.name,
            family=family,
            aim="The box does what its user did not allow.",
            task=EVERY_TASK,
            provider=provider,
            result=result,
            reason=reason,
            seconds=round(asyncio.get_running_loop().time() - began, 2),
        )
        on_verdict(verdict)
        return verdict

    return await run_concurrently([one(family, check) for family, check in attacks], at_once)


def _first_that_applies(
    attack: Attack, pairs: list[tuple[Target, dict[str, float]]]
) -> list[tuple[Target, dict[str, float]]]:
    """Selects the target on which an attack is run that runs on only one target. Each pair in `pairs` is a
    target and the largest deserved rewards on it.

    Returns a list with one pair: the first pair with a target on which the attack can be tried or, if there
    is none, the first of all pairs. The verdict about that pair then says why the attack was not tried.
    """
    return [next((pair for pair in pairs if not attack.applies(pair[0])), pairs[0])]


def _too_dangerous(attack: Attack, target: Target) -> str:
    """Checks that an attack cannot damage this machine in the target's kind of box. Returns the reason why it
    must not be run, or an empty string if it may be run."""
    if target.isolation == "process/plain" and not attack.only_looks:
        return "plain process boxes isolate nothing, so the attack would hit this machine"
    return ""


def starter_script(task: TaskSpec) -> str:
    """Returns a shell script that makes the artefact (file to hand in) of the task from its unchanged starter
    files: the first of the task's reference solutions.

    Raises UsageError if the task has no reference solutions.
    """
    if not task.solvers.is_file():
        raise UsageError(
            "attacks begin with the baseline of the reference solutions, and there are none",
            where=f"task {task.id}",
            remedy="add a solvers.toml whose first solver is named `baseline`",
        )
    return read_solvers(task)[0].script


def isolation(provider: Provider) -> str:
    """Returns the name of a kind of box in air's conformance suite (the tests that every kind of box must
    pass): `docker` for containers; for process boxes, `process/` followed by how they are isolated on this
    machine."""
    if provider == "docker":
        return "docker"
    from air.sandbox.process import namespaces

    return f"process/{namespaces.detect().mode}"
