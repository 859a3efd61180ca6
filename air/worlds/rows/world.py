"""A world (an environment for an agent) in which each episode asks the question in one row of a dataset. The
agent may call tools, and its answer is graded.

An answer ends the episode, and so does a tool call whose result has the status `finish`. Tools may read only
the question and the fields that the setting `public` names. All other fields, such as the reference answer,
are visible only to the checker: they are in no prompt, observation, fact or record.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from air.actions.base import Action, Message, ToolCall
from air.errors import ConfigError
from air.rewards.answers import Checker, Verdict
from air.rewards.answers.texts import with_letters
from air.sandbox.contract.box import Box
from air.tools import OpenTools, ToolContext, ToolSet
from air.worlds.base import Observation, Run, Step
from air.worlds.rows.reading import LONGEST_QUESTION, Row
from air.worlds.rows.splits import Deck

FACTS: Mapping[str, str] = {
    "success": "1 if the answer's reward is at least `success_at`, else 0",
    "answered": "1 if the episode ended with an answer that was checked, else 0",
    "tool_calls": "number of calls of the world's tools",
    "tool_errors": "number of calls with an error, also of tools that do not exist",
}
"""The facts (numbers about an episode, see `World.facts`) of every task `rows:PATH`: each fact's meaning, by
its name. There is an additional fact for each tool and for each reported metric of the checker."""
CHECK_SECONDS = 120.0
"""The time limit, in seconds, of a script that an answer checker runs in a fresh box (isolated place)."""
_SCRIPT = "check.sh"
_ENDED = Step(Observation("The episode has ended."), done=True)
_MARKS = ("<tool_call>", "<answer>", "<search>", "<action>", "```", "Action:", "Answer:")
"""The strings that mark the beginning of an action in a model's reply."""


def calls_of(tool: str) -> str:
    """Returns `calls_NAME` for the tool NAME: the name of the fact (a number about an episode) that counts
    the tool's calls."""
    return f"calls_{tool}"


def metric_of(metric: str) -> str:
    """Returns `answer_NAME` for the metric NAME of the answer checker: the name of the fact (a number about
    an episode) with the metric's value."""
    return f"answer_{metric}"


@dataclass(frozen=True)
class RowsTask:
    """The data that all episodes of a task share: rows, tools, checker and settings."""

    deck: Deck
    tools: ToolSet
    checker: Checker
    public: Sequence[str] = ()
    """The names of the fields that tools may read."""
    metrics: Sequence[str] = ()
    """The names of the checker's metrics that become facts (numbers about an episode)."""
    success_at: float = 1.0
    """The minimum reward for an answer that counts as a success: the episode then has the value 1 of
    `success`, a number that is recorded about every episode."""
    options: str = ""
    """The name of the field with the options of a multiple-choice question; empty if there are none."""

    def question(self, row: Row) -> str:
        """Returns the question as the agent sees it: with the options, if there are any. Raises ConfigError
        if the options are malformed or the text is too long."""
        if not self.options:
            return row.question
        try:
            text = f"{row.question}\n\n{with_letters(row.field(self.options))}"
        except ConfigError as error:
            raise ConfigError(str(error), where=row.where) from None
        if len(text) > LONGEST_QUESTION:
            raise ConfigError(
                f"the question with its options has more than {LONGEST_QUESTION} characters",
                where=row.where,
                remedy="shorten or remove the row",
            )
        return text


@dataclass
class Episode:
    """The state of an episode, in which the question in `row` is asked: the opened tools, counters of the
    agent's calls, and the result of grading."""

    row: Row
    tools: OpenTools
    turns: int = 0
    calls: dict[str, int] = field(default_factory=dict)
    """The number of calls of each existing tool. Calls of other tools are counted only in `errors`."""
    errors: int = 0
    uses: int = 0
    """The number of calls with the status `success`, which is passed to the checker as `tool_calls`. Failed
    calls and the call that ends the episode are not counted, because some checkers reward the use of
    tools."""
    thoughts: list[str] = field(default_factory=list)
    verdict: Verdict | None = None
    """The checker's result; None before the answer was graded."""


class RowsWorld:
    """A world (an environment for an agent) in which each episode asks the question in one row of the dataset
    of `task`. `box` is the agent's box, the isolated place in which tools run (None if no tool needs it).
    `run` runs a checker's script in a fresh box (None if the checker runs no script)."""

    def __init__(self, task: RowsTask, box: Box | None = None, run: Run | None = None) -> None:
        self._task = task
        self._box = box
        self._run = run
        self._episode: Episode | None = None
        self._ended = False

    async def reset(self, seed: int) -> Observation:
        task = self._task
        if self._episode is not None:
            await self._episode.tools.close()
        row = task.deck.row(seed)
        question = task.question(row)
        fields = {"question": question, **{name: row.field(name) for name in task.public}}
        opened = await task.tools.open(ToolContext(seed=seed, fields=fields, box=self._box))
        self._episode, self._ended = Episode(row, opened), False
        return Observation(question)

    async def step(self, action: Action) -> Step:
        if self._episode is None:
            raise RuntimeError("step before reset")
        if self._ended:
            return _ENDED
        self._episode.turns += 1
        self._episode.thoughts.append(thought_of(action.message))
        if action.tool is not None:
            return await self._call(self._episode, action, action.tool)
        return await self._check(self._episode, action, action.answer)

    async def _call(self, episode: Episode, action: Action, call: ToolCall) -> Step:
        result = await episode.tools.call(call.name, dict(call.arguments or {}))
        if call.name in self._task.tools.tools:
            episode.calls[call.name] = episode.calls.get(call.name, 0) + 1
        episode.errors += result.status == "error"
        episode.uses += result.status == "success"
        if result.status == "finish" or action.ending == "submit":
            prediction = result.info.get("prediction", result.observation)
            return await self._check(episode, action, str(prediction))
        return Step(Observation(result.observation))

    async def _check(self, episode: Episode, action: Action, prediction: str) -> Step:
        """Grades the final answer, `prediction`, and ends the episode. If a tool computes the final answer
        itself (`Tool.outcome`), the tool's answer is graded instead. Raises ConfigError if the checker raises
        a ConfigError."""
        self._ended = True
        outcome = episode.tools.outcome()
        prediction = prediction if outcome is None else outcome
        given: dict[str, Any] = {
            "question": episode.row.question,
            "prediction": prediction,
            "response": _reply(action),
            "tool_calls": episode.uses,
            "turns": episode.turns,
            "thoughts": list(episode.thoughts),
        }
        if self._run is not None:
            given["run"] = functools.partial(_in_fresh_box, self._run)
        try:
            episode.verdict = await self._task.checker(**{**episode.row.fields, **given})
        except ConfigError as error:
            raise ConfigError(str(error), where=episode.row.where) from error
        return Step(Observation(""), done=True, reward=episode.verdict.reward)

    def facts(self) -> dict[str, float]:
        episode = self._episode
        verdict = episode.verdict if episode else None
        calls = episode.calls if episode else {}
        success = verdict is not None and verdict.reward >= self._task.success_at
        metrics = verdict.metrics if verdict else {}
        return {
            "success": float(success),
            "answered": float(verdict is not None),
            "tool_calls": float(sum(calls.values())),
            "tool_errors": float(episode.errors if episode else 0),
            **{calls_of(name): float(calls.get(name, 0)) for name in self._task.tools.tools},
            **{metric_of(name): float(metrics.get(name, 0.0)) for name in self._task.metrics},
        }

    async def close(self) -> dict[str, Any]:
        self._ended = True
        if self._episode is None:
            return {}
        await self._episode.tools.close()
        return self.facts()


async def _in_fresh_box(run: Run, script: str) -> tuple[int, str, str]:
    """Runs the shell script of an answer checker in a fresh box, an isolated place in which no agent has
    acted. Returns the exit status, standard output and standard error."""
    files = {_SCRIPT: script.encode("utf-8", "replace")}
    result = await run(["sh", _SCRIPT], seconds=CHECK_SECONDS, files=files)
    stdout, stderr = (text.decode("utf-8", "replace") for text in (result.stdout, result.stderr))
    return result.code, stdout, stderr


def thought_of(message: Message | None) -> str:
    """Returns the model's thought in a message, as text: the reasoning that the model server returned
    separately, or else the text before `</think>`, or else the text before the action, which begins at the
    first of `_MARKS` in the message. Returns an empty string if the message has none of these, or is None."""
    if message is None:
        return ""
    if message.reasoning.strip():
        return message.reasoning.strip()
    before, closed, _ = message.text.rpartition("</think>")
    if closed:
        return before.removeprefix("<think>").strip()
    places = [place for mark in _MARKS if (place := message.text.find(mark)) >= 0]
    return message.text[: min(places)].removeprefix("Thought:").strip() if places else ""


def _reply(action: Action) -> str:
    """Returns the whole text of the model's reply from which the action was parsed. If the server returned
    reasoning separately, it precedes the text in `<think>` tags."""
    if action.message is None:
        return action.text
    reasoning, text = action.message.reasoning, action.message.text
    return f"<think>{reasoning}</think>\n{text}" if reasoning else text
