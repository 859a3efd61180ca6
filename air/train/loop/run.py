"""Runs the embedded training engine (air's own, on this machine): each training step plays episodes and then
updates the policy's weights.

By default (`max_off_policy_steps = 0`), each step plays `batch_size` episodes with the present weights, so
training is on-policy: the importance ratios in the loss correct only for numerical differences between
sampling and training. Otherwise, the next step's episodes are played while the weights are updated
(overlap).
"""

from __future__ import annotations

import asyncio
import copy
import logging
import os
import random
import resource
import shlex
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from air import json_lines, paths
from air.aio import cancel_and_wait, cancelled_by_signals, wait_shielded
from air.errors import InferenceError
from air.train import monitors
from air.train.config import overrides
from air.train.config.run_config import RunConfig
from air.train.curriculum import Curriculum
from air.train.diagnosis.logprob_mismatch import Exactness, warn_of_drift
from air.train.loop import resume_branches, run_folder
from air.train.loop.failures import Failures, check_breakers
from air.train.loop.metrics import StepRow, warn_of_branches
from air.train.loop.progress import Progress
from air.train.loop.resources import ResourceOpener, Resources
from air.train.loop.rollout import (
    Group,
    Positions,
    Rollout,
    Source,
)
from air.train.loop.samples import AlgorithmInputs
from air.train.loop.samples import samples as make_samples
from air.train.loop.step_logs import group_log
from air.train.loop.step_player import Batch, PlayedStep, StepPlayer
from air.train.model import checkpoint, determinism
from air.train.monitors import Monitors
from air.train.serving.context_length import cache_context_length
from air.train.tree.sample import Sample
from air.trajectories import evaluations

logger = logging.getLogger(__name__)


@dataclass
class RunOutcome:
    """The result of a training run: its folder, its metrics and its last checkpoint."""

    folder: Path
    rows: list[dict[str, Any]] = field(default_factory=list)
    """The lines of `metrics.jsonl`, one dict per training step."""
    checkpoint: Path | None = None
    """The folder of the last checkpoint, or None if the run has none."""


class EmbeddedRun:
    """One run of the embedded training engine. Call `run` only once. The config must contain a run name.
    `on_open` is called before the first step, when all resources are open and `config.json` is written."""

    def __init__(
        self, config: RunConfig, progress: Progress, on_open: Callable[[], None] = lambda: None
    ) -> None:
        self._on_open = on_open
        self.config, self.progress = config.with_checkout(), progress
        self.folder = config.folder
        self.outcome = RunOutcome(self.folder)
        self._algorithm = config.algorithm()
        self._curriculum = Curriculum(
            config.embedded.levels, config.orchestrator.train.source, ahead=int(config.overlaps)
        )
        self._failures = Failures()
        self._monitors = Monitors(progress.say, {})
        self._positions: Positions | None = {}
        """The numbers of prompts drawn from each source of tasks up to the last finished step. None if the
        checkpoint, from an older version of air, lacks these numbers."""
        self._done = 0
        """The number of the last finished training step."""
        self._player = StepPlayer(self.config, progress)

    async def run(self) -> RunOutcome:
        """Trains until `max_steps` steps are finished. Writes metrics, trajectories and checkpoints, and
        returns the outcome.

        The first SIGINT (Ctrl-C) or SIGTERM stops the run: the weights of the last finished step are saved,
        and CancelledError is raised. Raises UsageError if the run's folder, the model, vLLM or a port cannot
        be used. Raises InfrastructureError if all episodes of the run, or of `max_failed_steps` consecutive
        steps, failed; if an environment stopped the run, because of too many consecutive infrastructure
        errors or an error in code that the user added; or if inference failed.
        """
        with cancelled_by_signals(self._stop_again), run_folder.locked(self.folder):
            monitors.check(self.config)
            run_folder.remove_unfinished(self.folder)
            self.outcome.checkpoint = run_folder.start_from(self.config)
            async with AsyncExitStack() as stack:
                resources = await self._open(stack)
                for make_context in (self._player.context, self._player.training_context):
                    await cache_context_length(make_context(resources, 1.0, 1), resources.policy)
                await asyncio.to_thread(self._move_later_results)
                # Without `resume`, so that a user who starts a run from this file must choose again where to
                # resume.
                written = self.config.model_copy(update={"resume": None})
                run_folder.write_config(self.folder, overrides.dump(written))
                self._monitors = await asyncio.to_thread(
                    monitors.of_run, self.config, self._done, self.progress.say
                )
                stack.push_async_callback(asyncio.to_thread, self._monitors.close)
                self._on_open()
                await self._steps(resources)
        self._failures.check_run()
        return self.outcome

    async def _open(self, stack: AsyncExitStack) -> Resources:
        """Restores the state of the checkpoint, if the run resumes from one, then opens and returns all
        resources. Closing `stack` closes the resources."""
        state = None
        if self.outcome.checkpoint is not None:
            self._done, state = checkpoint.load_state(self.outcome.checkpoint)
            self._positions = state.get("positions")
            self._algorithm.load_state_dict(state.get("algorithm", {}))
            self._curriculum.load_state_dict(state.get("curriculum", {}))
        self._curriculum.check()
        resources = await ResourceOpener(
            self.config, self._algorithm.needs, self.outcome.checkpoint, state, self.progress.say
        ).open(stack)
        self.config = resources.config
        self._player = StepPlayer(self.config, self.progress, self._done)
        return resources

    def _move_later_results(self) -> None:
        """If an earlier process of this run trained beyond the step from which the run now resumes, moves the
        results of those later steps into a folder under `branches/` in the run's folder. Reads the remaining
        lines of `metrics.jsonl` into the outcome, and tells the user where the run resumes."""
        begun = run_folder.is_begun(self.folder)
        branch = resume_branches.move_later_results(self.folder, self._done)
        self.outcome.rows = resume_branches.metrics(self.folder)
        if self._done:
            self.progress.say(f"resuming after step {self._done}")
        elif begun:
            self.progress.say(
                "starting from the first step: this run was stopped before its first checkpoint"
            )
        if branch is not None:
            self.progress.say(f"what the run made after step {self._done} is now in {branch}")

    async def _steps(self, resources: Resources) -> None:
        self.progress.begin(self._done)
        try:
            await self._evaluate(resources)
            await self._play_and_train(resources)
        except InferenceError as error:
            raise InferenceError(f"{error}; {self.how_to_resume}") from error
        finally:
            self._save(resources, final=True)

    async def _play_and_train(self, resources: Resources) -> None:
        """Does all remaining training steps: plays the step's episodes, then updates the weights. If the run
        allows off-policy steps (`max_off_policy_steps`), steps overlap: each episode that ends makes room for
        an episode of the next step, and episodes of the next step continue during the update of the
        weights."""
        first, last = self._done + 1, self.config.max_steps
        batch = self._batch(first, resources.sources, self._positions)
        # With overlap, the number of episodes at once is the same as without.
        gate = asyncio.Semaphore(batch.episodes) if self.config.overlaps else nullcontext()
        at_once = 2 if self.config.overlaps else 1
        playing: deque[tuple[Batch, asyncio.Task[PlayedStep]]] = deque()
        try:
            for step in range(first, last + 1):
                began = time.monotonic()
                await asyncio.to_thread(self._player.update_server, resources.server, self._done)
                updated = time.monotonic()
                for number in range(step + len(playing), min(step + at_once, last + 1)):
                    # Only now, because the levels of a step depend on the steps before it.
                    if number != batch.step:
                        batch = self._batch(number, resources.sources, batch.positions)
                    playing.append(
                        (batch, asyncio.create_task(self._player.play(batch, resources, gate)))
                    )
                present, task = playing[0]
                self.progress.phase(f"step {step}", present.episodes)
                played = await task
                playing.popleft()
                seconds = {
                    "seconds_weights": updated - began,
                    "seconds_rollout": time.monotonic() - updated,
                }
                await self._check(played, resources)
                inputs = await asyncio.to_thread(self._score, played.groups, resources)
                # Not cancelled by an interruption: every change of the weights must get its line in the
                # metrics.
                await wait_shielded(self._train(played, inputs, resources, seconds))
                await self._evaluate(resources)
        finally:
            for _, task in playing:
                await cancel_and_wait(task)

    async def _evaluate(self, resources: Resources) -> None:
        """Runs the evaluation after the last finished step, if the run file asks for one after this step.
        Saves a checkpoint if this evaluation is the best so far."""
        of_run, step = resources.evaluations, self._done
        if of_run is None or not of_run.due(step, self.config.max_steps):
            return
        await asyncio.to_thread(self._player.update_server, resources.server, self._done)
        self.progress.phase(f"evaluation after step {step}", of_run.episodes())
        sampling = of_run.config.sampling
        ctx = self._player.context(resources, sampling.temperature, sampling.max_completion_tokens)
        row = await of_run.play(step, ctx, lambda _: self.progress.episode())
        await asyncio.to_thread(resources.server.ready)
        resources.server.step_metrics()  # drops the counts of the evaluation
        numbers = {f"eval/{k}": value for k, value in row.items() if k not in ("v", "step")}
        self._monitors.log({"step": step, **numbers})
        self.progress.say(of_run.summary(row))
        if step and of_run.best_step([*run_folder.steps(self._checkpoints), step]) == step:
            self._save(resources, final=True)

    def _batch(self, step: int, sources: Sequence[Source], positions: Positions | None) -> Batch:
        """Returns the prompts of training step `step`, drawn from the sources of tasks. If the tasks of a
        source get harder during the run, in levels, only tasks of its current level are drawn. `positions`
        has the number of prompts drawn from each source before this step."""
        sources = self._curriculum.at(sources, step - self._done - 1)
        return self._player.batch(step, sources, positions)

    async def _check(self, played: PlayedStep, resources: Resources) -> None:
        """Checks the played episodes of a step before the weights change. Raises an error if the inference
        server has ended, if all episodes of `max_failed_steps` consecutive steps failed, or if an environment
        has decided that the run must stop (after too many failures, or an error in the user's code). Also
        raises one if an episode lacks the metric that decides when its source of tasks goes on to harder
        tasks."""
        await asyncio.to_thread(resources.server.ready)
        rollouts = [rollout for group in played.groups for rollout in group.played]
        self._count_failures(played.batch.step, rollouts)
        await check_breakers(resources.sources, lambda: self.how_to_resume)
        self._curriculum.check_played(played.groups)

    def _score(self, groups: Sequence[Group], resources: Resources) -> AlgorithmInputs:
        """Returns the numbers that the algorithm needs from further models (such as a value model or a
        reference model) for the groups of a step. If such a model runs in this process, sampling pauses
        during the computation."""
        here = resources.further_models.scores_here
        with resources.server.exclusive() if here else nullcontext():
            return resources.further_models.score(groups)

    async def _train(
        self,
        played: PlayedStep,
        inputs: AlgorithmInputs,
        resources: Resources,
        seconds: Mapping[str, float],
    ) -> None:
        """Updates the weights with the played episodes of a step, appends the step's lines to `metrics.jsonl`
        and `groups.jsonl`, and saves a checkpoint if one is due after this step. `inputs` are the numbers
        that `_score` returned. `seconds` has the durations measured so far, by their names in `StepRow`. If
        an error occurs after the update, the lines are written before the error is raised."""
        batch, groups = played.batch, played.groups
        began = time.monotonic()
        determinism.seed_generators(self.config.embedded.seed, batch.step)
        exactness = Exactness(batch.step, groups, trains_zeros=resources.trainer.trains_zeros)
        with self._algorithm_restored():
            samples = self._samples(batch.step, groups, inputs)
            report, failure = await asyncio.to_thread(
                self._learn, batch, samples, inputs, resources, exactness
            )
        levels, promotions = self._curriculum.record(groups, batch.step)
        row = StepRow(
            step=batch.step,
            groups=groups,
            samples=samples,
            train=report,
            exactness=exactness.metrics(),
            inference=resources.server.step_metrics(),
            **seconds,
            seconds_train=time.monotonic() - began,
            seconds_play=played.seconds,
            peak_memory_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        ).as_dict()
        row |= levels
        if (rounds := self.config.embedded.rounds) is not None:
            row["curriculum/max_turns"] = rounds.at(batch.step)
        warn_of_drift(
            row, self.outcome.rows, str(resources.policy.model.dtype).removeprefix("torch.")
        )
        group_log.append(self.folder, batch.step, groups)
        self._log(row)
        for line in promotions:
            self.progress.say(line)
        if resources.tokens is not None:
            await asyncio.to_thread(resources.tokens.write, batch.step, groups, samples)
        if failure is not None:
            raise failure
        ckpt = self.config.ckpt
        if ckpt is not None and ckpt.interval and batch.step % ckpt.interval == 0:
            self._save(resources, final=False)

    def _count_failures(self, step: int, rollouts: Sequence[Rollout]) -> None:
        errors = [r.error for r in rollouts if not r.ok]
        for error in errors:
            logger.warning("episode failed: %s", error)
        if message := self._failures.count(step, len(rollouts), errors):
            self.progress.say(message)
        most = self.config.embedded.max_failed_steps
        self._failures.check_steps(most, lambda: self.how_to_resume)

    @contextmanager
    def _algorithm_restored(self) -> Iterator[None]:
        """Context manager: if the block raises an exception, restores the state that the algorithm had before
        the block, so that this state reflects finished steps only."""
        before = copy.deepcopy(self._algorithm.state_dict())
        try:
            yield
        except BaseException:  # cancellation too: the step is not finished
            self._algorithm.load_state_dict(before)
            raise

    def _samples(self, step: int, groups: Sequence[Group], inputs: AlgorithmInputs) -> list[Sample]:
        embedded = self.config.embedded
        rng = random.Random(f"{embedded.seed} {step}")
        return make_samples(
            groups,
            self._algorithm,
            self.config.orchestrator.train.sampling.temperature,
            by_turn=self.config.rewards_at_turns,
            shuffle=rng if embedded.shuffle_rewards else None,
            keep_zeros=self.config.trains_zero_advantages,
            inputs=inputs,
            top_share=embedded.top_spread_share,
        )

    def _learn(
        self,
        batch: Batch,
        samples: Sequence[Sample],
        inputs: AlgorithmInputs,
        resources: Resources,
        exactness: Exactness,
    ) -> tuple[dict[str, float], Exception | None]:
        """Trains the policy on `samples`, then the value model if there is one. Sampling pauses meanwhile.
        Returns the metrics by name, and the exception that occurred after the policy had changed, or None.
        `exactness` gets the trainer's log-probabilities of all samples.

        That exception is returned, not raised, so that the caller can still record the step. An exception
        that occurs earlier is raised.
        """
        tokens, models = resources.tokens, resources.further_models

        def listen(sample: Sample, logprobs: Tensor) -> None:
            exactness.listen(sample, logprobs)
            if tokens is not None:
                tokens.listen(sample, logprobs)

        report, failure = dict(self._algorithm.metrics()), None
        trained = samples if models.trains_policy(batch.step) else []
        overlaps = self.config.overlaps
        # With overlap, boxes work during the update, so fewer threads are used.
        threads = nullcontext() if overlaps else self.config.embedded.training_threads()
        try:
            # While the weights change, nothing is sampled, and no request can meet new weights without a new
            # version.
            with resources.server.exclusive(), threads:
                report |= resources.trainer.step(trained, listen)
                self._done, self._positions = batch.step, batch.positions
                report |= models.train(samples, inputs)
                if overlaps:
                    self._player.update_server(resources.server, self._done)
        except Exception as error:  # broad: a change of the weights always gets its lines
            if self._done != batch.step:
                raise
            failure = error
        return {**report, **inputs.metrics}, failure

    def _stop_again(self) -> None:
        self.progress.say(
            "stopping already: the finished steps are being saved, and the boxes closed; "
            f"`kill -9 {os.getpid()}` loses what is not saved"
        )

    @property
    def how_to_resume(self) -> str:
        """A phrase for error messages: the command that resumes this run, or advice to start the run again if
        no step is finished."""
        if self._done == 0:
            return "start it again under the same name: no step is done yet"
        config = shlex.quote(str(self.folder / run_folder.CONFIG_FILE))
        return f"resume with: {paths.command('rl')} @ {config} --resume"

    def _log(self, row: dict[str, Any]) -> None:
        warn_of_branches(row, self.outcome.rows)
        self.outcome.rows.append(row)
        json_lines.append(self.folder / run_folder.METRICS_FILE, [row])
        self._monitors.log(row)
        self.progress.step(row)

    @property
    def _checkpoints(self) -> Path:
        return self.folder / run_folder.CHECKPOINTS

    def _save(self, resources: Resources, *, final: bool) -> None:
        root = self._checkpoints
        if self._done == 0 or (final and self._done in run_folder.steps(root)):
            return
        keep = self.config.ckpt.keep_last if self.config.ckpt else None
        state = resources.trainer.state_dict() | {
            "positions": self._positions,
            "algorithm": self._algorithm.state_dict(),
            "curriculum": self._curriculum.state_dict(),
            "needed": resources.further_models.state_dict(),
        }
        # The present step is included, because it may be the best one. The best checkpoint is also kept if a
        # resumed run no longer has `[orchestrator.eval]`.
        steps = [*run_folder.steps(root), self._done]
        metric = self.config.embedded.best_metric
        best = evaluations.best_step(evaluations.rows(self.folder), metric, steps)
        self.outcome.checkpoint = checkpoint.save(
            root,
            self._done,
            resources.policy,
            state,
            keep_last=keep,
            keep=() if best is None else (best,),
        )
