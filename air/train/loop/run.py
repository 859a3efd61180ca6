"""Runs the embedded training engine, which plays episodes and updates the policy's weights in turn.

Each training step plays `batch_size` episodes with the present weights, so training is on-policy: the
importance ratios in the loss correct only for numerical differences between sampling and training.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import resource
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from air import json_lines, paths
from air.aio import to_the_end, together
from air.env.config import ResearchEnvConfig
from air.env.environment import ResearchEnv
from air.errors import InferenceError, InfrastructureError, UsageError
from air.sandbox.pool.gpus import Gpu
from air.train.config import overrides
from air.train.config.run_config import RunConfig, SourceConfig
from air.train.loop import group_log, run_folder
from air.train.loop.metrics import StepRow, warn_of_branches
from air.train.loop.progress import Progress
from air.train.loop.rollout import (
    Group,
    Prompt,
    Rollout,
    Source,
    context,
    play_group,
    prompts,
    serving,
    settled,
)
from air.train.loop.samples import samples as make_samples
from air.train.loop.token_log import TokenLog
from air.train.loop.trainer import Sample, Trainer
from air.train.model import checkpoint, policy
from air.train.model.policy import Policy
from air.train.serving import choose_server
from air.train.serving.choose_server import Choice, Server
from air.trajectories import trained_tokens

logger = logging.getLogger(__name__)


@dataclass
class Outcome:
    """The results of a training run: its folder, its metrics and its last checkpoint."""

    folder: Path
    rows: list[dict[str, Any]] = field(default_factory=list)
    """The lines of `metrics.jsonl`, one dict per training step."""
    checkpoint: Path | None = None
    """The folder of the last checkpoint, or None if the run has none."""


@dataclass(frozen=True)
class Resources:
    """The objects with which a run does its steps: policy, trainer, inference server and environments."""

    policy: Policy
    trainer: Trainer
    server: Server
    sources: Sequence[Source]
    tokens: TokenLog | None
    """None: the run records no tokens."""


class EmbeddedRun:
    """One run of the embedded training engine. Call `run` only once.
    The config must have a run name. `on_open` is called when everything runs and `config.json` is written."""

    def __init__(
        self, config: RunConfig, progress: Progress, on_open: Callable[[], None] = lambda: None
    ) -> None:
        self._on_open = on_open
        self.config, self.progress = config, progress
        self.folder = config.folder
        self.outcome = Outcome(self.folder)
        self._failed_steps = 0
        self._done = 0
        """The number of the last training step that was done."""
        self._served = 0
        """The number of the training step after which the inference server's weights were made."""

    async def run(self) -> Outcome:
        """Trains until `max_steps` steps are done, and writes metrics, trajectories and checkpoints.

        Raises UsageError if the run's folder, the model, vLLM or a port cannot be used. Raises
        InfrastructureError if every episode failed in too many consecutive steps, if an environment's failure
        breaker is open, or if inference failed.
        """
        with run_folder.locked(self.folder):
            self.outcome.checkpoint = run_folder.start_from(self.config)
            async with AsyncExitStack() as stack:
                resources = await self._open(stack)
                run_folder.write_config(self.folder, overrides.dump(self.config))
                self._on_open()
                await self._steps(resources)
        return self.outcome

    async def _open(self, stack: AsyncExitStack) -> Resources:
        """Loads the policy, and starts the inference server and environments; closing `stack` stops them."""
        choice = await asyncio.to_thread(self._choose)
        self.progress.say(str(choice))
        self.config = self.config.with_inference(choice.name)
        self.config.embedded.set_threads()
        start = str(self.outcome.checkpoint or _expanded(self.config.model.name))
        model = await asyncio.to_thread(policy.load, start)
        trainer = self._trainer(model)
        self._resume(trainer)
        server = choose_server.server(
            choice,
            model,
            self.config.embedded,
            max_model_len=self._context_tokens(model),
            folder=self.folder,
            say=self.progress.say,
        )
        stack.callback(server.stop)
        await asyncio.to_thread(server.start)
        train = self.config.orchestrator.train
        configs = [self._settled(source, model, choice.gpu) for source in train.source]
        group_size = self.config.orchestrator.group_size
        sources = await stack.enter_async_context(serving(configs, group_size))
        return Resources(model, trainer, server, sources, self._token_log(model))

    def _token_log(self, model: Policy) -> TokenLog | None:
        embedded = self.config.embedded
        trained_tokens.drop_after(self.folder, self._done)
        if not embedded.record_tokens_mb:
            return None
        return TokenLog(
            self.folder,
            model.tokenizer,
            embedded.record_tokens_mb * 2**20,
            temperature=self.config.orchestrator.train.sampling.temperature,
            by_turn=embedded.reward_to_go,
            shuffled=embedded.shuffle_rewards,
        )

    def _choose(self) -> Choice:
        envs = [s.env for s in self.config.orchestrator.train.source]
        names = [g for e in envs if isinstance(e, ResearchEnvConfig) for g in e.inference_gpus]
        return choose_server.choose(self.config.embedded.inference, list(dict.fromkeys(names)))

    def _trainer(self, model: Policy) -> Trainer:
        return Trainer(
            model,
            self.config.trainer.optim,
            scheduler=self.config.trainer.scheduler,
            loss=self.config.trainer.loss,
            max_steps=self.config.max_steps,
            micro_batch_tokens=self.config.embedded.micro_batch_tokens,
        )

    def _resume(self, trainer: Trainer) -> None:
        if self.outcome.checkpoint is None:
            return
        self._done, state = checkpoint.load_state(self.outcome.checkpoint)
        self._served = self._done
        trainer.load_state_dict(state)
        self.outcome.rows = _read_rows(self.folder / run_folder.METRICS_FILE, self._done)
        _read_rows(self.folder / group_log.FILE, self._done)
        self.progress.say(f"resuming after step {self._done}")

    def _settled(self, source: SourceConfig, model: Policy, gpu: Gpu | None) -> SourceConfig:
        """Returns the source's config with the run's values for absent settings. `gpu` is not for boxes."""
        env = source.env
        if gpu is not None and isinstance(env, ResearchEnvConfig) and not env.inference_gpus:
            env = env.model_copy(update={"inference_gpus": [gpu.uuid]})
        env = settled(
            env,
            model,
            max_context_tokens=self._context_tokens(model),
            record_dir=self.folder / "trajectories",
        )
        return source.model_copy(update={"env": env})

    def _context_tokens(self, model: Policy) -> int:
        return min(self.config.seq_len, model.max_length)

    async def _steps(self, resources: Resources) -> None:
        size, seed = self.config.orchestrator.batch_size, self.config.embedded.seed
        batches = prompts(resources.sources, size, seed, after=self._done)
        try:
            for step in range(self._done + 1, self.config.max_steps + 1):
                await self._step(step, next(batches), resources)
        except InferenceError as error:
            raise InferenceError(f"{error}; {self.how_to_resume}") from error
        finally:
            self._save(resources, final=True)

    async def _step(self, step: int, batch: Sequence[Prompt], resources: Resources) -> None:
        began = time.monotonic()
        await asyncio.to_thread(self._update_server, resources.server)
        updated = time.monotonic()
        groups = await self._play(step, batch, resources)
        played = time.monotonic()
        # A server that is gone stops the run before the weights change.
        await asyncio.to_thread(resources.server.ready)
        self._count_failures([r for g in groups for r in g.rollouts])
        await self._check_breakers(resources.sources)
        samples = self._samples(step, groups)
        group_log.append(self.folder, step, groups)
        report = await to_the_end(asyncio.to_thread(self._learn, step, samples, resources))
        row = StepRow(
            step=step,
            groups=groups,
            samples=len(samples),
            train=report,
            seconds_weights=updated - began,
            seconds_rollout=played - updated,
            seconds_train=time.monotonic() - played,
            peak_memory_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        )
        self._log(row.as_dict())
        if resources.tokens is not None:
            await to_the_end(asyncio.to_thread(resources.tokens.write, step, groups, samples))
        ckpt = self.config.ckpt
        if ckpt is not None and ckpt.interval and step % ckpt.interval == 0:
            self._save(resources, final=False)

    def _update_server(self, server: Server) -> None:
        """Makes the server load the present weights unless it has them; waits until it answers."""
        if self._served != self._done:
            server.update_weights()
            self._served = self._done
        server.ready()

    async def _play(self, step: int, batch: Sequence[Prompt], resources: Resources) -> list[Group]:
        self.progress.phase(f"step {step}", sum(source.group_size for source, _ in batch))
        sampling = self.config.orchestrator.train.sampling
        ctx = context(
            resources.policy,
            resources.server.url,
            temperature=sampling.temperature,
            max_tokens=sampling.max_completion_tokens,
            renderer=self.config.orchestrator.renderer,
        )
        tick = self.progress.episode
        return await together([play_group(*prompt, ctx, lambda _: tick()) for prompt in batch])

    def _count_failures(self, rollouts: Sequence[Rollout]) -> None:
        failures = [r.error for r in rollouts if not r.ok]
        for error in failures:
            logger.warning("episode failed: %s", error)
        self._failed_steps = self._failed_steps + 1 if len(failures) == len(rollouts) else 0
        if self._failed_steps >= self.config.embedded.max_failed_steps:
            raise InfrastructureError(
                f"no episode of the last {self._failed_steps} steps ended well; the last error: "
                f"{failures[-1][:300]} — fix this, then {self.how_to_resume}"
            )

    async def _check_breakers(self, sources: Sequence[Source]) -> None:
        """Raises InfrastructureError if the failure breaker of an environment is open."""
        for source in sources:
            if isinstance(source.env, ResearchEnv):
                try:
                    await source.env.check_breaker()
                except InfrastructureError as error:
                    raise InfrastructureError(
                        f"{error} — fix this, then {self.how_to_resume}"
                    ) from error

    def _samples(self, step: int, groups: Sequence[Group]) -> list[Sample]:
        embedded = self.config.embedded
        rng = random.Random(f"{embedded.seed} {step}")
        return make_samples(
            groups,
            self.config.estimator(),
            self.config.orchestrator.train.sampling.temperature,
            by_turn=embedded.reward_to_go,
            shuffle=rng if embedded.shuffle_rewards else None,
        )

    def _learn(
        self, step: int, samples: Sequence[Sample], resources: Resources
    ) -> dict[str, float]:
        tokens = resources.tokens
        with resources.server.exclusive():  # nothing is sampled while the weights change in place
            report = resources.trainer.step(samples, tokens.listen if tokens else None)
        self._done = step
        return report

    @property
    def how_to_resume(self) -> str:
        """A text for error messages: how to resume this run, or start again if no step is done."""
        if self._done == 0:
            return "start again, nothing was done yet"
        return f"resume with: rl @ {self.folder / 'config.json'} --resume"

    def _log(self, row: dict[str, Any]) -> None:
        warn_of_branches(row, self.outcome.rows)
        self.outcome.rows.append(row)
        json_lines.append(self.folder / run_folder.METRICS_FILE, [row])
        self.progress.step(row)

    def _save(self, resources: Resources, *, final: bool) -> None:
        root = self.folder / "checkpoints"
        if self._done == 0 or (final and self._done in run_folder.steps(root)):
            return
        keep = self.config.ckpt.keep_last if self.config.ckpt else None
        state = resources.trainer.state_dict()
        self.outcome.checkpoint = checkpoint.save(
            root, self._done, resources.policy, state, keep_last=keep
        )


def _read_rows(path: Path, until: int) -> list[dict[str, Any]]:
    """Deletes the lines after step `until` from a JSON-lines file, because a resumed run plays these steps
    again; returns the other lines. Raises UsageError, which names the line, if one has no number `step`."""
    if not path.is_file():
        return []
    rows = []
    for place, row in json_lines.read(path):
        step = row.get("step")
        if not isinstance(step, int | float):
            raise UsageError("the line has no number `step`", where=place, remedy="delete the line")
        if step <= until:
            rows.append(row)
    paths.write_whole(path, "".join(json.dumps(row) + "\n" for row in rows).encode())
    return rows


def _expanded(name: str) -> str:
    return str(Path(name).expanduser()) if name.startswith("~") else name
