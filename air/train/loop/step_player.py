"""Plays the episodes of training steps with the weights that the inference server has."""

from __future__ import annotations

import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import verifiers.v1 as vf

from air.aio import together
from air.env import recording
from air.env.world_episode import TURN_LIMIT
from air.train.config.run_config import RunConfig
from air.train.loop.opening import Resources
from air.train.loop.progress import Progress
from air.train.loop.rollout import (
    Gate,
    Group,
    Positions,
    Prompt,
    Rollout,
    Source,
    context,
    play_group,
    prompts,
)
from air.train.serving.choose_server import Server


@dataclass(frozen=True)
class Batch:
    """The prompts of one training step; their episodes are played and then trained on."""

    step: int
    prompts: Sequence[Prompt]
    positions: Positions
    """The positions of the sources of tasks after this step."""

    @property
    def episodes(self) -> int:
        """The number of episodes in all groups."""
        return sum(source.group_size for source, _ in self.prompts)


@dataclass(frozen=True)
class Played:
    """The episodes of a training step."""

    batch: Batch
    groups: Sequence[Group]
    seconds: float
    """Seconds (wall time) for which the episodes were played."""


class StepPlayer:
    """Draws the prompts of training steps and plays their episodes. Keeps track of which step's weights
    sampled each reply."""

    def __init__(self, config: RunConfig, progress: Progress, served: int = 0) -> None:
        self.config, self.progress = config, progress
        self._served = served
        """The number of the training step that made the weights in the inference server."""
        self._versions: dict[int | None, int] = {0: served}
        """The training step that made the weights, for each version number of the inference server."""
        self._played_until = 0.0
        """The time (monotonic clock) at which the last step's episodes had ended."""

    def batch(self, step: int, sources: Sequence[Source], positions: Positions | None) -> Batch:
        """Returns the prompts of a step. `positions` are the positions of the sources before the step."""
        size, seed = self.config.orchestrator.batch_size, self.config.embedded.seed
        if positions is None:  # a checkpoint of an older air: draws the earlier prompts again
            positions = {}
            for earlier in range(1, step):
                _, positions = prompts(sources, size, seed, earlier, positions)
        return Batch(step, *prompts(sources, size, seed, step, positions))

    def update_server(self, server: Server, done: int) -> None:
        """Makes the server load the weights of step `done` unless it has them; returns when it answers."""
        if self._served != done:
            self._versions[server.update_weights()] = done
            self._served = done
        server.ready()

    async def play(self, batch: Batch, resources: Resources, gate: Gate) -> Played:
        """Plays the groups of a step. With `replays_without_spread`, replays groups of equal rewards."""
        greedy, began = resources.needed.greedy, time.monotonic()
        step, version = batch.step, self._served
        recording.TRAINING_STEP.set(step)
        rounds = self.config.embedded.rounds
        TURN_LIMIT.set(None if rounds is None else rounds.at(step))
        sampling = self.config.orchestrator.train.sampling
        ctx = self.context(resources, sampling.temperature, sampling.max_completion_tokens)
        tick = self.progress.episode

        def play(number: int, replay: int = 0) -> Coroutine[Any, Any, Group]:
            seed = f"sampling {self.config.embedded.seed} {step} {number}"
            seed += f" replay {replay}" if replay else ""
            return play_group(
                *batch.prompts[number],
                ctx,
                lambda _: tick(),
                seed=seed if self.config.seeds_requests else None,
                with_greedy=greedy,
                gate=gate,
            )

        groups = await together([play(number) for number in range(len(batch.prompts))])
        for replay in range(1, self.config.embedded.replays_without_spread + 1):
            again = [number for number, group in enumerate(groups) if group.lacks_spread]
            if not again:
                break
            episodes = sum(len(groups[number].played) for number in again)
            self.progress.phase(f"step {step}, replay {replay}", episodes)
            for number, group in zip(
                again, await together([play(n, replay) for n in again]), strict=True
            ):
                group.replays = replay
                groups[number] = group
        for rollout in (rollout for group in groups for rollout in group.played):
            rollout.weights_version = version
            if self._served != version:
                self._note_versions(rollout, resources.server)
        now = time.monotonic()
        seconds, self._played_until = now - max(began, self._played_until), now
        return Played(batch, groups, seconds)

    def _note_versions(self, rollout: Rollout, server: Server) -> None:
        """Records each reply's version of the weights, for an episode during which the weights changed."""
        versions: dict[int, int] = {}
        for trace in rollout.traces:
            ends = {call.node: call.time.end for call in trace.calls if call.node is not None}
            for number, node in enumerate(trace.nodes):
                if not (node.sampled and any(node.mask)):
                    continue
                ids = [t for t, drawn in zip(node.token_ids, node.mask, strict=True) if drawn]
                version = server.version_of(ids, node.logprobs, ends.get(number, 0.0))
                versions[id(node)] = self._versions.get(version, rollout.weights_version or 0)
        rollout.weights_version = min(versions.values(), default=rollout.weights_version)
        rollout.reply_versions = versions

    def context(
        self, resources: Resources, temperature: float, max_tokens: int | None
    ) -> vf.ModelContext:
        """Returns verifiers' `ModelContext` (model, client and sampling) for the run's server."""
        return context(
            resources.policy,
            resources.server.url,
            temperature=temperature,
            max_tokens=max_tokens,
            renderer=self.config.orchestrator.renderer,
            name=resources.server.name,
        )
