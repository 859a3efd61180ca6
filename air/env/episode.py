"""The state of one running episode: its world, its recorder and its counters.

verifiers shares its task and harness objects between episodes, so the state is an attribute of the episode's
runtime (`air.env.runtimes`), which no other episode uses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

from air.actions import Action, ActionFormat, Standing
from air.env.config import ResearchEnvConfig
from air.env.credit import Ledger
from air.trajectories import Call, Recorder, TokenRef, ToolUse
from air.worlds.base import Step, World

EARLY_SECONDS = 0.1
"""The number of seconds by which air ends an episode before verifiers' deadline. At the deadline itself,
verifiers 0.3 would let the episode fail without a grade."""
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
class Episode(ABC):
    """The state of one running episode: its world, its record, its counters and its reward so far.
    There is a subclass for research tasks, and one for all other worlds. `vf.Episode` is another class, with
    which verifiers describes the same episode."""

    id: str
    world: World[Action]
    recorder: Recorder
    config: ResearchEnvConfig
    counters: Counters = field(default_factory=Counters)
    format: ActionFormat | None = None
    """The action format; None if a program in the box plays the agent, instead of air's own harness."""
    format_name: str = ""
    """The name of the action format, as in the settings; empty without one."""
    malformed_in_a_row: int = 0
    """The number of consecutive replies, up to and including the latest, that were not an action."""
    trace: Any = None
    """The verifiers trace of the episode; None before the task is set up."""
    ledger: Ledger = field(default_factory=Ledger)
    """The parts of the reward, each with the position in the trace at which it arose."""
    failed: bool = False
    """Whether an infrastructure failure ended the episode."""
    term_error: str = ""
    """The error with which a reward term of the user failed, so that the run must stop; else empty."""
    model_call: dict[str, Any] = field(default_factory=dict)
    """The duration and token counts of the last model call, for the line of the next step."""
    why_ended: str = ""
    """Why the episode ended: `submit`, `done` (its world ended it), `turns`, `context`, `length`, `format`,
    `killed`, `history` (a program in the box changed its conversation with the model), `box` (the agent's
    commands ended their box), or the name of verifiers' stop condition. Empty while the episode runs."""

    @property
    @abstractmethod
    def task_id(self) -> str:
        """The id of the episode's task."""

    @property
    @abstractmethod
    def isolation(self) -> str:
        """How the episode's box isolates the agent: `container` or `process`; `none` without a box."""

    @property
    @abstractmethod
    def seconds(self) -> float:
        """The time limit of the episode, in seconds."""

    @property
    @abstractmethod
    def max_turns(self) -> int | None:
        """The largest number of turns of the episode; None if turns are not limited."""

    @property
    @abstractmethod
    def rewards(self) -> dict[str, float]:
        """The terms of the episode's reward so far, by name. The reward is their sum."""

    @property
    @abstractmethod
    def metrics(self) -> dict[str, float]:
        """The metrics of the episode (scores, counts and times) by name."""

    @abstractmethod
    def standing(self, left: int | None) -> Standing:
        """Returns the agent's situation; `left` is the number of remaining turns (None: not limited)."""

    @abstractmethod
    async def reset(self, seed: int) -> None:
        """Resets the world, before the first line of the trajectory is written."""

    async def begin(self) -> None:  # noqa: B027 — most kinds of episode need nothing here
        """Prepares the first turn, after the first line of the trajectory is written."""

    @abstractmethod
    def instructions(self) -> str:
        """Returns the part of the system prompt that teaches the model the action format."""

    @abstractmethod
    def started(self) -> dict[str, Any]:
        """Returns the fields of the trajectory's first line that only this kind of episode has."""

    @abstractmethod
    def ended(self) -> dict[str, Any]:
        """Returns the fields of the trajectory's last line that only this kind of episode has."""

    @abstractmethod
    def end(self) -> None:
        """Stores the reason why the world ended the episode."""

    @abstractmethod
    async def finish(self) -> None:
        """Ends the episode, so that its rewards and metrics are settled."""

    @abstractmethod
    async def abandon(self) -> None:
        """Stops the work that the world still does, such as a grading, after `finish` or instead of it."""

    @abstractmethod
    def summary(self) -> dict[str, Any]:
        """Returns the episode's rewards, metrics and payments, for the trace's `info["air"]`."""

    def system(self, text: str | None) -> str:
        """Returns the system prompt: `text`, from the settings, then the action format's instructions."""
        instructions = "" if self.format is None else self.instructions()
        return "\n\n".join(part for part in (text, instructions) if part)

    def prompt(self, text: str) -> str:
        """Returns the first user prompt: `text`, the task's, then the action format's opening text."""
        if self.format is None:
            return text
        return text + self.format.opening(self.standing(self.max_turns))

    def note_call(self, seconds: float, tokens: TokenRef) -> None:
        """Stores the duration and the token counts of a model call, for the next line of the trajectory."""
        self.model_call = {
            "model_seconds": round(seconds, 4),
            "tokens": tokens.model_dump(mode="json"),
        }

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
        **more: Any,
    ) -> None:
        """Writes one turn to the trajectory.
        `shown` is the text that the model is shown next, `reasoning` what the model server returned apart
        from the reply (None: nothing), and `left` the number of remaining turns (None: no limit). Without an
        action, `action` and `step` are None and `problem` is `format` or `length`. `more` are further fields
        of the trajectory's line."""
        self.write_step(
            reply,
            None if action is None else action.text,
            step,
            shown,
            reasoning=reasoning,
            call=None if action is None else as_call(action).model_dump(mode="json"),
            left=left,
            problem=problem,
            **more,
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
        """Writes one turn to the trajectory, as `record_step` does, but only what every harness knows.
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

    def _note(self, *, ends: bool) -> None:
        nodes = 0 if self.trace is None else len(self.trace.nodes)
        self.ledger.note(nodes, self.rewards, ends=ends)

    def counts(self) -> dict[str, float]:
        """Returns the metrics that every kind of episode has, by name."""
        counters = self.counters
        return {
            "turns": float(counters.turns),
            "format_errors": float(counters.format_errors),
            "cut_observations": float(counters.cut_observations),
            "cut_replies": float(counters.cut_replies),
            "context_ends": float(counters.context_ends),
            "seconds_model": counters.model_seconds,
            "infrastructure_errors": float(self.failed),
        }


def as_call(action: Action) -> Call:
    """Converts an action to the `Call` that trajectories store."""
    tool = action.tool
    use = None
    if tool is not None:
        use = ToolUse(name=tool.name, args=tool.args, body=tool.body, arguments=tool.arguments)
    return Call(script=action.script, tool=use, ending=action.ending, answer=action.answer)
