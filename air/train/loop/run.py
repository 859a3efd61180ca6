"""The embedded engine: rollouts, advantages, one update, new weights to the server; again.

One process, one model. Every step plays `batch_size` episodes with the present weights, so training is
on-policy; the importance ratios of the loss only correct for numerics.
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

import verifiers.v1 as vf

from air.aio import to_the_end, together
from air.env.config import ResearchEnvConfig
from air.errors import InferenceError, InfrastructureError
from air.sandbox.pool.gpus import Gpu
from air.train.config import overrides
from air.train.config.run_config import RunConfig, SourceConfig
from air.train.loop import group_log, jsonl, metrics, run_folder
from air.train.loop.progress import Progress
from air.train.loop.rollout import (
    Group,
    Rollout,
    Source,
    context,
    draw,
    play_group,
    serving,
    settled,
)
from air.train.loop.samples import samples as make_samples
from air.train.loop.trainer import Sample, Trainer
from air.train.model import checkpoint, policy
from air.train.serving import choose_server
from air.train.serving.choose_server import Choice, Server

logger = logging.getLogger(__name__)


@dataclass
class Outcome:
    """What a run leaves behind."""

    folder: Path
    rows: list[dict[str, Any]] = field(default_factory=list)
    """One row of metrics a step, by task under `tasks`."""
    checkpoint: Path | None = None
    """The last checkpoint."""


class EmbeddedRun:
    """One run of the embedded engine. Use once.

    Args:
        config: the run file; must be named.
        progress: where to show what happens.
        on_open: called once everything is up and the run's config is in its folder.
    """

    def __init__(
        self, config: RunConfig, progress: Progress, on_open: Callable[[], None] = lambda: None
    ) -> None:
        self._on_open = on_open
        self.config, self.progress = config, progress
        self.folder = config.folder
        self.outcome = Outcome(self.folder)
        self._rng = random.Random(config.embedded.seed)
        self._failed_steps = 0
        self._done = 0
        self._handed = 0

    async def run(self) -> Outcome:
        """Trains for `max_steps` steps.

        Raises:
            UsageError: the run's folder, the model, vLLM or a port cannot be used.
            InfrastructureError: too many steps in a row without an episode that ended well, or the
                inference server did not start or is gone.
        """
        with run_folder.held(self.folder):
            self.outcome.checkpoint = run_folder.start_from(self.config)
            await self._train()
        return self.outcome

    async def _train(self) -> None:
        choice = await asyncio.to_thread(self._choose)
        self.progress.say(str(choice))
        config = self.config = self.config.with_inference(choice.name)
        config.embedded.set_threads()
        start = str(self.outcome.checkpoint or _expanded(config.model.name))
        self._policy = await asyncio.to_thread(policy.load, start)
        self._trainer = Trainer(
            self._policy,
            config.trainer.optim,
            scheduler=config.trainer.scheduler,
            loss=config.trainer.loss,
            max_steps=config.max_steps,
            micro_batch_tokens=config.embedded.micro_batch_tokens,
        )
        self._resume()
        async with AsyncExitStack() as stack:
            server = choose_server.server(
                choice,
                self._policy,
                config.embedded,
                max_model_len=self._context_tokens,
                folder=self.folder,
                say=self.progress.say,
            )
            stack.callback(server.stop)
            await asyncio.to_thread(server.start)
            sources = await stack.enter_async_context(
                serving(
                    [self._settled(s, choice.gpu) for s in config.orchestrator.train.source],
                    config.orchestrator.group_size,
                )
            )
            run_folder.write_config(self.folder, overrides.dump(config))
            self._on_open()
            await self._steps(sources, server)

    async def _steps(self, sources: Sequence[Source], server: Server) -> None:
        try:
            for step in range(self._done + 1, self.config.max_steps + 1):
                await self._step(step, sources, server)
        except InferenceError as error:
            raise InferenceError(f"{error}; {self.go_on}") from error
        finally:
            self._save(final=True)

    def _choose(self) -> Choice:
        envs = [s.env for s in self.config.orchestrator.train.source]
        wanted = [g for e in envs if isinstance(e, ResearchEnvConfig) for g in e.inference_gpus]
        return choose_server.choose(self.config.embedded.inference, list(dict.fromkeys(wanted)))

    async def _step(self, step: int, sources: Sequence[Source], server: Server) -> None:
        began = time.monotonic()
        await asyncio.to_thread(self._hand_over, server)
        handed = time.monotonic()
        groups = await self._play(step, sources, server)
        played = time.monotonic()
        await asyncio.to_thread(server.ready)  # one that is gone stops the run before it learns
        self._watch([r for g in groups for r in g.rollouts])
        embedded = self.config.embedded
        samples = make_samples(
            groups,
            self.config.estimator(),
            self.config.orchestrator.train.sampling.temperature,
            by_turn=embedded.reward_to_go,
            shuffle=self._rng if embedded.shuffle_rewards else None,
        )
        group_log.append(self.folder, step, groups)
        learnt = await to_the_end(asyncio.to_thread(self._learn, step, samples, server))
        ended = time.monotonic()
        row = {"step": step, "samples": len(samples), **metrics.of_step(groups)}
        row |= {f"train/{name}": value for name, value in learnt.items()}
        row["seconds"] = ended - began
        row["seconds_weights"] = handed - began
        row["seconds_rollout"], row["seconds_train"] = played - handed, ended - played
        row["tokens_per_second"] = row["sampled_tokens"] / max(played - handed, 1e-9)
        row["peak_memory_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        row["tasks"] = {
            task: _scores(rollouts)
            for task, rollouts in metrics.by_task([r for g in groups for r in g.rollouts]).items()
        }
        self._log(row)
        ckpt = self.config.ckpt
        if ckpt is not None and ckpt.interval and step % ckpt.interval == 0:
            self._save(final=False)

    async def _play(self, step: int, sources: Sequence[Source], server: Server) -> list[Group]:
        chosen = draw(sources, self.config.orchestrator.batch_size, self._rng)
        self.progress.phase(f"step {step}", sum(s.group_size for s in chosen))
        ctx = self._context(server)
        tick = self.progress.episode
        plays = [play_group(source, ctx, lambda _: tick()) for source in chosen]
        return await together(plays)

    def _context(self, server: Server) -> vf.ModelContext:
        sampling = self.config.orchestrator.train.sampling
        return context(
            self._policy,
            server.url,
            temperature=sampling.temperature,
            max_tokens=sampling.max_completion_tokens,
            renderer=self.config.orchestrator.renderer,
        )

    def _settled(self, source: SourceConfig, gpu: Gpu | None) -> SourceConfig:
        """What the source leaves to the run; boxes do not get the GPU that vLLM has."""
        env = source.env
        if gpu is not None and isinstance(env, ResearchEnvConfig) and not env.inference_gpus:
            env = env.model_copy(update={"inference_gpus": [gpu.uuid]})
        env = settled(
            env,
            self._policy,
            max_context_tokens=self._context_tokens,
            record_dir=self.folder / "trajectories",
        )
        return source.model_copy(update={"env": env})

    def _learn(self, step: int, samples: Sequence[Sample], server: Server) -> dict[str, float]:
        with server.exclusive():  # nothing is sampled while the weights change in place
            learnt = self._trainer.step(samples)
        self._done = step
        return learnt

    def _hand_over(self, server: Server) -> None:
        """Makes the server sample with the present weights, once it answers."""
        if self._handed != self._done:
            server.update_weights()
            self._handed = self._done
        server.ready()

    def _watch(self, rollouts: Sequence[Rollout]) -> None:
        failures = [r.error for r in rollouts if not r.ok]
        for error in failures:
            logger.warning("episode failed: %s", error)
        self._failed_steps = self._failed_steps + 1 if len(failures) == len(rollouts) else 0
        if self._failed_steps >= self.config.embedded.max_failed_steps:
            raise InfrastructureError(
                f"no episode of the last {self._failed_steps} steps ended well; the last error: "
                f"{failures[-1][:300]} — mend that, then {self.go_on}"
            )

    @property
    def _context_tokens(self) -> int:
        return min(self.config.seq_len, self._policy.max_length)

    @property
    def go_on(self) -> str:
        """How to go on with this run; from the start where no step was done."""
        if self._done == 0:
            return "start again, nothing was done yet"
        return f"to go on: rl @ {self.folder / 'config.json'} --resume"

    def _resume(self) -> None:
        if self.outcome.checkpoint is None:
            return
        self._done, state = checkpoint.load_state(self.outcome.checkpoint)
        self._handed = self._done
        self._trainer.load_state_dict(state)
        self.outcome.rows = _read_rows(self.folder / run_folder.METRICS_FILE, self._done)
        _read_rows(self.folder / group_log.FILE, self._done)
        self.progress.say(f"going on after step {self._done}")

    def _log(self, row: dict[str, Any]) -> None:
        self.outcome.rows.append(row)
        jsonl.append(self.folder / run_folder.METRICS_FILE, [row])
        self.progress.step(row)

    def _save(self, *, final: bool) -> None:
        root = self.folder / "checkpoints"
        if self._done == 0 or (final and self._done in run_folder.steps(root)):
            return
        keep = self.config.ckpt.keep_last if self.config.ckpt else None
        self.outcome.checkpoint = checkpoint.save(
            root, self._done, self._policy, self._trainer.state_dict(), keep_last=keep
        )


def summary(rows: Sequence[dict[str, Any]], baselines: dict[str, float]) -> list[dict[str, Any]]:
    """Per task: mean and best score of the first and the last quarter of the steps."""
    quarter = max(1, len(rows) // 4)
    parts = {"first": rows[:quarter], "last": rows[-quarter:]}
    table = []
    for task in sorted({t for row in rows for t in row["tasks"]}):
        entry: dict[str, Any] = {"task": task, "baseline": baselines.get(task)}
        for part, of in parts.items():
            seen = [row["tasks"][task] for row in of if task in row["tasks"]]
            scores = [s for one in seen for s in one["scores"]]
            best = min if any(one["direction"] == "lower" for one in seen) else max
            entry[f"{part}_mean"] = metrics.mean(scores)
            entry[f"{part}_best"] = best(scores) if scores else None
            entry[f"{part}_reward"] = metrics.mean(one["reward"] for one in seen)
        table.append(entry)
    return table


def _scores(rollouts: Sequence[Rollout]) -> dict[str, Any]:
    good = [r for r in rollouts if r.ok]
    return {
        "direction": good[0].info.get("direction", "higher") if good else "higher",
        "scores": [s for r in good if (s := r.metric("score")) is not None],
        "test_scores": [s for r in good if (s := r.metric("test_score")) is not None],
        "reward": metrics.mean(r.reward for r in good),
    }


def _read_rows(path: Path, until: int) -> list[dict[str, Any]]:
    """The rows up to step `until`; later ones, of steps that are played again, are dropped."""
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    rows = [
        json.loads(line) for line in lines if line.endswith("\n")
    ]  # a killed run's last is torn
    rows = [row for row in rows if row["step"] <= until]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return rows


def _expanded(name: str) -> str:
    return str(Path(name).expanduser()) if name.startswith("~") else name
