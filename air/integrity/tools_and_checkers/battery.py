"""Runs attacks (scripted agents that try to cheat) on agents' tools and answer checkers as real episodes, and
judges each attack by the reward of its episode."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from air.aio import run_concurrently
from air.env.config import ResearchEnvConfig
from air.env.environment import ResearchEnv
from air.errors import InfrastructureError
from air.integrity.attack import AttackEpisode
from air.integrity.attack_episode import play
from air.integrity.battery import isolation
from air.integrity.host import Host
from air.integrity.tools_and_checkers import attack_tasks
from air.integrity.tools_and_checkers.attack import (
    ANSWER,
    SANDBOX_URL,
    AttackedPart,
    PartAttack,
    Spec,
)
from air.integrity.tools_and_checkers.attack_tasks import AttackTasks
from air.integrity.verdict import AttackVerdict, Result
from air.sandbox.contract.kinds import KINDS
from air.tasks.spec import Provider

_SHOWN = 8192
"""The maximum number of tokens in an observation (a text that the agent gets). It is large, so that text
which a tool reveals in an attack is not cut off."""


@dataclass
class PartBattery:
    """Runs attacks on agents' tools and answer checkers. `provider` is the kind of box (container or process)
    in which tools and checkers run programs."""

    attacks: Sequence[PartAttack]
    provider: Provider
    at_once: int = 4
    """The number of episodes that run at the same time."""
    weaker: Mapping[str, Spec] | None = None
    """Weaker tools or checkers that replace the shipped ones, by the label of the attacked part. Tests use
    them to show that attacks succeed against a weaker defence."""
    on_verdict: Callable[[AttackVerdict], None] = lambda verdict: None
    """A function that is called with each verdict as soon as it is known."""

    async def run(self, folder: Path) -> list[AttackVerdict]:
        """Runs all attacks; their tasks and trajectories (records of episodes) are written to `folder`.
        Returns one verdict for each attack.

        Raises InfrastructureError if a plain episode (one with a plain wrong answer) failed.
        """
        reasons = {id(one.part): self._not_applicable(one.part) for one in self.attacks}
        played = [one for one in self.attacks if not reasons[id(one.part)]]
        verdicts = [
            self._told(one, "not applicable", reason)
            for one in self.attacks
            if (reason := reasons[id(one.part)])
        ]
        for verdict in verdicts:
            self.on_verdict(verdict)
        if played:
            verdicts += await self._played(played, folder)
        return verdicts

    def _not_applicable(self, part: AttackedPart) -> str:
        """Returns the reason why `part` cannot be attacked here, or an empty string if it can."""
        if part.in_box and isolation(self.provider) == "process/plain":
            return "plain process boxes isolate nothing: it would hit here"
        if SANDBOX_URL in json.dumps(list(part.tools)) and self.provider != "docker":
            return "the server runs programs in containers"
        missing = [name for name in part.packages if find_spec(name) is None]
        return f"a package is not installed: {', '.join(missing)}" if missing else ""

    async def _played(self, attacks: Sequence[PartAttack], folder: Path) -> list[AttackVerdict]:
        parts = list({id(one.part): one.part for one in attacks}.values())
        async with Host.open(folder) as host:
            weak = {id(part): self._weaker(part) for part in parts}
            async with attack_tasks.opened(list(weak.values()), folder / "tasks", host) as stage:
                env = ResearchEnv(self._config(stage, folder))
                async with env.serving():
                    plain = [self._plain(env, stage, weak[id(part)]) for part in parts]
                    rewards = await run_concurrently(plain, self.at_once)
                    bounds = {id(p): r for p, r in zip(parts, rewards, strict=True)}
                    works = [
                        self._verdict(env, stage, one, weak[id(one.part)], bounds[id(one.part)])
                        for one in attacks
                    ]
                    return await run_concurrently(works, self.at_once)

    def _weaker(self, part: AttackedPart) -> AttackedPart:
        spec = (self.weaker or {}).get(part.label)
        if spec is None:
            return replace(part)
        return replace(part, tools=[spec]) if part.kind == "tool" else replace(part, checker=spec)

    def _config(self, stage: AttackTasks, folder: Path) -> ResearchEnvConfig:
        runtime = next(kind.runtime for kind in KINDS if kind.provider == self.provider)
        return ResearchEnvConfig.model_validate(
            {
                "taskset": {"id": "air", "tasks": list(stage.tasks.values())},
                "agent": {
                    "harness": {"id": "air", "max_observation_tokens": _SHOWN},
                    "runtime": {"type": runtime},
                },
                "record_dir": folder / "record",
                "max_boxes": self.at_once,
                "grader_boxes": self.at_once,
                "max_failures": 0,
            }
        )

    async def _plain(self, env: ResearchEnv, stage: AttackTasks, part: AttackedPart) -> float:
        """Plays one episode of the task for `part` (a tool or an answer checker), in which the agent makes no
        attack and gives a plain wrong answer. Returns the reward, with which those of attacks are compared.
        Raises InfrastructureError if the episode failed."""
        played = await play(env, stage.task(part), stage.replies(part, part.plain))
        if played.reward is None:
            raise InfrastructureError(f"{part}: the plain episode failed: {played.error}")
        return played.reward

    async def _verdict(
        self,
        env: ResearchEnv,
        stage: AttackTasks,
        attack: PartAttack,
        part: AttackedPart,
        bound: float,
    ) -> AttackVerdict:
        began = asyncio.get_running_loop().time()
        played = await play(env, stage.task(part), stage.replies(part, attack.replies))
        reason = _broken(played, bound) or attack.check(played)
        verdict = replace(
            self._told(attack, "broken" if reason else "held", reason),
            reward=played.reward,
            bound=bound,
            seconds=round(asyncio.get_running_loop().time() - began, 2),
        )
        self.on_verdict(verdict)
        return verdict

    def _told(self, attack: PartAttack, result: Result, reason: str) -> AttackVerdict:
        return AttackVerdict(
            attack=attack.name,
            family=attack.family,
            aim=attack.aim,
            task=str(attack.part),
            provider=self.provider,
            result=result,
            reason=reason,
        )


def _broken(played: AttackEpisode, bound: float) -> str:
    """Judges the result of an attack's episode. Returns a message about how the defence failed, or an empty
    string if it held. `bound` is the largest reward that the attack may earn."""
    if played.reward is None:
        return f"masked: the episode failed, so it is not trained on: {played.error}"
    if played.reward > bound + 1e-9:
        return f"paid: {played.reward:.3f}, and a plain wrong answer earns {bound:.3f}"
    if ANSWER in played.observed:
        return "reached: an observation has the right answer"
    if played.fault:
        return f"recorded wrongly: the trajectory is no true record: {played.fault}"
    return ""
