"""Grades artefacts (the files that agents hand in) in fresh boxes (sandboxes) and caches the grades, so that
equal artefacts are graded once.

A grader that fails (its box ends, it exceeds its time limit, or it writes no result) runs once more in a
fresh box. If it fails again, it runs on an empty artefact (one of empty files), at most twice, to find out
whether the agent's artefact is at fault:

- If the grader works on the empty artefact, the agent's artefact is at fault.
- If it fails there too, the task is broken, which stops the run. But if it exceeded its time limit, or its
  box ended or could not be prepared, the machine may be overloaded: then the failure counts as an
  infrastructure error, for which no agent is blamed.

The tests of a Harbor task are allowed to fail for an agent that did nothing. Such tests count as broken only
if they give no reward to the task's reference solution either (see `air.tasks.solution_check`). A failure
with a known cause outside the grader's box is always an infrastructure error.

A grade depends only on the artefact, the task's files, the grader's data, the split, the seed and the
software of the grader's box. That software is identified by the image's id or, for a process box (a sandbox
without a container), by this Python and its packages. Grades, and the messages about artefacts that a grader
refused, are cached in memory and under `<cache>/grades`; infrastructure errors are never cached. With
`grader.repeats = R`, a grade is the mean over R fixed seeds.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import math
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib import metadata
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal, get_args

from air import json_lines, paths
from air.errors import (
    ArtefactError,
    BoxEndedError,
    BoxFileError,
    BrokenTaskError,
    GradingError,
    StagingError,
)
from air.machine_failures import FULL_DISK
from air.sandbox.contract.box import Box, ExecResult
from air.sandbox.pool.box_pool import Pool
from air.sandbox.pool.start_retry import retry
from air.tasks import data
from air.tasks.rules import Artefact, GraderResult, Rules
from air.tasks.solution_check import SolutionCheck
from air.tasks.spec import GRADER_DIR, Provider, TaskSpec, usable

Split = Literal["val", "test"]
"""The part of the hidden data on which an artefact (an agent's files) is graded: validation or test. Do not
confuse it with `air.tasks.splits.Split`: the division of a task's data into a part that the agent sees and a
hidden part."""
SPLITS: tuple[Split, ...] = get_args(Split)
BAD_ARTEFACT = 3
"""The exit status by which a grader says that it refuses the artefact (the agent's files), for example
because a file is malformed."""
_ARTEFACT_DIR = "artefact"
_RESULT = f"{GRADER_DIR}/result.json"
_MAX_MESSAGE = 500
NOT_GRADED = "the grader could not grade it"
"""The message that the agent gets if the grader failed twice on the agent's artefact."""
_GRADER_ERRORS = (GradingError, BoxEndedError, StagingError)
"""The types of errors that are raised if the grader or its box (sandbox) fails, and whose cause may be the
artefact (the agent's files)."""
_log = logging.getLogger(__name__)


class _TimeLimitError(GradingError):
    """The grader exceeded its time limit, perhaps because the machine is overloaded."""


@dataclass(frozen=True)
class Grade:
    """The metrics of one artefact (an agent's files to grade) on one split of the data."""

    score: float
    """The value of the task's primary metric; the mean if the artefact (the agent's files) was graded several
    times."""
    metrics: dict[str, float]
    """All metrics by name, including the primary metric; means if the artefact (the agent's files) was graded
    several times."""
    seconds: float
    """Wall time of the grader in seconds; 0.0 if the grader did not run for this grade."""
    reused: bool
    """Whether the grade came from the cache, or from a grader that already ran for an equal request."""
    stderr: float | None = None
    """The standard error of `score`; None if the artefact (the agent's files) was graded only once."""
    first_error: str = ""
    """The error message of the grader if it failed once on this artefact (the agent's files) and graded it
    the second time; otherwise empty."""


def averaged(grades: Sequence[Grade]) -> Grade:
    """Returns the mean of several grades of one artefact (an agent's files), each computed with another seed.
    A single grade is returned unchanged.

    The standard error of the mean of n scores x is s/√n, where s² = Σ(x − mean)²/(n − 1). A metric that any
    of the grades lacks is left out. Raises ValueError if `grades` is empty, and OverflowError if a mean is
    too large for a floating-point number.
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
        reused=all(grade.reused for grade in grades),
        stderr=stdev(scores) / math.sqrt(len(scores)),
        first_error=next((g.first_error for g in grades if g.first_error), ""),
    )


@dataclass(frozen=True)
class _Request:
    """A request to grade one artefact (an agent's files) once, on one split and with one seed."""

    task: TaskSpec
    artefact: Artefact
    prepared: data.PreparedData | None
    """The grader's files; None if the task is graded by its own `Rules` (see `air.tasks.rules`)."""
    split: Split
    seed: int
    provider: Provider
    image_id: str
    """The id that the container image of the grader's box had when the request was made; empty for a process
    box (a sandbox without a container)."""
    software: str
    """For a process box (a sandbox without a container): a string with the versions of Python and its
    packages. Empty for a container, because its image contains all of its software."""

    @cached_property
    def key(self) -> str:
        """SHA-256, in hex, of everything on which the grade depends."""
        files, split = (self.prepared.digest, self.split) if self.prepared else ("", "")
        parts = [self.artefact.digest, self.task.hash, files, split]
        parts += [str(self.seed), self.provider, self.image_id, self.software]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def command(self, box: Box) -> list[str]:
        """Returns the grader's command line in `box`."""
        script = box.path(f"{GRADER_DIR}/{self.task.grader.script}")
        artefact, out = f"{box.workspace}/{_ARTEFACT_DIR}", box.path(_RESULT)
        options = {"artefact": artefact, "split": self.split, "seed": str(self.seed), "out": out}
        return ["python3", script, *(w for k, v in options.items() for w in (f"--{k}", v))]


@dataclass
class _Run:
    task: asyncio.Task[GraderResult]
    waiters: int = 0


class Grader:
    """Grades artefacts (agents' files) in boxes (sandboxes) of `pool` and caches the grades. `provider` is
    the kind of these boxes (`docker` or `process`). Grades are stored in the folder `cache_dir`; None: in
    `<cache>/grades`. Use one object in one event loop only.

    `pool` must not be the agents' pool, because an agent keeps its box while it waits for a grade.
    """

    def __init__(self, pool: Pool, provider: Provider, cache_dir: Path | None = None) -> None:
        self._pool = pool
        self._provider: Provider = provider
        self._store = _Store(cache_dir or paths.cache() / "grades")
        self._running: dict[str, _Run] = {}
        self._solutions = SolutionCheck(pool)

    async def grade(
        self, task: TaskSpec, artefact: Artefact, *, split: Split, seed: int = 0
    ) -> Grade:
        """Grades an artefact (an agent's files) `task.grader.repeats` times, one after the other, and returns
        the mean grade.

        Each grading has a seed of its own, which is computed from `seed`, the number of the grading, and the
        seed that splits the task's data. Raises ArtefactError, with a message for the agent, if the grader
        refuses the artefact or fails on it twice, and InfrastructureError if the failure is not the
        artefact's fault.
        """
        requests = await self._requests(task, artefact, split, seed)
        grades = [await self._once(request) for request in requests]
        return self._mean(grades)

    async def grade_anew(self, task: TaskSpec, artefact: Artefact, *, split: Split) -> Grade:
        """Grades an artefact (an agent's files) on the split and returns the mean grade, to show whether the
        grader is deterministic. In contrast to `grade`, it does not use cached grades, and a grader that
        fails does not run a second time. Raises ArtefactError if the grader refuses the artefact, and
        GradingError or BoxEndedError if it fails."""
        requests = await self._requests(task, artefact, split, 0)
        outcomes = [await self._attempt(request) for request in requests]
        return self._mean([_grade(outcome, task.metric) for outcome in outcomes])

    def _mean(self, grades: Sequence[Grade]) -> Grade:
        try:
            return averaged(grades)
        except OverflowError as error:
            fault = f"no number can hold the mean of its scores, or their standard error: {error}"
            raise ArtefactError(NOT_GRADED, fault=fault) from error

    async def grade_in(self, task: TaskSpec, box: Box, step: int) -> Grade:
        """Grades the agent's work inside the agent's own box (sandbox), where the tests of some tasks run
        (see `Rules.grade_shared` in `air.tasks.rules`). `step` is the number, from 0, of the task's stage
        (step, in Harbor's words). Raises ArtefactError if the agent's box makes the grader fail twice, and
        InfrastructureError if the failure is not the box's fault."""
        assert task.rules is not None
        try:
            outcome = await self._twice_in(task.rules, box, step)
        except _GRADER_ERRORS as error:
            request = (await self._requests(task, task.rules.untouched(step), "val", 0))[0]
            await self._check(request)
            fault = " ".join(str(error).split())[:_MAX_MESSAGE]
            _log.warning("%s; so the agent's box is at fault", fault)
            raise ArtefactError(NOT_GRADED, fault=fault) from error
        metrics = outcome.metrics
        return Grade(metrics[task.metric], metrics, outcome.seconds, reused=False)

    async def _twice_in(self, rules: Rules, box: Box, step: int) -> GraderResult:
        async with box.attributing():
            try:
                return await rules.grade_shared(box, step)
            except (GradingError, StagingError) as error:
                _log.warning("%s; it is graded once more", error)
                return await rules.grade_shared(box, step)

    async def _requests(
        self, task: TaskSpec, artefact: Artefact, split: Split, seed: int
    ) -> list[_Request]:
        prepared = None if task.rules else await asyncio.to_thread(data.prepare, task)
        times = task.grader.repeats
        seeds = [task.split.grading_seed(n) for n in range(seed * times, (seed + 1) * times)]
        image = task.rules.grading_box(artefact).image if task.rules else task.image
        box = (self._provider, *await self._software(image))
        return [_Request(task, artefact, prepared, split, one, *box) for one in seeds]

    async def _software(self, image: str) -> tuple[str, str]:
        """Returns two strings that identify the software of a grader box (sandbox), because a cached grade
        holds only for the same software. For a container: the id that `image` has now, and an empty string.
        For a process box (a sandbox without a container): an empty string, and the versions of Python and its
        packages."""
        if self._provider != "docker":
            return "", await asyncio.to_thread(_packages)
        from air.sandbox.docker import engine

        # No cache: the question takes milliseconds, and a tag can be given to another image at any time.
        return await retry(lambda: engine.image_id(image)), ""

    async def _once(self, request: _Request) -> Grade:
        outcome = await asyncio.to_thread(self._store.get, request.key)
        outcome = outcome or self._store.known.get(request.key)  # an equal run may just have ended
        reused = outcome is not None
        if outcome is None:
            reused = request.key in self._running
            outcome = await self._shared(request)
        return _grade(outcome, request.task.metric, reused=reused)

    async def _shared(self, request: _Request) -> GraderResult:
        """Returns the grader's result for a request. Starts a run of the grader only if none for an equal
        request is in progress; otherwise waits for that run. A run is cancelled if all requests that wait for
        it are cancelled."""
        run = self._running.get(request.key)
        if run is None:
            run = self._running[request.key] = _Run(asyncio.create_task(self._run(request)))
        run.waiters += 1
        try:
            return await asyncio.shield(run.task)
        finally:
            run.waiters -= 1
            if run.waiters == 0:
                self._running.pop(request.key, None)
                if not run.task.done():
                    run.task.cancel()
                    await asyncio.gather(run.task, return_exceptions=True)

    async def check(self, task: TaskSpec) -> None:
        """Runs the grader once on an empty artefact (files without content), to show that the grader works
        without an agent's files.

        Raises InfrastructureError if the grader fails. Only if it works can a later failure be blamed on an
        artefact.
        """
        request = (await self._requests(task, empty_artefact(task), "val", 0))[0]
        if await asyncio.to_thread(self._store.get, request.key) is None:
            await self._check_on_empty(request, 1)

    async def _check(self, request: _Request) -> None:
        rules = request.task.rules
        empty = (
            rules.untouched(rules.step_of(request.artefact))
            if rules
            else empty_artefact(request.task)
        )
        request = replace(request, artefact=empty)
        if rules is None:
            await self._check_on_empty(request, 2)
            return
        try:
            outcome = await self._attempt(request)
        except _GRADER_ERRORS as error:
            problem = await self._problem_of_solution(request)
            if not problem:
                return
            duty = f"and the solution gets no valid reward either: {problem}"
            remedy = (
                "mend the task, or leave it out; `air tasks check` shows whether its tests work"
            )
            raise BrokenTaskError(
                f"{error} — if the agent did nothing, {duty} — {remedy}"
            ) from error
        if outcome.cacheable:
            await asyncio.to_thread(self._store.put, request.key, outcome)

    async def _check_on_empty(self, request: _Request, tries: int) -> None:
        """Runs a task's grader on an empty artefact (files without content) until it works, at most `tries`
        times. If it fails each time, raises BrokenTaskError, or GradingError if the cause may be the machine:
        the grader exceeded its time limit, or its box (sandbox) ended or could not be prepared."""
        for tries_left in reversed(range(tries)):
            try:
                outcome = await self._attempt(request)
                break
            except _GRADER_ERRORS as error:
                duty = f"on an empty artefact, where it must exit with {BAD_ARTEFACT} and a message, or 0"
                if tries_left:
                    _log.warning("%s — %s; it is tried once more", error, duty)
                elif isinstance(error, _TimeLimitError | BoxEndedError | StagingError):
                    raise GradingError(f"{error} — {duty}") from error
                else:
                    remedy = "mend the grader; `air tasks check` tries it"
                    raise BrokenTaskError(f"{error} — {duty} — {remedy}") from error
        if outcome.cacheable:
            await asyncio.to_thread(self._store.put, request.key, outcome)

    async def _problem_of_solution(self, request: _Request) -> str:
        """Returns the reason why the task's reference solution gets no reward; an empty string if it gets
        one, or if no solution can run. If the task has several stages (steps, in Harbor's words), the
        solution of the stage to which the request's artefact belongs is run."""
        task = request.task
        assert task.rules is not None
        step = task.rules.step_of(request.artefact)
        return await self._solutions.problem(
            task, step, lambda artefact: self._attempt(replace(request, artefact=artefact))
        )

    async def _run(self, request: _Request) -> GraderResult:
        try:
            outcome = await self._attempt(request)
        except _GRADER_ERRORS as error:
            _log.warning("%s; it is graded once more, in a fresh box", error)
            outcome = await self._again(request, error)
        if outcome.cacheable:
            await asyncio.to_thread(self._store.put, request.key, outcome)
        return outcome

    async def _again(self, request: _Request, first: Exception) -> GraderResult:
        """Grades an artefact (the agent's files) a second time, after the grader failed on it with the error
        `first`. If the grader fails again, a check without the agent's files follows. If the check shows that
        the grader works, the result says that the artefact is at fault; otherwise GradingError or
        BrokenTaskError is raised."""
        try:
            outcome = await self._attempt(request)
            return outcome if outcome.message else replace(outcome, fault=str(first))
        except _GRADER_ERRORS as error:
            await self._check(request)
            fault = " ".join(str(error).split())[:_MAX_MESSAGE]
            _log.warning("%s; so the artefact %s is at fault", fault, request.artefact.digest[:8])
            return GraderResult(message=NOT_GRADED, cacheable=False, fault=fault)

    async def _attempt(self, request: _Request) -> GraderResult:
        """Runs the grader once for a request, in a new box, and returns the result. Raises GradingError if
        the grader fails, and BoxEndedError if its box (sandbox) ends."""
        task = request.task
        if task.rules is not None:
            async with self._pool.lease(task.rules.grading_box(request.artefact)) as box:
                async with box.attributing():
                    outcome = await task.rules.grade(box, request.artefact)
                same = box.image_digest == request.image_id
                return replace(outcome, cacheable=outcome.cacheable and same)
        assert request.prepared is not None
        async with self._pool.lease(task.grader_spec(self._provider)) as box:
            await box.put(request.prepared.grader, GRADER_DIR)
            async with box.attributing():
                if problem := await _written(box, request.artefact):
                    return GraderResult(message=problem)
                result = await box.exec(request.command(box), timeout=task.limits.grade_seconds)
                outcome = await _read(task, box, result)
            if box.image_digest != request.image_id:  # the tag was given to another image meanwhile
                outcome = replace(outcome, cacheable=False)
            return outcome


def _grade(outcome: GraderResult, metric: str, *, reused: bool = False) -> Grade:
    """Converts a grader's result to a grade, whose score is the metric named `metric`. `reused`: whether the
    result comes from the cache or from another request's run. Raises ArtefactError if the artefact was
    refused or is at fault."""
    if outcome.message:
        raise ArtefactError(outcome.message, fault=outcome.fault)
    return Grade(
        score=outcome.metrics[metric],
        metrics=dict(outcome.metrics),
        seconds=0.0 if reused else outcome.seconds,
        reused=reused,
        first_error=outcome.fault,
    )


def empty_artefact(task: TaskSpec) -> Artefact:
    """Returns an artefact (files to grade) that contains all files that the task declares, each of them
    empty. A declared folder contains one empty file."""
    names = (f"{name}empty" if name.endswith("/") else name for name in task.artefacts)
    return Artefact(dict.fromkeys(names, b""))


@cache
def _packages() -> str:
    """Returns a string that identifies the software of a process box (a sandbox without a container): the
    version and path of this Python, the platform, and the versions of all packages."""
    installed = {f"{one.metadata['Name']}=={one.version}" for one in metadata.distributions()}
    return "\n".join([sys.version, sys.executable, platform.platform(), *sorted(installed)])


async def _written(box: Box, artefact: Artefact) -> str:
    """Writes an artefact (the agent's files) into a grader's box, a sandbox. Returns an empty string, or a
    message for the agent if the box cannot hold the artefact.

    Raises StagingError if the machine's disk is full: the box has no disk of its own (see
    `Box.has_own_disk`). This does not prove that the artefact is innocent, because agents' boxes of this kind
    share the disk, and their commands can fill it. So a second attempt and the check on an empty artefact
    decide, as after any other failure of a grader.
    """
    for name, content in artefact.files.items():
        try:
            await box.write(f"{_ARTEFACT_DIR}/{name}", content)
        except BoxFileError as error:
            if not box.has_own_disk and str(error).endswith(FULL_DISK):
                raise StagingError(
                    f"the artefact cannot be copied to the grader: {error}"
                ) from error
            return f"it does not fit into the grader's box: {error}"
    return ""


async def _read(task: TaskSpec, box: Box, result: ExecResult) -> GraderResult:
    """Returns the outcome that the grader wrote into its result file in `box`. `result` is the result of the
    grader's command. Raises GradingError if the grader exceeded its time limit or wrote no valid result."""
    where = f"grader of task {task.id}"
    if result.timed_out:
        raise _TimeLimitError(f"{where}: ran past {task.limits.grade_seconds:g} s")
    if result.code not in (0, BAD_ARTEFACT):
        lines = [line for line in result.text.splitlines() if line.strip()]
        last = lines[-1][:_MAX_MESSAGE] if lines else "no output"
        raise GradingError(f"{where}: exit {result.code}: {last}")
    try:
        report = json_lines.decode(await box.read(_RESULT, max_bytes=1_000_000))
    except (BoxFileError, ValueError) as error:
        raise GradingError(f"{where}: exit {result.code}, but no result: {error}") from error
    if not isinstance(report, dict):
        raise GradingError(f"{where}: the result is no JSON object")
    if result.code == BAD_ARTEFACT:
        message = report.get("message")
        if not isinstance(message, str) or not message.strip():
            raise GradingError(f"{where}: exit {BAD_ARTEFACT} without a message")
        return GraderResult(
            message=message[:_MAX_MESSAGE],
            cacheable=report.get("remember", True) is True,
            seconds=result.seconds,
        )
    return GraderResult(
        metrics=_metrics(report.get("metrics"), task.metric, where), seconds=result.seconds
    )


def _metrics(metrics: Any, primary: str, where: str) -> dict[str, float]:
    if not isinstance(metrics, Mapping):
        raise GradingError(f"{where}: the result has no metrics")
    score = metrics.get(primary)
    if not usable(score):
        raise GradingError(f"{where}: {primary} is {score!r:.40}, not a finite number")
    return {str(name): float(value) for name, value in metrics.items() if usable(value)}


class _Store:
    """Caches the results of graders, in memory and on disk in one file for each result. The key of a result
    is a hash of everything on which the grade depends (`_Request.key`).

    The results include scores on the test split. Therefore only this user may read the files, whatever the
    umask is.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.known: dict[str, GraderResult] = {}
        """The results in memory, by request key: the SHA-256 of everything on which a grade depends."""

    def get(self, key: str) -> GraderResult | None:
        """Returns the cached result for the request key `key`, or None if there is none or its file is
        invalid."""
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
        outcome = GraderResult(metrics={k: float(v) for k, v in metrics.items()}, message=message)
        self.known[key] = outcome
        return outcome

    def put(self, key: str, outcome: GraderResult) -> None:
        self.known[key] = replace(outcome, seconds=0.0, fault="")
        entry = {"v": 1, "key": key, "metrics": outcome.metrics, "message": outcome.message}
        file = self._file(key)
        for folder in (self._folder, file.parent):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o700)
        paths.write_whole(file, json.dumps(entry).encode(), mode=0o600)

    def _file(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key}.json"
