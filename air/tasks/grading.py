"""Grades artefacts in fresh grader boxes and caches the grades, so that equal artefacts are graded once.

A grade depends only on the artefact, the task's files and image, the grader's data, the split, the seed and
the kind of box. Grades and bad artefacts are cached in memory and under `<cache>/grades`; infrastructure
failures never are. With `grader.repeats = R`, a grade is the mean over R fixed seeds.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

from air import paths
from air.errors import ArtefactError, BoxFileError, GradingError
from air.sandbox.contract.box import Box, ExecResult
from air.sandbox.pool.box_pool import Pool
from air.tasks import data
from air.tasks.artefact import Artefact
from air.tasks.spec import GRADER_DIR, Provider, TaskSpec, usable

Split = Literal["val", "test"]
BAD_ARTEFACT = 3
_ARTEFACT_DIR = "artefact"
_RESULT = f"{GRADER_DIR}/result.json"
_MAX_MESSAGE = 500
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Grade:
    """The metrics of one artefact on one split of the data."""

    score: float
    """The value of the task's primary metric; the mean if the artefact was graded several times."""
    metrics: dict[str, float]
    """All metrics by name, with the primary one; means if the artefact was graded several times."""
    seconds: float
    """Wall time of the grader in seconds; 0.0 if the grade came from the cache."""
    remembered: bool
    """Whether the grade came from the cache, or from a grader that already ran for an equal request."""
    stderr: float | None = None
    """The standard error of `score`; None if the artefact was graded only once."""


def averaged(grades: Sequence[Grade]) -> Grade:
    """Returns the mean of grades of one artefact, each computed with another seed; a single one unchanged.

    The standard error of the mean of n scores x is s/√n, where s² = Σ(x − mean)²/(n − 1). A metric that one
    of the grades lacks is left out. Raises ValueError if there is no grade.
    """
    if not grades:
        raise ValueError("a mean of no grades")
    if len(grades) == 1:
        return grades[0]
    scores = [grade.score for grade in grades]
    names = [name for name in grades[0].metrics if all(name in g.metrics for g in grades)]
    return Grade(
        score=fmean(scores),
        metrics={name: fmean(g.metrics[name] for g in grades) for name in names},
        seconds=sum(grade.seconds for grade in grades),
        remembered=all(grade.remembered for grade in grades),
        stderr=stdev(scores) / math.sqrt(len(scores)),
    )


@dataclass(frozen=True)
class _Outcome:
    """The result of one run of a grader: metrics, or a message for the agent if its artefact is bad."""

    metrics: dict[str, float] = field(default_factory=dict)
    message: str = ""
    remember: bool = True
    """Whether the result is allowed to be cached."""
    seconds: float = 0.0


@dataclass
class _Run:
    task: asyncio.Task[_Outcome]
    waiters: int = 0


class Grader:
    """Grades artefacts in boxes of `pool` and caches the grades. Use one object in one event loop only.

    `pool` must not be the agents' pool, because an agent keeps its box while it waits for a grade.
    """

    def __init__(
        self,
        pool: Pool,
        provider: Provider,
        cache_dir: Path | None = None,
        *,
        split_seed: int = data.SPLIT_SEED,
    ) -> None:
        self._pool = pool
        self._provider: Provider = provider
        self._store = _Store(cache_dir or paths.cache() / "grades")
        self._split_seed = split_seed
        self._running: dict[str, _Run] = {}

    async def grade(
        self, task: TaskSpec, artefact: Artefact, *, split: Split, seed: int = 0
    ) -> Grade:
        """Grades an artefact `task.grader.repeats` times, one after the other, and returns the mean grade.

        `seed` determines the seed of each grading. Raises ArtefactError, with a message for the agent, if the
        artefact is bad, and InfrastructureError if the grader or its box failed.
        """
        prepared = await asyncio.to_thread(data.prepare, task, self._split_seed)
        times = task.grader.repeats
        seeds = range(seed * times, (seed + 1) * times)
        return averaged([await self._once(task, artefact, prepared, split, one) for one in seeds])

    async def _once(
        self,
        task: TaskSpec,
        artefact: Artefact,
        prepared: data.PreparedData,
        split: Split,
        seed: int,
    ) -> Grade:
        key = _key(task, artefact, prepared.digest, split, seed, self._provider)
        outcome = await asyncio.to_thread(self._store.get, key)
        outcome = outcome or self._store.known.get(key)  # another run can have ended meanwhile
        remembered = outcome is not None
        if outcome is None:
            remembered = key in self._running
            outcome = await self._shared(key, task, artefact, prepared, split, seed)
        if outcome.message:
            raise ArtefactError(outcome.message)
        return Grade(
            score=outcome.metrics[task.metric],
            metrics=dict(outcome.metrics),
            seconds=0.0 if remembered else outcome.seconds,
            remembered=remembered,
        )

    async def _shared(
        self,
        key: str,
        task: TaskSpec,
        artefact: Artefact,
        prepared: data.PreparedData,
        split: Split,
        seed: int,
    ) -> _Outcome:
        """Runs the grader once for equal requests at the same time; cancelled when all of them are."""
        run = self._running.get(key)
        if run is None:
            work = self._run(key, task, artefact, prepared, split, seed)
            run = self._running[key] = _Run(asyncio.create_task(work))
        run.waiters += 1
        try:
            return await asyncio.shield(run.task)
        finally:
            run.waiters -= 1
            if run.waiters == 0:
                self._running.pop(key, None)
                if not run.task.done():
                    run.task.cancel()
                    await asyncio.gather(run.task, return_exceptions=True)

    async def _run(
        self,
        key: str,
        task: TaskSpec,
        artefact: Artefact,
        prepared: data.PreparedData,
        split: Split,
        seed: int,
    ) -> _Outcome:
        async with self._pool.lease(task.grader_spec(self._provider)) as box:
            await box.put(prepared.grader, GRADER_DIR)
            for name, content in artefact.files.items():
                await box.write(f"{_ARTEFACT_DIR}/{name}", content)
            result = await box.exec(
                _command(task, box, split, seed), timeout=task.limits.grade_seconds
            )
            outcome = await _read(task, box, result)
        if outcome.remember:
            await asyncio.to_thread(self._store.put, key, outcome)
        return outcome


def _command(task: TaskSpec, box: Box, split: Split, seed: int) -> list[str]:
    return [
        "python3",
        box.path(f"{GRADER_DIR}/{task.grader.script}"),
        "--artefact",
        f"{box.workspace}/{_ARTEFACT_DIR}",
        "--split",
        split,
        "--seed",
        str(seed),
        "--out",
        box.path(_RESULT),
    ]


async def _read(task: TaskSpec, box: Box, result: ExecResult) -> _Outcome:
    """Reads the grader's result file; raises GradingError if it ran too long or wrote no valid result."""
    where = f"grader of task {task.id}"
    if result.timed_out:
        raise GradingError(f"{where}: ran past {task.limits.grade_seconds:g} s")
    if result.code not in (0, BAD_ARTEFACT):
        lines = [line for line in result.text.splitlines() if line.strip()]
        last = lines[-1][:_MAX_MESSAGE] if lines else "no output"
        raise GradingError(f"{where}: exit {result.code}: {last}")
    try:
        report = json.loads(await box.read(_RESULT, max_bytes=1_000_000))
    except (BoxFileError, ValueError) as error:
        raise GradingError(f"{where}: exit {result.code}, but no result: {error}") from error
    if not isinstance(report, dict):
        raise GradingError(f"{where}: the result is no JSON object")
    if result.code == BAD_ARTEFACT:
        message = report.get("message")
        if not isinstance(message, str) or not message.strip():
            raise GradingError(f"{where}: exit {BAD_ARTEFACT} without a message")
        return _Outcome(
            message=message[:_MAX_MESSAGE],
            remember=report.get("remember", True) is True,
            seconds=result.seconds,
        )
    return _Outcome(
        metrics=_metrics(report.get("metrics"), task.metric, where), seconds=result.seconds
    )


def _metrics(metrics: Any, primary: str, where: str) -> dict[str, float]:
    if not isinstance(metrics, Mapping):
        raise GradingError(f"{where}: the result has no metrics")
    score = metrics.get(primary)
    if not usable(score):
        raise GradingError(f"{where}: {primary} is {score!r:.40}, not a finite number")
    return {str(name): float(value) for name, value in metrics.items() if usable(value)}


def _key(
    task: TaskSpec, artefact: Artefact, graded_by: str, split: Split, seed: int, provider: Provider
) -> str:
    parts = [artefact.digest, task.hash, graded_by, split, str(seed), provider, task.image]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


class _Store:
    """Caches the results of graders by key: in memory, and in one file each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.known: dict[str, _Outcome] = {}
        """The results in memory, by key."""

    def get(self, key: str) -> _Outcome | None:
        """Returns the cached result, or None if there is none or its file is invalid."""
        if key in self.known:
            return self.known[key]
        file = self._file(key)
        try:
            entry = json.loads(file.read_bytes())
            if entry["key"] != key:
                raise ValueError("the file belongs to another grade")
            metrics, message = dict(entry["metrics"]), str(entry["message"])
            if not message and (not metrics or not all(map(usable, metrics.values()))):
                raise ValueError("the file has no usable metrics")
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            _log.warning("ignored the remembered grade %s: %s", file, error)
            return None
        outcome = _Outcome(metrics={k: float(v) for k, v in metrics.items()}, message=message)
        self.known[key] = outcome
        return outcome

    def put(self, key: str, outcome: _Outcome) -> None:
        self.known[key] = replace(outcome, seconds=0.0)
        file = self._file(key)
        file.parent.mkdir(parents=True, exist_ok=True)
        entry = {"v": 1, "key": key, "metrics": outcome.metrics, "message": outcome.message}
        handle, name = tempfile.mkstemp(dir=file.parent, prefix=".new-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as out:
                json.dump(entry, out)
            Path(name).replace(file)
        except BaseException:  # cancellation too: no half-written file is left
            Path(name).unlink(missing_ok=True)
            raise

    def _file(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key}.json"
