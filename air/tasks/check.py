"""Runs a task's reference solutions (solvers) in boxes (sandboxes) and compares their scores with the
recorded scores. Also tests whether the task's grader is deterministic.

The file `solvers.toml` in the task's folder lists the solvers from the baseline to a good solution. For
MLGym's tasks, this file ships with air, unless the checkout of MLGym contains one. Scores are compared only
if the task's data are split with the public seed, because the recorded scores hold only for that split (see
`air.tasks.splits`).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from pydantic import Field, model_validator

from air.config import BaseConfig, read_toml, validate
from air.errors import ArtefactError, BoxEndedError, ConfigError, GradingError, MissingError
from air.sandbox.contract.box import Box
from air.sandbox.pool.box_pool import Pool
from air.tasks import stage
from air.tasks.artefact import Artefact, collect
from air.tasks.grading import SPLITS, Grader, empty_artefact
from air.tasks.spec import Provider, TaskSpec

TOLERANCE = 1e-6
"""A recorded score and a new one count as equal if they differ by at most this value."""


class Solver(BaseConfig):
    """A reference solution of a task: a script, and the scores that were recorded for its artefact (the files
    that the script makes)."""

    name: str = Field(min_length=1)
    """The solver's name; the first solver must be named `baseline`."""
    script: str = Field(min_length=1)
    """The text of a shell script, which `bash` runs in the task's working folder and which writes the
    artefact (the files to grade) there."""
    val: float = Field(allow_inf_nan=False)
    """The solver's recorded score on the validation split."""
    test: float = Field(allow_inf_nan=False)
    """The solver's recorded score on the test split."""
    within: float = Field(TOLERANCE, gt=0)
    """The largest allowed difference between a new score and the recorded score; by default `TOLERANCE`. Set
    it higher if the solver's scores depend on the machine's floating-point arithmetic."""
    known: float | None = Field(None, allow_inf_nan=False)
    """A published validation score of the same solution; None if there is none."""
    known_within: float = Field(TOLERANCE, gt=0)
    """The largest allowed difference between the new validation score and `known`."""


class Solvers(BaseConfig):
    """The contents of the file `solvers.toml`: the reference solutions (solvers) of one task."""

    solver: tuple[Solver, ...] = Field(min_length=1)
    """The solvers, from the worst to the best validation score; the first is the baseline."""
    baseline_note: str = ""
    """Why the baseline solver's score differs from the task's declared `baseline`; empty if it does not."""

    @model_validator(mode="after")
    def _baseline_first(self) -> Solvers:
        if self.solver[0].name != "baseline":
            raise ValueError('the first solver must be named "baseline"')
        return self


@dataclass(frozen=True)
class Checked:
    """The result of running and grading one reference solution (solver): its new scores, and a message if
    something is wrong, such as a score that differs from the recorded one."""

    task: str
    """The task's id."""
    solver: str
    """The solver's name."""
    val: float | None
    """The new score on the validation split; None if the solver made no artefact (files to grade) that can be
    graded."""
    test: float | None
    """The new score on the test split; None if the solver made no artefact (files to grade) that can be
    graded."""
    exec_seconds: float
    """Wall time of the solver's script, in seconds."""
    grade_seconds: float
    """Wall time of the grader on the validation split, in seconds; 0.0 if the grade came from the cache."""
    problem: str = ""
    """What is wrong, for example that a score differs from the recorded one; empty if nothing is wrong."""


def read_solvers(task: TaskSpec, *, recording: bool = False) -> tuple[Solver, ...]:
    """Returns the reference solutions (solvers) in a task's `solvers.toml`, in the order of the file: from
    the worst to the best validation score.

    `recording`: whether the caller measures the scores anew. If so, the scores in the file may be missing or
    wrong. Raises MissingError if the task has no solvers, and ConfigError if the file is invalid. Without
    `recording`, raises ConfigError also if the recorded score of the baseline solver differs from the task's
    declared baseline and the file gives no reason for it (`baseline_note`).
    """
    file = task.solvers
    if not file.is_file():
        raise MissingError(
            "no solvers are recorded, so there is nothing to check",
            where=f"task {task.id}",
            remedy=f"`air shell {task.id}` plays it; solvers would stand in {file}",
        )
    data = read_toml(file)
    if recording:
        for solver in data.get("solver", ()):
            solver.update({name: 0.0 for name in ("val", "test") if name not in solver})
    solvers = validate(Solvers, data, where=str(file))
    baseline = solvers.solver[0].val
    agrees = abs(baseline - task.baseline) <= TOLERANCE
    if not agrees and not solvers.baseline_note and not recording:
        raise ConfigError(
            f"the baseline's val is {baseline}, but task.toml declares {task.baseline}",
            where=str(file),
            remedy="record the baseline's score in both",
        )
    return solvers.solver


async def check(
    task: TaskSpec,
    boxes: Pool,
    grader: Grader,
    provider: Provider,
    *,
    recording: bool = False,
) -> list[Checked]:
    """Runs each reference solution of a task in a new box (sandbox) from the pool `boxes`, and returns one
    result for each, in the order of `solvers.toml`. `provider` is the kind of boxes (`docker` or `process`).

    `recording`: whether the new scores will replace the recorded ones. If so, the scores in `solvers.toml`
    may be missing or wrong. Otherwise the artefact (the files) of the last solution is graded again, and an
    artefact of empty files too, to see whether the grader is deterministic.

    Raises UsageError if the task or its reference solutions cannot be used, and
    InfrastructureError if a box or the grader failed.
    """
    rows = []
    solvers = read_solvers(task, recording=recording)
    for solver in solvers:
        again = not recording and solver is solvers[-1]
        async with boxes.lease(task.box_spec(provider)) as box:
            rows.append(await play_solver(task, solver, box, grader, again=again))
    return rows


async def play_solver(
    task: TaskSpec, solver: Solver, box: Box, grader: Grader, *, again: bool = False
) -> Checked:
    """Runs one reference solution of a task in `box`, an empty sandbox into which the task's files are copied
    first, and grades its artefact (the files that it made) on the validation and the test split. If `again`,
    then also grades this artefact once more and an artefact of empty files, to see whether the grader is
    deterministic.

    If the script fails or the artefact cannot be graded, the result's `problem` says why. Raises UsageError
    if the task's data cannot be prepared, and InfrastructureError if the box or the grader failed.
    """
    await stage(task, box)
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
    problems = _differences(solver, val.score, test.score) if task.split.public else []
    problems += [
        f"its grader failed at first, though not again: {grade.first_error}"
        for grade in (val, test)
        if grade.first_error
    ]
    if again:
        problems += await _graded_again(task, artefact, val.score, solver.within, grader)
    return Checked(
        task=task.id,
        solver=solver.name,
        val=val.score,
        test=test.score,
        exec_seconds=result.seconds,
        grade_seconds=val.seconds,
        problem="; ".join(problems),
    )


async def _graded_again(
    task: TaskSpec, artefact: Artefact, score: float, within: float, grader: Grader
) -> list[str]:
    """Tests whether a grader is deterministic. Grades an artefact (the files that a solver made) again on the
    validation split, where its first grade had the score `score`, and grades an artefact of empty files on
    both splits. Returns one message for each grading in which the grader failed, and one if the second score
    differs from `score` by more than `within`."""
    problems = []
    try:
        again = (await grader.grade_anew(task, artefact, split="val")).score
        if abs(again - score) > within:
            problems.append(
                f"its grader is not deterministic: the same artefact got {score:.6g}, then {again:.6g}"
            )
    except (ArtefactError, GradingError, BoxEndedError) as error:
        problems.append(f"its grader gave the same artefact {score:.6g}, then failed: {error}")
    for split in SPLITS:
        try:
            await grader.grade_anew(task, empty_artefact(task), split=split)
        except (GradingError, BoxEndedError) as error:
            problems.append(f"its grader fails on an empty artefact: {error}")
        except ArtefactError:
            continue  # an empty artefact should be refused
    return problems


def _differences(solver: Solver, val: float, test: float) -> list[str]:
    problems = [
        f"{split} is {now:.6g}, recorded {then:.6g}"
        for split, then, now in (("val", solver.val, val), ("test", solver.test, test))
        if abs(now - then) > solver.within
    ]
    if solver.known is not None and abs(val - solver.known) > solver.known_within:
        problems.append(f"val is {val:.6g}, known {solver.known:g} ± {solver.known_within:g}")
    return problems


def out_of_order(task: TaskSpec, rows: list[Checked]) -> str:
    """Returns a message about the first reference solution in `rows` that scores no better than the solution
    before it; an empty string if each scores better. Solutions without a score are skipped."""
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
