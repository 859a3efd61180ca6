"""Plays the episodes of training steps, and records for each reply which version of the weights sampled
it."""

from __future__ import annotations

import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any

import verifiers.v1 as vf

from air.aio import run_concurrently
from air.env import recording
from air.env.world_episode import TURN_LIMIT
from air.train.config.run_config import RunConfig
from air.train.loop.progress import Progress
from air.train.loop.resources import Resources
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
    """The prompts of one training step. A prompt is a pair (source of tasks, task); for each one, a group of
    episodes is played and trained on."""

    step: int
    prompts: Sequence[Prompt]
    positions: Positions
    """The numbers of prompts drawn from each source of tasks up to and including this step."""

    @property
    def episodes(self) -> int:
        """The number of episodes in all groups of the step, without the greedy episodes (sampled at
        temperature 0), which are only baselines."""
        return sum(source.group_size for source, _ in self.prompts)


@dataclass(frozen=True)
class PlayedStep:
    """The finished episodes of a training step, in groups, in the order of the prompts in `batch`."""

    batch: Batch
    groups: Sequence[Group]
    seconds: float
    """Seconds (wall time) during which the episodes were played, not counting the time in which the previous
    step's episodes were still running."""


class StepPlayer:
    """Draws the prompts of training steps and plays their episodes on the inference server. Records the
    version of the weights that sampled each reply; a version is the number of the training step that made the
    weights. `served` is the version on the server at the start."""

    def __init__(self, config: RunConfig, progress: Progress, served: int = 0) -> None:
        self.config, self.progress = config, progress
        self._served = served
        """The version of the weights that the inference server has: the number of the training step that made
        them."""
        self._versions: dict[int | None, int] = {0: served}
        """Maps the inference server's own version numbers to air's version numbers, which are the numbers of
        the training steps that made the weights."""
        self._played_until = 0.0
        """The time (monotonic clock, seconds) at which the last episode of the previous step ended. The
        playing time of a step counts only from then on, so that the times of overlapping steps add up."""

    def batch(self, step: int, sources: Sequence[Source], positions: Positions | None) -> Batch:
        """Draws the prompts of training step `step` from `sources`, and returns them. `positions` says how
        many prompts were drawn from each source before this step, so that drawing continues from there. It is
        None if the run resumes from a checkpoint of an older version of air, which did not store these
        numbers. To get them, the prompts of all earlier steps are then drawn again, but not played."""
        size, seed = self.config.orchestrator.batch_size, self.config.embedded.seed
        if positions is None:  # a checkpoint of an older air: draws the earlier prompts again
            positions = {}
            for earlier in range(1, step):
                _, positions = prompts(sources, size, seed, earlier, positions)
        return Batch(step, *prompts(sources, size, seed, step, positions))

    def update_server(self, server: Server, done: int) -> None:
        """Makes the inference server load the weights of training step `done`, unless it already has them.
        Returns when the server is ready to sample."""
        if self._served != done:
            self._versions[server.update_weights()] = done
            self._served = done
        server.ready()

    async def play(self, batch: Batch, resources: Resources, gate: Gate) -> PlayedStep:
        """Plays the groups of episodes of the step `batch`, one group for each prompt, and returns them. The
        replies are sampled by the run's inference server or, if the algorithm is `sft`, by the teacher's
        server. A group whose rewards are all equal teaches nothing: it is discarded and played again, at most
        `embedded.replays_without_spread` times. Each episode runs inside the context manager `gate`, which
        can limit the number of simultaneous episodes."""
        greedy, began = resources.further_models.greedy, time.monotonic()
        step, version = batch.step, self._served
        recording.TRAINING_STEP.set(step)
        rounds = self.config.embedded.rounds
        TURN_LIMIT.set(None if rounds is None else rounds.at(step))
        sampling = self.config.orchestrator.train.sampling
        temperature, max_tokens = sampling.temperature, sampling.max_completion_tokens
        ctx = self.training_context(resources, temperature, max_tokens)
        seeded = self.config.seeds_requests and self.config.sampling_source is None
        tick = self.progress.episode

        def play(number: int, replay: int = 0) -> Coroutine[Any, Any, Group]:
            seed = f"sampling {self.config.embedded.seed} {step} {number}"
            seed += f" replay {replay}" if replay else ""
            return play_group(
                *batch.prompts[number],
                ctx,
                lambda _: tick(),
                seed=seed if seeded else None,
                with_greedy=greedy,
                gate=gate,
            )

        groups = await run_concurrently([play(number) for number in range(len(batch.prompts))])
        for replay in range(1, self.config.embedded.replays_without_spread + 1):
            again = [number for number, group in enumerate(groups) if group.lacks_spread]
            if not again:
                break
            episodes = sum(len(groups[number].played) for number in again)
            self.progress.phase(f"step {step}, replay {replay}", episodes)
            for number, group in zip(
                again, await run_concurrently([play(n, replay) for n in again]), strict=True
            ):
                group.replays = replay
                groups[number] = group
        if self.config.sampling_source is None:
            for rollout in (rollout for group in groups for rollout in group.played):
                rollout.weights_version = version
                if self._served != version:
                    self._note_versions(rollout, resources.server)
        now = time.monotonic()
        seconds, self._played_until = now - max(began, self._played_until), now
        return PlayedStep(batch, groups, seconds)

    def _note_versions(self, rollout: Rollout, server: Server) -> None:
        """Stores in `rollout` the version of the weights that sampled each reply, and the oldest of these
        versions. Needed if the server loaded new weights while the step's episodes were played."""
        versions: dict[int, int] = {}
        for trace in rollout.traces:
            for node in trace.nodes:
                if not (node.sampled and any(node.mask)):
                    continue
                ids = [t for t, drawn in zip(node.token_ids, node.mask, strict=True) if drawn]
                version = server.version_of(ids, node.logprobs)
                versions[id(node)] = self._versions.get(version, rollout.weights_version or 0)
        rollout.weights_version = min(versions.values(), default=rollout.weights_version)
        rollout.reply_versions = versions

    def training_context(
        self, resources: Resources, temperature: float, max_tokens: int | None
    ) -> vf.ModelContext:
        """Returns `verifiers`' `ModelContext` (model, client and sampling settings) for the episodes that the
        policy is trained on. If the algorithm is `sft`, the teacher model plays these episodes, and the
        result is for its server; otherwise the result is for the run's own inference server."""
        ctx = self.context(resources, temperature, max_tokens)
        source = self.config.sampling_source
        if source is None:
            return ctx
        client = ctx.client.model_copy(
            update={
                "base_url": source.base_url,
                "api_key_var": source.api_key_var,
                "headers": source.headers,
            }
        )
        return replace(ctx, model=source.name, client=client)

    def context(
        self, resources: Resources, temperature: float, max_tokens: int | None
    ) -> vf.ModelContext:
        """Returns the object with which `verifiers` requests replies from the run's inference server: a
        `ModelContext` (model, client and sampling settings). `temperature` is the sampling temperature, and
        `max_tokens` the maximum number of tokens of a reply (None: only the context limits it)."""
        return context(
            resources.policy,
            resources.server.url,
            temperature=temperature,
            max_tokens=max_tokens,
            renderer=self.config.orchestrator.renderer,
            name=resources.server.name,
        )
