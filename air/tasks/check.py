"""Plays a task's recorded solvers in boxes and compares what they score with what is declared.

`solvers.toml` in the task's folder (a file of ours for each of MLGym's tasks) lists settings from the
baseline to a good one: a script that is run in a freshly staged box, and the scores that its artefact
got on both splits when it was recorded. On another split of the data the recorded scores do not apply:
then only the order is checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from pydantic import Field, model_validator

from air.config import BaseConfig, read_toml, validate
from air.errors import ArtefactError, ConfigError
from air.sandbox.contract.box import Box
from air.sandbox.pool.box_pool import Pool
from air.tasks import data, stage
from air.tasks.artefact import collect
from air.tasks.grading import Grader
from air.tasks.spec import Provider, TaskSpec

TOLERANCE = 1e-6
"""Largest difference between a recorded score and the same score measured again."""


class Solver(BaseConfig):
    """One setting with its recorded scores."""

    name: str = Field(min_length=1)
    """What to call it; the first one is `baseline`."""
    script: str = Field(min_length=1)
    """A script for `bash`, run in the workspace."""
    val: float = Field(allow_inf_nan=False)
    """Its score on the validation split."""
    test: float = Field(allow_inf_nan=False)
    """Its score on the test split."""
    known: float | None = Field(None, allow_inf_nan=False)
    """What others measured for the same, on the validation split."""
    known_within: float = Field(TOLERANCE, gt=0)
    """How far the score may be from `known`."""


class Solvers(BaseConfig):
    """The settings of a task, worst first by the validation score."""

    solver: tuple[Solver, ...] = Field(min_length=1)
    """At least the baseline."""
    baseline_note: str = ""
    """Why the baseline's recorded score is not the one that the task declares, where it is not."""

    @model_validator(mode="after")
    def _baseline_first(self) -> Solvers:
        if self.solver[0].name != "baseline":
            raise ValueError('the first solver must be named "baseline"')
        return self


@dataclass(frozen=True)
class Checked:
    """What one solver scored, and what is wrong with that; no problem means none."""

    task: str
    solver: str
    val: float | None
    test: float | None
    exec_seconds: float
    grade_seconds: float
    """Wall time of the grader on the validation split; 0.0 where the grade was remembered."""
    problem: str = ""


def read_solvers(task: TaskSpec, *, recording: bool = False) -> tuple[Solver, ...]:
    """The recorded solvers of a task; for `recording`, whatever the recorded scores are.

    Raises:
        MissingError: the task has none.
        ConfigError: the file is bad, or its baseline is not the one that the task declares.
    """
    file = task.solvers
    found = validate(Solvers, read_toml(file), where=str(file))
    baseline = found.solver[0].val
    agrees = abs(baseline - task.baseline) <= TOLERANCE
    if not agrees and not found.baseline_note and not recording:
        raise ConfigError(
            f"the baseline's val is {baseline}, but task.toml declares {task.baseline}",
            where=str(file),
            remedy="record the baseline's score in both",
        )
    return found.solver


async def check(
    task: TaskSpec,
    boxes: Pool,
    grader: Grader,
    provider: Provider,
    *,
    split_seed: int,
    recording: bool = False,
) -> list[Checked]:
    """Plays every solver of a task, each in a box of its own, in the order of the file. For
    `recording`, the scores in the task's files may be any.

    Raises:
        UsageError, InfrastructureError: the check itself could not be done.
    """
    rows = []
    for solver in read_solvers(task, recording=recording):
        async with boxes.lease(task.box_spec(provider)) as box:
            rows.append(await play_solver(task, solver, box, grader, split_seed))
    return rows


async def play_solver(
    task: TaskSpec, solver: Solver, box: Box, grader: Grader, split_seed: int
) -> Checked:
    """Lays the task out in an empty box, plays one solver there and grades what it made.

    Raises:
        UsageError, InfrastructureError: the check itself could not be done.
    """
    await stage(task, box, split_seed=split_seed)
    result = await box.exec(solver.script, timeout=task.limits.exec_seconds)
    if not result.ok:
        lines = result.text.strip().splitlines() or ["no output"]
        problem = f"its script ended with {result.code}: {lines[-1]}"
        return _failed(task, solver, result.seconds, problem)
    try:
        artefact = await collect(task, box)
        val = await grader.grade(task, artefact, split="val")
        test = await grader.grade(task, artefact, split="test")
    except ArtefactError as error:
        return _failed(task, solver, result.seconds, str(error))
    problems = _differences(solver, val.score, test.score)
    return Checked(
        task=task.id,
        solver=solver.name,
        val=val.score,
        test=test.score,
        exec_seconds=result.seconds,
        grade_seconds=val.seconds,
        problem="; ".join(problems) if split_seed == data.SPLIT_SEED else "",
    )


def _differences(solver: Solver, val: float, test: float) -> list[str]:
    problems = [
        f"{split} is {now:.6g}, recorded {then:.6g}"
        for split, then, now in (("val", solver.val, val), ("test", solver.test, test))
        if abs(now - then) > TOLERANCE
    ]
    if solver.known is not None and abs(val - solver.known) > solver.known_within:
        problems.append(f"val is {val:.6g}, known {solver.known:g} ± {solver.known_within:g}")
    return problems


def out_of_order(task: TaskSpec, rows: list[Checked]) -> str:
    """Names the first solver that is no better than the one before it; empty if there is none."""
    sign = 1 if task.direction == "higher" else -1
    scored = [(row, sign * row.val) for row in rows if row.val is not None]
    for (worse, low), (better, high) in pairwise(scored):
        if high <= low:
            return f"{better.solver} is no better than {worse.solver}"
    return ""


def _failed(task: TaskSpec, solver: Solver, seconds: float, problem: str) -> Checked:
    return Checked(
        task=task.id,
        solver=solver.name,
        val=None,
        test=None,
        exec_seconds=seconds,
        grade_seconds=0.0,
        problem=problem,
    )
