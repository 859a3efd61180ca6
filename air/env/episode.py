"""Defines `Episode`, the state of one running episode, in which a model as the agent works on one task: its
world (what the agent acts in), the recorder of its trajectory (air's record of it), its counters and reward.

The library `verifiers`, which runs episodes, shares its task and harness objects between episodes. So air
stores this state as an attribute of the episode's runtime (`verifiers`' name for the place where commands
run, see `air.env.runtimes`), which is not shared.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from air.actions import Action, ActionFormat, Standing
from air.env.config import ResearchEnvConfig
from air.env.credit import Ledger
from air.trajectories import Call, Recorder, TokenRef, ToolUse
from air.worlds.base import Step, World

EARLY_SECONDS = 0.1
"""air ends an episode this number of seconds before the deadline of the library `verifiers`. At the deadline,
`verifiers` 0.3 would end the episode with an error, and without a grade."""
OVERLONG = ("context length", "maximum context", "max_model_len", "too long", "overlong")
"""Texts that identify the error of a too long prompt: the error message of the model server, in lower case,
contains at least one of them."""


@dataclass
class Counters:
    """The counts of events in one episode, such as turns and format errors, and the total seconds of its
    model calls."""

    turns: int = 0
    format_errors: int = 0
    cut_observations: int = 0
    cut_replies: int = 0
    context_ends: int = 0
    refused_requests: int = 0
    """The number of requests from a program in the box that were refused, because they did not continue the
    program's conversation with the model."""
    model_seconds: float = 0.0


@dataclass
class Episode(ABC):
    """The state of one running episode: its world (what the agent acts in), the recorder of its trajectory
    (air's record of it), its counters, and its reward so far. There is a subclass for research tasks, and one
    for all other worlds. Not to be confused with `vf.Episode`, `verifiers`' own class for an episode."""

    id: str
    world: World[Action]
    recorder: Recorder
    config: ResearchEnvConfig
    counters: Counters = field(default_factory=Counters)
    format: ActionFormat | None = None
    """The action format, which is the syntax in which the model writes actions. None if a program in the box
    plays the agent, and not air's own harness (agent loop)."""
    format_name: str = ""
    """The name of the action format (the syntax in which the model writes actions) in the settings; empty if
    `format` is None."""
    malformed_in_a_row: int = 0
    """The number of consecutive format errors, up to and including the latest reply."""
    trace: Any = None
    """The episode's trace, which is the record of the episode that `verifiers` keeps. None until `verifiers`
    has set up the task."""
    ledger: Ledger = field(default_factory=Ledger)
    """The rewards so far, each with the position in the trace (`verifiers`' record) at which it arose."""
    exec_seconds: list[dict[str, Any]] = field(default_factory=list)
    """The execution times of the actions so far, for the trace's `info["air"]["exec_seconds"]`. Each is a
    dict: `node` is the index of the model's reply among the trace's nodes (messages), and `seconds` the time
    in seconds. An action that ran nothing has no entry."""
    failed: bool = False
    """Whether an infrastructure error (a failure that is not the agent's) ended the episode."""
    failed_action: str | None = None
    """If an infrastructure error ended the episode: the text of the action that was being carried out, or
    `[end of the episode]` if the error occurred in the last gradings. None if there was no error, or if it
    occurred elsewhere, for example in a model call."""
    user_error: str = ""
    """The message of an error that must stop the run: code of the user failed (UserCodeError), or the task
    itself is broken (BrokenTaskError). Empty if there was none."""
    model_call: dict[str, Any] = field(default_factory=dict)
    """The duration and the token counts of the latest model call, for the next line of the trajectory (the
    file that records the episode)."""
    why_ended: str = ""
    """The reason why the episode ended: `submit`, `done` (its world ended it), `turns`, `context` (the prompt
    became too long), `length` (a reply was cut), `format` (too many format errors), `killed` (a program in
    the box was killed), `history` (a program in the box changed its conversation with the model), `box` (the
    agent's commands ended their box), or the name of a stop condition of `verifiers`. Empty while the episode
    runs."""

    @property
    @abstractmethod
    def task_id(self) -> str:
        """The id of the episode's task."""

    @property
    @abstractmethod
    def isolation(self) -> str:
        """The kind of isolation of the agent's box: `container` or `process` (a plain process, which isolates
        less); `none` if the episode has no box."""

    @property
    @abstractmethod
    def seconds(self) -> float:
        """The time limit of the episode, in seconds."""

    @property
    @abstractmethod
    def max_turns(self) -> int | None:
        """The maximum number of turns in the episode; None if turns are not limited."""

    @property
    @abstractmethod
    def rewards(self) -> dict[str, float]:
        """The reward terms of the episode so far, by name. The reward is their sum."""

    @property
    @abstractmethod
    def metrics(self) -> dict[str, float]:
        """The metrics of the episode (scores, counts and times) by name."""

    @abstractmethod
    def standing(self, left: int | None) -> Standing:
        """Returns what the instructions for the agent may say about its situation, such as the remaining
        turns. `left` is the number of turns that remain; None means that turns are not limited."""

    @abstractmethod
    async def reset(self, seed: int) -> None:
        """Starts the world (what the agent acts in) with the seed `seed`. Called before anything is written
        to the trajectory, air's record of the episode."""

    async def begin(self) -> None:  # noqa: B027 — most kinds of episode need nothing here
        """Called before the first turn, after `reset`, when the start of the episode has been recorded. Does
        nothing here. The subclass for research tasks reads the workspace's files, to find later changes."""

    @abstractmethod
    def instructions(self) -> str:
        """Returns the part of the system prompt that explains to the model in which format it must write its
        actions."""

    @abstractmethod
    def started(self) -> dict[str, Any]:
        """Returns fields, as a dict by name, for the line that air writes at the start of an episode into its
        trajectory (the file that records the episode): those that only this kind of episode has."""

    @abstractmethod
    def ended(self) -> dict[str, Any]:
        """Returns fields, as a dict by name, for the line that air writes at the end of an episode into its
        trajectory (the file that records the episode): those that only this kind of episode has."""

    @abstractmethod
    def end(self) -> None:
        """Sets `why_ended`, the reason of the end. Called after the world (what the agent acts in) has ended
        the episode."""

    @abstractmethod
    async def finish(self) -> None:
        """Ends the episode and computes its final rewards and metrics, after a last grading if the task has
        one."""

    @abstractmethod
    async def abandon(self) -> None:
        """Stops everything that the world (what the agent acts in) still does, such as a running grading.
        Called at the end of every episode: after `finish`, or without it if an infrastructure error ended the
        episode."""

    @abstractmethod
    def summary(self) -> dict[str, Any]:
        """Returns a summary of the ended episode as a dict, which the trace (`verifiers`' record) stores as
        `info["air"]`: its rewards, metrics and payments (parts of the reward, with their positions in the
        conversation)."""

    def system(self, text: str | None) -> str:
        """Returns the system prompt: `text` from the settings, then the instructions of the action format
        (the syntax in which the model writes actions)."""
        instructions = "" if self.format is None else self.instructions()
        return "\n\n".join(part for part in (text, instructions) if part)

    def prompt(self, text: str) -> str:
        """Returns the first user prompt: `text` from the task, then the opening text of the action format
        (the syntax in which the model writes actions)."""
        if self.format is None:
            return text
        return text + self.format.opening(self.standing(self.max_turns))

    def messages(self, system: str | None, prompt: str) -> list[dict[str, Any]]:
        """Returns the chat messages before the model's first reply. `system` is the system prompt from the
        settings, and `prompt` is the task's text."""
        return [
            {"role": "system", "content": self.system(system)},
            {"role": "user", "content": self.prompt(prompt)},
        ]

    @contextmanager
    def performing(self, action: str) -> Iterator[None]:
        """Context manager for a `with` block that carries out one action of the agent; `action` is the
        action's text. If the block raises an exception, stores the text in `failed_action`, so that a report
        of the failed episode can name the action, and raises the exception again."""
        try:
            yield
        except Exception:  # the report names the action, whatever went wrong
            self.failed_action = action
            raise

    def note_call(self, seconds: float, tokens: TokenRef) -> None:
        """Stores the duration (`seconds`) and the token counts (`tokens`) of a model call, for the next line
        of the trajectory (the file that records the episode)."""
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
        """Writes one turn to the trajectory, air's record of the episode.

        `reply` is the model's text, and `step` the world's answer to its `action`. `shown` is the text that
        the model gets after its reply. `reasoning` is what the model server returned as reasoning, apart from
        the reply (None: nothing). `left` is the number of turns that remain (None: no limit). If the reply
        has no action, `action` and `step` are None, and `problem` is `format` (malformed) or `length` (cut).
        `more` contains further fields of the trajectory's line.
        """
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
        """Writes one turn to the trajectory, air's record of the episode, also if a program in the box plays
        the agent. `reply` is the model's text, `action` the text of its action, `step` the world's answer,
        and `shown` the text that the model then gets. `reasoning` is what the model server returned as
        reasoning (None: nothing). `more` contains further fields of the trajectory's line."""
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
        if step is not None and 0 < step.exec_seconds < math.inf:
            self._note_duration(step.exec_seconds)
        self._note(ends=False)

    def _note_duration(self, seconds: float) -> None:
        """Stores `seconds`, the execution time of the latest action, in `exec_seconds`, with the position of
        the model's last reply in the trace (`verifiers`' record of the episode)."""
        replies = [] if self.trace is None else [n.sampled for n in self.trace.nodes]
        if any(replies):
            last = max(index for index, sampled in enumerate(replies) if sampled)
            self.exec_seconds.append({"node": last, "seconds": round(seconds, 4)})

    def _note(self, *, ends: bool) -> None:
        nodes = 0 if self.trace is None else len(self.trace.nodes)
        self.ledger.note(nodes, self.rewards, ends=ends)

    def counts(self) -> dict[str, float]:
        """Returns the metrics that all kinds of episodes have (counts, and the seconds of model calls), by
        name."""
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
    """Converts an action to a `Call`, the form in which trajectories (air's records of episodes) store it."""
    tool = action.tool
    use = None
    if tool is not None:
        use = ToolUse(name=tool.name, args=tool.args, body=tool.body, arguments=tool.arguments)
    return Call(script=action.script, tool=use, ending=action.ending, answer=action.answer)
