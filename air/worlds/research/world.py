"""The research world: an agent works on a task in a box (an isolated place for commands, such as a
container), and a grader scores its artefact (the files that the task asks for).

The action `validate` grades the artefact on the validation split in a separate box, which the agent never
sees; its reward is the change of the normalised score. `submit` does the same and ends the episode. If the
artefact is missing or malformed, the observation says so, and the score counts as the lowest normalised
score. If the agent's commands end the box, the episode ends and its artefact counts as missing.
Infrastructure failures raise `InfrastructureError`.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from air.actions.base import Action, ActionFormat, Standing, ToolCall
from air.errors import ArtefactError, BoxEndedError, BrokenTaskError, ConfigError, StagingError
from air.rewards.delta import Counts, DeltaReward, validate_that_counts
from air.sandbox.contract.box import Box, ExecResult
from air.tasks import stage
from air.tasks.artefact import Artefact, collect
from air.tasks.grading import Grade, Grader
from air.tasks.spec import TaskSpec
from air.worlds.base import Observation, Step, Validation
from air.worlds.research.agent_pause import paused
from air.worlds.research.observations import (
    BOX_ENDED,
    NONE_LEFT,
    OVER,
    after_action,
    describe,
    score_line,
)
from air.worlds.research.score_rounding import OLD_STEP
from air.worlds.research.times import Times
from air.worlds.research.tools import Tools

if TYPE_CHECKING:
    from air.worlds.research.tool_servers import ToolServers

OUTPUT_BYTES = 16_000


@dataclass
class ResearchWorld:
    """The world of one research episode: an agent works on one task in one box, an isolated place for
    commands. `grader` grades artefacts (the files that the agent makes), and `pay` computes the reward of
    each validate, that is, of each grading during the episode."""

    task: TaskSpec
    box: Box
    grader: Grader
    pay: DeltaReward
    counts: Counts = "last"
    """Which artefact (state of the agent's files) is graded on the test split at the end: the artefact of the
    last validate (`last`), or of the first validate with the best score (`best`). A validate is a grading
    during the episode."""
    offers_tools: bool = True
    """Whether the agent can call tools of MCP (Model Context Protocol) servers. If not, the task's MCP
    servers are not started."""
    servers: ToolServers | None = None
    """The MCP (Model Context Protocol) servers that the task declares; None before `reset`, if the task
    declares none, or if the agent cannot call their tools (`offers_tools`)."""
    tools: Tools | None = None
    """The tools of the action format `mlgym`, such as `open`. None: the episode's format has no such tools,
    and every script starts in the workspace."""
    seed: int = 0
    validations: list[Validation] = field(default_factory=list)
    times: Times = field(default_factory=Times)
    told_step: float = OLD_STEP
    """The step to which scores that the agent sees are rounded (see `score_rounding`)."""
    max_validates: int | None = None
    """The maximum number of the agent's actions `validate` that are graded. None: no limit. A `submit` is
    always graded."""
    refused_validates: int = 0
    """The number of the agent's actions `validate` that were not graded, because `max_validates` had been
    reached."""
    submitted: bool = False
    step_number: int = 0
    """The index, from 0, of the current stage of a task that has several stages (`task.rules`), such as a
    Harbor task, where stages are called steps. In other tasks it stays 0."""
    rewards: list[float | None] = field(default_factory=list)
    """In a task that has several stages (`task.rules`; steps, in Harbor's words): the score of each stage
    that was graded so far, in order; None for a stage that could not be graded."""
    outlasts_caller: bool = False
    """Whether a grading continues if the call of `validate` is cancelled, for example because the episode's
    time is over. Otherwise an agent could avoid a bad score by the action `validate` just before the time is
    over. `finish` waits for such a grading, and `abandon` cancels it."""
    box_end_reason: str = ""
    """The error message if the agent's commands have ended the box or made it unusable, else empty."""
    task_error: str = ""
    """The message of the BrokenTaskError that a grading raised, which stops the run; empty if none did."""
    test_score: float | None = None
    """The value of the task's metric on the test split, measured once at the end. None before the end, or if
    there is no valid artefact (state of the agent's files) to grade."""
    test_stderr: float | None = None
    """The standard error of `test_score`; None if the grader ran only once, with one seed."""
    on_validated: Callable[[], None] | None = None
    """A function that is called, without arguments, after every grading on the validation split; None if
    there is none."""
    finished: bool = False
    """Whether `finish` has completed, so that the reward no longer changes."""
    keep: Callable[[str, Mapping[str, bytes]], str] | None = None
    """A function that stores a copy of the artefact (the agent's files) before each grading. It is called in
    a thread, with a hash of the artefact and the artefact's files (contents by path), and returns the path of
    the copy. None: no copy is stored."""
    test_artefact: tuple[str, str] = ("", "")
    """A hash of the artefact (state of the agent's files) that was graded on the test split, and the path of
    its stored copy. Each is empty if there is none."""
    _counted_artefact: Artefact | None = None
    """The artefact to be graded on the test split: a copy of the agent's files, made for an earlier grading,
    so that the agent cannot change it later. None if the files could not be read, or before the first
    grading."""
    _grading: asyncio.Task[Validation] | None = None
    """The asyncio task of the latest grading, which may still run."""
    _began: float = field(default_factory=time.monotonic)
    _ended: bool = False
    """Whether a step has returned `done`."""
    _closed: bool = False

    def fork(self, box: Box) -> ResearchWorld:
        """Returns a copy of this world in its present state, so that the same episode can be continued in
        several ways. The copy acts in another box, `box`, whose workspace must be a copy of the workspace of
        this world's box. The two worlds share the object `times`."""
        return replace(
            self,
            box=box,
            pay=copy.deepcopy(self.pay),
            tools=None if self.tools is None else self.tools.copied_to(box),
            servers=None if self.servers is None else self.servers.copied_to(box),
            validations=list(self.validations),
            rewards=list(self.rewards),
            _grading=None,
        )

    async def reset(self, seed: int) -> Observation:
        """Starts the episode: copies the task's files into the box, starts the task's MCP (Model Context
        Protocol) servers, if the agent may use them, and returns the task's description."""
        self.seed = seed
        start = time.monotonic()
        await stage(self.task, self.box)
        rules = self.task.rules
        if self.offers_tools and rules is not None and (declared := rules.tool_servers):
            from air.worlds.research.tool_servers import ToolServers

            self.servers = ToolServers(declared, self.box)
            await self.servers.open()
        self._began = time.monotonic()
        self.times.box += self._began - start
        return Observation(text=describe(self.task))

    def offered(self, action_format: ActionFormat) -> ActionFormat:
        """Returns `action_format` (the rule by which a reply becomes an action), extended by the tools of the
        task's MCP (Model Context Protocol) servers. Raises ConfigError if the format cannot call such
        tools."""
        if self.servers is None:
            return action_format
        return action_format.with_tools(self.servers.schemas)

    def instructions(self, action_format: ActionFormat) -> str:
        """Returns the part of the prompt that explains an action format, including the optional tools of
        the episode, such as `memory_write`."""
        offered = self.tools.settings.offered if self.tools else ()
        extra = [action_format.optional[name] for name in offered]
        if self.task.rules is not None:
            extra.append("In this task `validate` scores nothing; only `submit` is graded.")
        if self.servers is not None:
            extra += [f"Not offered: {line}." for line in self.servers.left_out]
        return "\n".join([action_format.instructions, *extra])

    def standing(self, left: int | None) -> Standing:
        """Returns the agent's situation between two actions: the number of remaining turns (given as `left`;
        None: not limited) and, if the episode has tools, the working directory and the open file."""
        return Standing(left=left) if self.tools is None else self.tools.standing(left)

    async def step(self, action: Action) -> Step:
        """Runs the action's tool call or script. If the action ends with `validate` or `submit`, then grades
        the artefact (the agent's files). If the action's commands end the box, returns the episode's last
        step without a grading; `finish` then counts the artefact as missing. After the end of the episode,
        does nothing and returns a step with `done` true."""
        if self._ended or self._closed:
            return Step(observation=Observation(OVER), done=True)
        answer = result = validation = None
        score = ""
        try:
            async with self.box.attributing():
                answer = None if action.tool is None else await self._use(action.tool)
                result = await self._run(action.script) if action.script else None
        except BoxEndedError as error:
            self.box_end_reason, self._ended = str(error), True
            return Step(observation=Observation(BOX_ENDED), done=True)
        if action.ending == "validate" and self._none_left:
            self.refused_validates += 1
            score = NONE_LEFT
        elif action.ending is not None:
            validation = await self.validate()
            score = self._scored(validation)
            if action.ending == "submit":
                score = await self.submit() or score
        self._ended = self.submitted or bool(self.box_end_reason)
        return Step(
            observation=Observation(
                text=after_action(answer, result, score, self.task.limits.exec_seconds),
                truncated=any(one is not None and one.truncated for one in (answer, result)),
            ),
            done=self._ended,
            validation=validation,
            code=None if result is None else result.code,
            exec_seconds=0.0 if result is None else result.seconds,
            timed_out=result is not None and result.timed_out,
        )

    async def submit(self) -> str:
        """Ends the agent's work, or its present stage, after the grading of a `submit`. If the task's `rules`
        have a next stage (step, in Harbor's words), prepares the box for that stage and returns the stage's
        instruction as text. Otherwise sets `submitted` and returns an empty string. If the box cannot be
        prepared, sets `box_end_reason` and returns an empty string."""
        rules, number = self.task.rules, self.step_number
        done = (
            rules is None
            or self.box_end_reason
            or not rules.goes_on(number, self.validations[-1].metrics)
        )
        if rules is None or done:
            self.submitted = True
            return ""
        self.step_number += 1
        try:
            async with self.box.attributing():
                await rules.stage(self.box, self.step_number)
        except (BoxEndedError, StagingError) as error:  # the agent can have broken the box
            self.box_end_reason = str(error)
            return ""
        return f"[step {number + 1} of {rules.steps} is submitted]\n{rules.instruction(number + 1)}"

    async def validate(self, *, automatic: bool = False) -> Validation:
        """Grades the artefact (the agent's files in the box) on the validation split, and returns the score
        and the reward.

        `automatic` marks the grading at the end of an episode, which the agent did not request.
        """
        self._grading = asyncio.create_task(self._validate(automatic))
        try:
            return await asyncio.shield(self._grading)
        except asyncio.CancelledError:
            if not self.outlasts_caller:
                await self.abandon()
            raise

    async def restore(self, validation: Validation) -> None:
        """Adds the result of a grading that was read from a recorded episode, to continue that episode. The
        graded artefact must be in the box now. It is not graded again, and no reward is computed."""
        artefact = None
        if self.counts == "best":  # with `last`, a later validate reads the artefact that counts
            with contextlib.suppress(ArtefactError):
                artefact = await self._collect()
        if self.task.rules is not None:
            self.rewards.append(validation.metrics.get(self.task.metric))
        self._add(validation, artefact)

    def _add(self, validation: Validation, artefact: Artefact | None) -> None:
        """Adds the result of a grading to `validations`. `artefact` is the copy of the agent's files that was
        graded. If it is now the one to be graded on the test split in the end (see `counted_validate`),
        stores it for this purpose."""
        self.validations.append(validation)
        if self.counted_validate == len(self.validations) - 1:
            self._counted_artefact = artefact

    async def _validate(self, automatic: bool) -> Validation:
        began = time.monotonic()
        artefact, problem = None, ""
        try:
            artefact = None if self._graded_in_place else await self._collect()
        except ArtefactError as error:
            problem = str(error)
        collecting = time.monotonic() - began
        async with self._paused_for(artefact) as still:
            validation = await self._grade(artefact, problem, began, automatic)
        self.times.grading += validation.seconds
        self.times.grading_beside_agent += collecting if still else validation.seconds
        self._add(validation, artefact)
        if self.on_validated is not None:
            self.on_validated()
        return validation

    async def finish(self) -> None:
        """Ends the episode: grades on the test split the artefact (state of the agent's files) that
        `counted_validate` selects. A second call does nothing.

        If the agent did not submit, the artefact in the box is first graded on the validation split. If this
        artefact is also selected for the test split, both gradings use the same copy. In a task with `rules`
        of its own, such as a Harbor task, no artefact is graded on the test split. Raises InfrastructureError
        if one of these gradings fails, or if the latest earlier grading has failed or still runs and fails.
        """
        if self._closed:
            return
        if self._grading is not None:
            await self._grading
        self.times.agent = self.agent_seconds
        self._closed = True
        if not self.submitted:
            await self.validate(automatic=True)
        began = time.monotonic()
        if self._counted_artefact is not None and self.task.rules is None:
            async with self._paused_for(self._counted_artefact):
                await self._test(self._counted_artefact)
        self.times.grading += time.monotonic() - began
        self.finished = True

    async def abandon(self) -> None:
        """Cancels a grading that still runs, and closes the task's MCP (Model Context Protocol) servers. Call
        this method instead of `finish` if the result of the episode is not needed."""
        if self._grading is not None:
            self._grading.cancel()
            await asyncio.gather(self._grading, return_exceptions=True)
            self._grading = None
        if self.servers is not None:
            await self.servers.close()

    async def close(self) -> dict[str, Any]:
        """Ends the episode by `finish`.

        Returns a dict with `score` (of the last grading on the validation split), `best` (the best of these
        scores) and `test_score`. A missing score is None.
        """
        await self.finish()
        return {"score": self.score, "best": self.best, "test_score": self.test_score}

    def facts(self) -> dict[str, float]:
        """Returns the scores so far, by name: `score` and `best_score` (the last and the best one on the
        validation split), and `test_score`. Missing scores are left out."""
        scores = {"score": self.score, "best_score": self.best, "test_score": self.test_score}
        return {name: score for name, score in scores.items() if score is not None}

    @property
    def agent_seconds(self) -> float:
        """The time, in seconds, that counts for the agent so far: the time since its work began, without the
        time for recording the episode, and for gradings while the agent's processes stood still."""
        if self._closed:
            return self.times.agent
        return max(0.0, time.monotonic() - self._began - self.times.of_air)

    @property
    def reward(self) -> float:
        """The sum of the delta rewards (for changes of the score) of all gradings on the validation split so
        far."""
        return sum(v.delta for v in self.validations)

    @property
    def score(self) -> float | None:
        """The score of the last grading on the validation split; None before the first grading, or if the
        last artefact got no score."""
        return self.validations[-1].score if self.validations else None

    @property
    def best(self) -> float | None:
        """The best score on the validation split so far: the highest or the lowest, by the task's
        `direction`. None if there is no score."""
        scores = [v.score for v in self.validations if v.score is not None]
        if not scores:
            return None
        return max(scores) if self.task.direction == "higher" else min(scores)

    @property
    def counted_validate(self) -> int | None:
        """The index in `validations` of the grading whose artefact (state of the agent's files) is to be
        graded on the test split in the end. The setting `counts` decides: the last grading (`last`), or the
        first one with the best score (`best`). None before the first grading."""
        return validate_that_counts(
            [v.score for v in self.validations], self.counts, self.task.direction
        )

    @property
    def _graded_in_place(self) -> bool:
        """Whether the grader works in the agent's own box instead of on a copy of the artefact in a grader
        box. The `rules` of a Harbor task can demand this. False once the box has ended."""
        rules = self.task.rules
        return rules is not None and rules.shared and not self.box_end_reason

    @property
    def _none_left(self) -> bool:
        asked = sum(not one.automatic for one in self.validations)
        return self.max_validates is not None and asked >= self.max_validates

    async def _use(self, call: ToolCall) -> Observation:
        if call.arguments is not None:
            if self.servers is None:
                raise ConfigError(
                    f"offers no tool {call.name!r}, since it names no MCP servers",
                    where=self.task.id,
                )
            return await self.servers.call(call)
        if self.tools is None:
            raise RuntimeError(f"{call.name}: this world was made without tools")
        began = time.monotonic()
        answer = await self.tools.call(call)
        self.times.exec += time.monotonic() - began
        return answer

    async def _run(self, script: str) -> ExecResult:
        began = time.monotonic()
        shell = self.box if self.tools is None else self.tools.shell
        result = await shell.exec(
            script, timeout=self.task.limits.exec_seconds, max_bytes=OUTPUT_BYTES
        )
        self.times.exec += time.monotonic() - began
        return result

    def _scored(self, validation: Validation) -> str:
        best = validation.score if self.best is None else self.best
        return score_line(
            self.task, validation, best, self.told_step, baseline=self.tools is not None
        )

    async def _kept(self, artefact: Artefact) -> tuple[str, str]:
        digest = artefact.digest
        kept = await asyncio.to_thread(self.keep, digest, artefact.files) if self.keep else ""
        return digest, kept

    async def _collect(self) -> Artefact:
        """Reads the artefact (the files that the agent has to produce for its task) from the agent's box, a
        sandbox, and returns it. Raises ArtefactError if the files cannot be read, or if the box has ended;
        the reason for the end is stored in `box_end_reason`."""
        if not self.box_end_reason:
            try:
                async with self.box.attributing():
                    return await collect(self.task, self.box, step=self.step_number)
            except BoxEndedError as error:
                self.box_end_reason = str(error)
        raise ArtefactError(BOX_ENDED)

    async def _test(self, artefact: Artefact) -> None:
        """Grades `artefact` on the test split. The score stays None if the artefact is refused."""
        self.test_artefact = await self._kept(artefact)
        with contextlib.suppress(ArtefactError), self._noting_broken_tasks():
            grade = await self.grader.grade(self.task, artefact, split="test", seed=0)
            self.test_score, self.test_stderr = grade.score, grade.stderr

    def _paused_for(self, artefact: Artefact | None) -> AbstractAsyncContextManager[bool]:
        """Context manager: stops the agent's processes while `artefact` is graded, and yields whether they
        stand still. Stops nothing if there is nothing to grade, or if the grader works in the agent's box."""
        return nullcontext(True) if artefact is None else paused(self.box)

    @contextmanager
    def _noting_broken_tasks(self) -> Iterator[None]:
        """Context manager: if its `with` block raises BrokenTaskError, stores the error's message in
        `task_error`, and raises the error again."""
        try:
            yield
        except BrokenTaskError as error:
            self.task_error = str(error)
            raise

    async def _grade(
        self, artefact: Artefact | None, problem: str, began: float, automatic: bool
    ) -> Validation:
        digest = copy_path = fault = ""
        grade: Grade | None = None
        try:
            with self._noting_broken_tasks():
                if artefact is not None:
                    digest, copy_path = await self._kept(artefact)
                    grade = await self.grader.grade(self.task, artefact, split="val", seed=0)
                elif self._graded_in_place:
                    grade = await self.grader.grade_in(self.task, self.box, self.step_number)
        except ArtefactError as error:
            problem, fault = str(error), error.fault
        score, stderr = (None, None) if grade is None else (grade.score, grade.stderr)
        metrics = {} if grade is None else grade.metrics
        if self.task.rules is not None and self.task.rules.steps > 1:
            self.rewards.append(score)
            score = self.task.rules.total(self.rewards, ended=automatic)
        reward = self.pay.of(score, stderr)
        return Validation(
            score=score,
            phi=None if reward is None else reward.phi,
            delta=0.0 if reward is None else reward.delta,
            problem=problem,
            fault=fault,
            stderr=stderr,
            floor=0.0 if reward is None else reward.floor,
            metrics=metrics,
            anchor=None if reward is None else reward.anchor,
            digest=digest,
            kept=copy_path,
            seconds=time.monotonic() - began,
            remembered=grade is not None and grade.reused,
            automatic=automatic,
        )
