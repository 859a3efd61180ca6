"""The state of one running episode: its world, its recorder and its counters.

verifiers shares its task and harness objects between episodes, so the state is an attribute of the episode's
runtime (`air.env.runtimes`), which no other episode uses.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from air.actions import Action, ActionFormat
from air.env.config import ResearchEnvConfig
from air.env.credit import Ledger
from air.env.diffs import Differ
from air.errors import BoxEndedError, RewardTermError
from air.rewards.normalise import phi_on
from air.rewards.terms import EpisodeFacts, reward_terms
from air.trajectories import Call, Diff, Recorder, TokenRef, ToolUse
from air.worlds.base import Step, Validation
from air.worlds.research.world import ResearchWorld

EARLY_SECONDS = 0.1
"""How many seconds before verifiers' deadline air ends an episode. At the deadline itself, verifiers 0.3
would let the episode fail without a grade."""
OVERLONG = ("context length", "maximum context", "max_model_len", "too long", "overlong")
"""Lower-case texts. If a model server's error message contains one of them, the prompt was too long."""


@dataclass
class Counters:
    """Counts of events in one episode (turns, format errors, …), and the seconds of its model calls."""

    turns: int = 0
    format_errors: int = 0
    cut_observations: int = 0
    cut_replies: int = 0
    context_ends: int = 0
    refused_requests: int = 0
    """Requests of a program in the box that did not continue its conversation with the model."""
    model_seconds: float = 0.0


@dataclass
class Episode:
    """The state of one running episode: its world, its record, its counters and its reward so far.
    `vf.Episode` is another class, with which verifiers describes the same episode."""

    id: str
    world: ResearchWorld
    recorder: Recorder
    config: ResearchEnvConfig
    counters: Counters = field(default_factory=Counters)
    format: ActionFormat | None = None
    """The action format; None if a program in the box plays the agent, instead of air's own harness."""
    malformed_in_a_row: int = 0
    """How many consecutive replies, up to and including the latest, were not an action."""
    trace: Any = None
    """The verifiers trace of the episode; None before the task is set up."""
    ledger: Ledger = field(default_factory=Ledger)
    """The parts of the reward, each with the position in the trace at which it arose."""
    failed: bool = False
    """Whether an infrastructure failure ended the episode."""
    term_error: str = ""
    """How a reward term of the user failed, so that the run must stop. Empty if none failed."""
    differ: Differ | None = None
    """The object that finds what each step changed in the workspace; None if changes are not recorded."""
    model_call: dict[str, Any] = field(default_factory=dict)
    """The duration and token counts of the last model call, for the line of the next step."""
    recorded: int = 0
    """The number of gradings that have already been written to the trajectory."""
    why_ended: str = ""
    """Why the episode ended: `submit`, `turns`, `context`, `length`, `format`, `killed`, `box` (the agent's
    commands ended their box), or the name of verifiers' stop condition. Empty while the episode runs."""

    def __post_init__(self) -> None:
        self.world.on_validated = lambda: self._note(ends=True)

    def system(self, text: str | None) -> str:
        """Returns the system prompt: `text`, from the settings, then the action format's instructions."""
        if self.format is None:
            return text or ""
        tools = self.world.tools
        extra = [self.format.optional[name] for name in (tools.settings.offered if tools else ())]
        instructions = "\n".join([self.format.instructions, *extra])
        return "\n\n".join(part for part in (text, instructions) if part)

    def prompt(self, text: str, max_turns: int | None) -> str:
        """Returns the first user prompt: `text`, the task's, then the action format's opening text."""
        if self.format is None:
            return text
        return text + self.format.opening(self.world.standing(max_turns))

    def note_call(self, seconds: float, tokens: TokenRef) -> None:
        """Stores the duration and the token counts of a model call, for the next line of the trajectory."""
        self.model_call = {
            "model_seconds": round(seconds, 4),
            "tokens": tokens.model_dump(mode="json"),
        }

    async def start_diffs(self) -> None:
        """If changes are recorded, reads the workspace's files, to find the changes of the first step."""
        if self.format and self.recorder.path is not None and self.config.record_diffs:
            self.differ = Differ(self.world.box)
            with self.world.times.as_recording():
                await self.differ.start()

    async def record_step(
        self,
        reply: str,
        action: Action | None,
        step: Step | None,
        shown: str,
        *,
        reasoning: str | None = None,
        left: int | None = None,
        problem: str = "",
    ) -> None:
        """Writes one turn to the trajectory, with the changes that the turn made in the workspace.
        `shown` is the text that the model is shown next, `reasoning` what the model server returned apart
        from the reply (None: nothing), and `left` the number of remaining turns (None: no limit). Without an
        action, `action` and `step` are None and `problem` is `format` or `length`."""
        diff = await self._diff() if step is not None else None
        self.write_step(
            reply,
            None if action is None else action.text,
            step,
            shown,
            reasoning=reasoning,
            call=None if action is None else as_call(action).model_dump(mode="json"),
            left=left,
            problem=problem,
            diff=None if diff is None else diff.model_dump(mode="json"),
        )

    def write_step(
        self,
        reply: str,
        action: str | None,
        step: Step | None,
        shown: str,
        *,
        reasoning: str | None = None,
        **more: Any,
    ) -> None:
        """Writes one turn to the trajectory, as `record_step` does, but without changes in the workspace.
        `action` is the text of the reply's action. `more` are further fields of the trajectory's line."""
        self.recorder.write(
            "step",
            turn=self.counters.turns,
            reply=reply,
            reasoning=reasoning,
            action=action,
            observation=None if step is None else step.observation.text,
            shown=shown,
            code=None if step is None else step.code,
            timed_out=step is not None and step.timed_out,
            truncated=step is not None and step.observation.truncated,
            exec_seconds=0.0 if step is None else round(step.exec_seconds, 4),
            **self.model_call,
            **more,
        )
        self.model_call = {}
        self._note(ends=False)

    async def _diff(self) -> Diff | None:
        if self.differ is None or self.world.lost:
            return None
        try:
            with self.world.times.as_recording():
                async with self.world.box.attributing():
                    return await self.differ.diff()
        except BoxEndedError as error:
            self.world.lost = str(error)
            return None

    def record_validation(self, validation: Validation) -> None:
        """Writes the result of one grading as a line of the trajectory."""
        self.recorder.write(
            "validate",
            turn=self.counters.turns,
            score=validation.score,
            phi=validation.phi,
            anchor=validation.anchor,
            delta=validation.delta,
            stderr=validation.stderr,
            floor=validation.floor,
            problem=validation.problem,
            fault=validation.fault,
            metrics=validation.metrics,
            artefact=validation.digest,
            kept=validation.kept,
            seconds=round(validation.seconds, 4),
            remembered=validation.remembered,
            automatic=validation.automatic,
        )
        self.recorded += 1

    def end(self) -> None:
        """Stores why the episode's world ended it: the agent submitted, or its box is gone."""
        self.why_ended = "box" if self.world.lost else "submit"

    async def finish(self) -> None:
        """Grades the artefact at the end of the episode, and records the gradings.
        The artefact in the box is graded on the validation split, unless `submit` did so; then the artefact
        that counts is graded on the test split."""
        await self.world.finish()
        for validation in self.world.validations[self.recorded :]:
            self.record_validation(validation)
        counted = self.world.counted
        assert counted is not None  # there is at least the validate at the end
        self.ledger.settle(len(self.world.validations) - 1 - counted, self.rewards)

    def _note(self, *, ends: bool) -> None:
        nodes = 0 if self.trace is None else len(self.trace.nodes)
        self.ledger.note(nodes, self.rewards, ends=ends)

    @property
    def rewards(self) -> dict[str, float]:
        """The terms of the episode's reward so far, by name. The reward is their sum.
        Raises RewardTermError if a term of the user fails, and stores its text in `term_error`."""
        world = self.world
        facts = EpisodeFacts(
            scale=world.task,
            scores=tuple(v.score for v in world.validations),
            phis=tuple(v.phi for v in world.validations),
            deltas=tuple(v.delta for v in world.validations),
            turns=self.counters.turns,
            format_errors=self.counters.format_errors,
            seconds=world.agent_seconds,
            limit=self.config.episode_seconds(world.task),
            test_score=world.test_score,
            finished=world.finished,
        )
        try:
            return reward_terms(facts, self.config)
        except RewardTermError as error:
            self.term_error = str(error)
            raise

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of the episode (scores, counts and times) by name. Missing scores are left out."""
        world, counters = self.world, self.counters
        scored = [v for v in world.validations if v.score is not None]
        values = {
            "validates": float(len(world.validations)),
            "scored_validates": float(len(scored)),
            "refused_validates": float(world.refused_validates),
            "submitted": float(world.submitted),
            "valid": float(world.score is not None),
            "artefact_faults": float(sum(bool(v.fault) for v in world.validations)),
            "lost_boxes": float(bool(world.lost)),
            "turns": float(counters.turns),
            "format_errors": float(counters.format_errors),
            "cut_observations": float(counters.cut_observations),
            "cut_replies": float(counters.cut_replies),
            "context_ends": float(counters.context_ends),
            "refused_requests": float(counters.refused_requests),
            "seconds_agent": world.times.agent,
            "seconds_model": counters.model_seconds,
            "seconds_exec": world.times.exec,
            "seconds_grading": world.times.grading,
            "seconds_queue": world.times.queue,
            "seconds_box": world.times.box,
            "infrastructure_errors": float(self.failed),
            "seconds_recording": world.times.recording,
            "process_isolation": float(world.box.isolation == "process"),
        }
        last = world.validations[-1] if world.validations else None
        optional = {
            "score": world.score,
            "best_score": world.best,
            "test_score": world.test_score,
            "score_stderr": None if last is None else last.stderr,
            "test_stderr": world.test_stderr,
            "validation_test_gap": self._gap(),
        }
        return values | {name: value for name, value in optional.items() if value is not None}

    def _gap(self) -> float | None:
        """Returns φ of the artefact that counts less φ of its test score; None without both scores."""
        world = self.world
        score = None if world.counted is None else world.validations[world.counted].score
        if score is None or world.test_score is None:
            return None
        return phi_on(world.task, score) - phi_on(world.task, world.test_score)

    def summary(self) -> dict[str, Any]:
        """Returns the episode's scores, reward terms, metrics and payments, for the trace's `info["air"]`."""
        return {
            "episode": self.id,
            "task": self.world.task.id,
            "direction": self.world.task.direction,
            "baseline": self.world.task.baseline,
            "why_ended": self.why_ended,
            "isolation": self.world.box.isolation,
            "scale": self.world.task.reward_scale().model_dump(mode="json"),
            "phis": [v.phi for v in self.world.validations],
            "scores": [v.score for v in self.world.validations],
            "deltas": [v.delta for v in self.world.validations],
            "terms": self.rewards,
            "metrics": self.metrics,
            "paid": self.ledger.payments,
        }


def as_call(action: Action) -> Call:
    """Converts an action to the `Call` that trajectories store."""
    tool = action.tool
    use = None if tool is None else ToolUse(name=tool.name, args=tool.args, body=tool.body)
    return Call(script=action.script, tool=use, ending=action.ending)
