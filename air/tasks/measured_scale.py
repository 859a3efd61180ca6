"""Measures which scores are normalised to 0 (a task's baseline) and to 1 (its target) if the task's data are
split with a secret seed. There is one measurement for each such split.

A task's file declares baseline and target only for the split with the public seed, for which the scores of
its reference solutions are also recorded. On another split, the first solution (the baseline) and the last
(the best) are run and graded again. The linear function that maps their two recorded scores to their two
measured scores is then applied to the declared baseline and target. So both solutions keep their normalised
score φ on the new split, and φ = 0 still means "as good as the baseline". With `normalise = "log-gap"`, the
function maps logarithms of distances to the optimum instead.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import logging
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from air import paths
from air.errors import InfrastructureError, UsageError, boundary
from air.sandbox.pool.box_pool import Pool
from air.tasks import data
from air.tasks.check import play_solver, read_solvers
from air.tasks.grading import Grader
from air.tasks.spec import Provider, RewardScale, TaskSpec
from air.tasks.splits import Split

_POLL_SECONDS = 0.1
_STRETCH = 2.0
"""The largest factor by which the distance from baseline to target may grow or shrink from one split to
another. There is a limit, because scores on a small split are noisy."""
_LOG = logging.getLogger(__name__)


async def on_split(
    task: TaskSpec, split: Split, boxes: Pool, grader: Grader, provider: Provider
) -> TaskSpec:
    """Returns a copy of `task` that uses the data split `split`. Its baseline and target (the scores that are
    normalised to 0 and 1) are those of this split: they are read from a file if they were measured before,
    and are measured now if not. On the public split they stay as declared.

    If the task has no recorded reference solutions, baseline and target stay as declared, and the log says
    so. If several processes call this function at the same time, only one of them measures. Raises UsageError
    if the task cannot be used, and InfrastructureError if a box (sandbox), the grader or a reference solution
    failed.
    """
    moved = task.on(split)
    if split.public:
        return moved
    if not task.solvers.is_file():
        _LOG.warning(
            "%s has no recorded solutions, so its declared baseline and target are used", task.id
        )
        return moved
    file = _file(moved, provider)
    if not file.is_file():
        async with _alone(file.with_suffix(".lock")):
            if not file.is_file():
                _LOG.info("%s: baseline and target of a new secret split are measured", task.id)
                scale = await _measured(moved, boxes, grader, provider)
                text = scale.model_dump_json(include={"baseline", "target"})
                await asyncio.to_thread(paths.write_whole, file, text.encode())
    with boundary(UsageError, f"{file} (remove it)", OSError, ValueError):
        scale = RewardScale(**task.reward_scale().model_dump() | json.loads(file.read_bytes()))
    return task.on(split, scale)


def moved_scale(
    scale: RewardScale, recorded: tuple[float, float], measured: tuple[float, float]
) -> RewardScale:
    """Returns a copy of `scale` whose baseline and target (the scores that are normalised to 0 and 1) are
    adjusted to another split of the data. With them, the reference solutions have the same normalised scores
    on the other split as with `scale` on its own split. But the distance from baseline to target changes at
    most by a factor of two.

    `recorded` are the scores of the worst and the best reference solution on the split of `scale`. `measured`
    are their scores on the other split.
    """
    worst, best = (_place(scale, score) for score in recorded)
    origin, end = (_place(scale, score) for score in measured)
    stretch = (end - origin) / (best - worst) if best != worst else 1.0
    if not math.isfinite(stretch):
        stretch = 1.0
    stretch = min(max(stretch, 1 / _STRETCH), _STRETCH)
    baseline, target = (
        _score(scale, origin + stretch * (_place(scale, declared) - worst))
        for declared in (scale.baseline, scale.target)
    )
    return RewardScale(**scale.model_dump() | {"baseline": baseline, "target": target})


def _place(scale: RewardScale, score: float) -> float:
    """Returns a number x such that the normalised score of `score` is a linear function of x: x is the score
    itself or, with `normalise = "log-gap"`, −log10 of the score's distance to the optimum."""
    if scale.normalise != "log-gap" or scale.optimum is None:
        return score
    gap = abs(score - scale.optimum)
    return -math.log10(gap) if gap else math.inf


def _score(scale: RewardScale, place: float) -> float:
    if scale.normalise != "log-gap" or scale.optimum is None:
        return place
    side = 1 if scale.baseline > scale.optimum else -1
    return scale.optimum + side * 10**-place


async def _measured(task: TaskSpec, boxes: Pool, grader: Grader, provider: Provider) -> RewardScale:
    solvers = read_solvers(task)
    recorded, measured = [], []
    for solver in (solvers[0], solvers[-1]):
        async with boxes.lease(task.box_spec(provider)) as box:
            row = await play_solver(task, solver, box, grader)
        if row.val is None:
            raise InfrastructureError(
                f"task {task.id}: its reference solution {solver.name} failed on the secret split: "
                f'{row.problem} — repair it, or play on the public split: split_seed = "public"'
            )
        recorded.append(solver.val)
        measured.append(row.val)
    return moved_scale(task.reward_scale(), (recorded[0], recorded[1]), (measured[0], measured[1]))


def _file(task: TaskSpec, provider: Provider) -> Path:
    """Returns the path of the file, beside the split's data, that stores the measured baseline and target.
    The path depends on the recorded scores, so that new recorded scores lead to a new measurement."""
    declared = task.reward_scale().model_dump_json().encode()
    key = hashlib.sha256(declared + task.solvers.read_bytes()).hexdigest()[:12]
    prepared = data.folder(task)
    return prepared.with_name(f"{prepared.name}.{provider}-{key}.json")


@asynccontextmanager
async def _alone(path: Path) -> AsyncIterator[None]:
    """Async context manager that holds an exclusive lock on the file `path`, so that no other process or
    coroutine runs the same block at the same time."""
    with boundary(UsageError, f"cannot lock {path}", OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a")
    with file:
        while not _locked(file.fileno()):  # noqa: ASYNC110 — another process can hold the lock
            await asyncio.sleep(_POLL_SECONDS)
        yield


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
