"""Compares a replayed episode with its record (the trajectory), step by step, and collects all differences.

The module `air.replay.ignored_differences` lists parts of texts that differ in every run (`RULES`) and fields
that are never compared (`NEVER`). The comparison continues after a difference.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path

from air.actions import Action, FormatError
from air.env.config import AirHarnessConfig
from air.env.observation_truncation import TokenCounter, counter_for
from air.replay.ignored_differences import Difference, Folders, texts, values
from air.replay.options import ReplayOptions
from air.replay.restore import RestoredEpisode, action_of, message_of
from air.trajectories import Step, Trajectory, Validation
from air.worlds import base as worlds
from air.worlds.research.observations import describe

_TURNS_LEFT_MARKS = ("turns left]", "steps left]")
_OLD_FOOTER = re.compile(r"^\[(\d+) steps left\] (?=\[open: .*\n\$\Z)", re.MULTILINE)
"""Matches the note `[N steps left]` on the remaining turns, which the action format `mlgym` appended to
observations in older records."""
_CUT_MARK = "tokens cut …]"


@dataclass
class ReplayResult:
    """The result of replaying one recorded episode: the numbers of compared steps and scores, the
    differences, and notes. `path` is the file of the record (trajectory), `task` is the task's id, and
    `seconds` is the duration of the replay."""

    path: Path
    task: str
    steps: int = 0
    """The number of compared steps."""
    scores: int = 0
    """The number of compared scores, on the validation and on the test split. In a world without a box (such
    as a game), only one score is compared: the sum of the steps' rewards."""
    equal_scores: int = 0
    """The number of compared scores that equal the recorded ones (within `ReplayOptions.tolerance`, in a
    research task)."""
    differences: list[Difference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Remarks about the replay that are not differences, for example that a text could not be compared."""
    seconds: float = 0.0

    @property
    def matched(self) -> bool:
        """Whether the comparison found no difference between the replay and the record."""
        return not self.differences

    def add_differences(self, *differences: Difference | None) -> bool:
        """Adds the given `differences` to the result; arguments that are None are ignored. Returns whether at
        least one difference was added."""
        real = [one for one in differences if one is not None]
        self.differences += real
        return bool(real)


class Comparison:
    """Repeats the actions of the recorded episode `episode` in its box (sandbox), and compares the results
    with the record. Adds the counts, differences and notes to `result`."""

    def __init__(
        self, episode: RestoredEpisode, options: ReplayOptions, result: ReplayResult
    ) -> None:
        self._episode, self._options, self._result = episode, options, result
        self._world, self._start = episode.world, episode.start
        self._then = Folders(episode.start.workspace, episode.start.temporary, episode.start.gpus)
        box = episode.world.box
        self._now = Folders(box.workspace, box.path("/tmp"), tuple(box.gpus))
        self._tokens = _counter(episode.harness, result)
        # Older records have no fields `problem` and `left`.
        self._old = episode.trajectory.version < 2

    async def run(self, skip: int) -> None:
        """Repeats and compares all steps after the first `skip` steps, which the caller has already repeated
        in the box. Then compares the gradings, the test score and the reward at the end of the episode. If
        `skip` is 0, also compares the prompt."""
        trajectory = self._episode.trajectory
        if not skip and self._start.prompt:
            left = _remaining_turns(self._start.prompt) if self._old else self._start.max_turns
            opening = self._episode.format.opening(self._world.standing(left))
            prompt = _with_new_footer(self._start.prompt)
            self._compare_text(0, "prompt", prompt, describe(self._world.task) + opening)
            self._compare_instructions()
        for number, step in enumerate(trajectory.steps[skip:], skip + 1):
            self._result.add_differences(values(number, "turn", step.turn, number))
            await self._step(step)
            self._result.steps += 1
        if trajectory.end is None:
            self._result.notes.append("the record has no end: compared up to its last step")
        elif not trajectory.end.ok:
            self._result.notes.append(f"the episode ended by a failure: {trajectory.end.error}")
        else:
            await self._finish(trajectory)

    def _compare_instructions(self) -> None:
        """Compares the end of the recorded system prompt with the instructions that this version of air would
        put there."""
        text = self._world.instructions(self._episode.format)
        self._compare_text(0, "system prompt's end", self._start.system[-len(text) :], text)

    async def _step(self, step: Step) -> None:
        action = action_of(step, self._episode.format, self._episode.trajectory.path)
        if action is None:
            self._check_malformed_reply(step)
            self._compare_gradings(step, [])
            return
        self._compare_parsed_action(step, action)
        result = await self._world.step(action)
        old = step.observation
        if old is not None:
            self._compare_text(step.turn, "observation", old, result.observation.text)
        self._compare_shown_text(step, result.observation.text)
        self._result.add_differences(values(step.turn, "exit code", step.code, result.code))
        if step.observation is not None:
            cut = result.observation.truncated
            self._result.add_differences(
                values(step.turn, "timed out", step.timed_out, result.timed_out),
                values(step.turn, "truncated", step.truncated, cut),
            )
        self._compare_gradings(step, [] if result.validation is None else [result.validation])

    def _compare_gradings(self, step: Step, current: list[worlds.Validation]) -> None:
        """Compares the recorded gradings of a step with `current`, the gradings in the replay.

        They are compared in order; a different number of gradings also counts as a difference. In the record
        of an interrupted episode, the last step's grading may be missing; this adds only a note.
        """
        trajectory = self._episode.trajectory
        recorded = trajectory.validations_of(step)
        broke_off = trajectory.end is None or not trajectory.end.ok
        if broke_off and step is trajectory.steps[-1] and len(recorded) < len(current):
            self._result.notes.append(f"step {step.turn}: its grading was not recorded")
        else:
            self._result.add_differences(values(step.turn, "gradings", len(recorded), len(current)))
        for old, new in zip(recorded, current, strict=False):
            self._compare_grading(step.turn, old, new)

    def _check_malformed_reply(self, step: Step) -> None:
        """Checks that a recorded reply without a valid action still is rejected, with the same error message.
        A reply that was cut off by the token limit is checked by `_check_cut_off_reply`."""
        self._result.add_differences(
            values(step.turn, "observation", step.observation, None),
            values(step.turn, "exit code", step.code, None),
            values(step.turn, "timed out", step.timed_out, False),
            values(step.turn, "truncated", step.truncated, False),
        )
        if step.problem == "length" or (self._old and not step.shown):
            self._check_cut_off_reply(step)
            return
        self._compare_problem(step, "format")
        try:
            again = self._then.named(self._episode.format.read(message_of(step)).text)
        except FormatError as error:
            again = self._then.named(str(error)) + self._now.named(self._footer(step))
        shown = _with_new_footer(step.shown)
        self._result.add_differences(
            texts(step.turn, "shown", (shown, self._then), (again, Folders()), exact=True)
        )

    def _check_cut_off_reply(self, step: Step) -> None:
        """Checks the record of a step whose reply was cut off by the token limit: it must be the last step,
        and no text may have been shown to the model after it."""
        if step is not self._episode.trajectory.steps[-1]:
            self._result.add_differences(
                Difference(step.turn, "problem", repr("length"), "the episode goes on")
            )
        self._result.add_differences(values(step.turn, "shown", step.shown, ""))

    def _compare_problem(self, step: Step, problem: str) -> None:
        """Compares `problem`, the reason why the step's reply is not a valid action (empty if it is one),
        with the recorded reason. Does nothing for trajectories of version 1, which do not record the
        reason."""
        if not self._old:
            self._result.add_differences(values(step.turn, "problem", step.problem, problem))

    def _compare_parsed_action(self, step: Step, action: Action) -> None:
        """Parses the recorded reply again. Adds a difference unless the text of the resulting action equals
        both the text of `action` and the recorded text of the action exactly."""
        self._compare_problem(step, "")
        try:
            again = self._episode.format.read(message_of(step))
        except FormatError as error:
            self._result.add_differences(
                Difference(step.turn, "action", repr(step.action), str(error))
            )
            return
        for text in (action.text, step.action or ""):
            difference = texts(
                step.turn, "action", (text, self._then), (again.text, self._then), exact=True
            )
            if self._result.add_differences(difference):
                return

    def _compare_shown_text(self, step: Step, observation: str) -> None:
        """Compares the recorded text that the model read after a step with the text that it would read now.
        This text is the observation (shortened if it is long), followed by the footer of the action format,
        such as the number of turns left."""
        if self._tokens is not None:
            most = self._episode.harness.max_observation_tokens
            text, _ = self._tokens.cap(observation, most)
        elif _CUT_MARK in step.shown:
            self._result.notes.append(
                f"step {step.turn}: what was shown was cut, and is not compared"
            )
            return
        else:
            text = observation
        shown = _with_new_footer(step.shown)
        self._compare_text(step.turn, "shown", shown, text + self._footer(step))

    def _footer(self, step: Step) -> str:
        left = _remaining_turns(step.shown) if self._old else step.left
        return self._episode.format.footer(self._world.standing(left))

    async def _finish(self, trajectory: Trajectory) -> None:
        """Ends the replayed episode. Compares its automatic gradings (for which the agent did not ask), its
        test score and its reward with the record."""
        await self._world.finish()
        turn = trajectory.steps[-1].turn if trajectory.steps else 0
        recorded = [one for one in trajectory.validations if one.automatic]
        current = [one for one in self._world.validations if one.automatic]
        self._result.add_differences(
            values(turn, "gradings at the end", len(recorded), len(current))
        )
        for old, new in zip(recorded, current, strict=False):
            self._compare_grading(turn, old, new)
        assert trajectory.end is not None
        test = trajectory.end.test
        old_score = test.score if test else trajectory.end.metrics.get("test_score")
        self._compare_score(turn, "test score", old_score, self._world.test_score)
        if test is not None and old_score == self._world.test_score:
            error = self._world.test_stderr
            self._result.add_differences(values(turn, "test standard error", test.stderr, error))
        self._compare_reward(turn, trajectory)

    def _compare_reward(self, turn: int, trajectory: Trajectory) -> None:
        """Checks that the recorded reward is the sum of its recorded terms.

        If all validation scores of the replay equal the recorded ones, also compares the term `delta` (the
        reward for changes of the score between gradings) with the record. The other terms are not computed
        here.
        """
        end = trajectory.end
        assert end is not None
        if end.terms is None or end.reward is None:
            return
        self._compare_numbers(
            turn, "reward, the sum of its terms", end.reward, sum(end.terms.values())
        )
        then = [one.score for one in trajectory.validations]
        if "delta" in end.terms and then == [one.score for one in self._world.validations]:
            self._compare_numbers(turn, "delta in all", end.terms["delta"], self._world.reward)

    def _compare_numbers(self, turn: int, what: str, old: float, new: float) -> None:
        """Adds a difference named `what`, unless `old` and `new` are equal within a relative or absolute
        error of 1e-9."""
        if not math.isclose(old, new, rel_tol=1e-9, abs_tol=1e-9):
            self._result.add_differences(values(turn, what, old, new))

    def _compare_grading(self, turn: int, old: Validation, new: worlds.Validation) -> None:
        self._compare_score(turn, "score", old.score, new.score)
        if (old.score is None) == (new.score is None):
            self._compare_text(turn, "problem with the artefact", old.problem, new.problem)
        if old.score is not None and old.score == new.score:
            self._result.add_differences(
                values(turn, "delta", old.delta, new.delta),
                values(turn, "standard error", old.stderr, new.stderr),
                values(turn, "phi", old.phi, new.phi),
                values(turn, "floor", old.floor, new.floor)
                if "floor" in old.model_fields_set
                else None,
                values(turn, "metrics", dict(old.metrics), new.metrics),
                None if old.anchor is None else values(turn, "anchor", old.anchor, new.anchor),
            )
        if old.artefact and new.digest and old.artefact != new.digest:
            self._result.notes.append(f"step {turn}: the artefact's bytes differ")

    def _compare_score(self, turn: int, what: str, old: float | None, new: float | None) -> None:
        self._result.scores += 1
        close = old == new
        if old is not None and new is not None:
            close = abs(old - new) <= self._options.tolerance
        self._result.equal_scores += close
        if not close:
            self._result.add_differences(values(turn, what, old, new))

    def _compare_text(self, turn: int, what: str, old: str, new: str) -> bool:
        return self._result.add_differences(
            texts(turn, what, (old, self._then), (new, self._now), exact=self._options.exact)
        )


def _counter(harness: AirHarnessConfig, result: ReplayResult) -> TokenCounter | None:
    """Returns the token counter with which the harness (the part of air that talks to the model) shortened
    the recorded observations. Returns None for a trajectory of version 1, which does not record the maximum
    length of observations. Also returns None, and adds a note to `result`, if the counter's tokenizer is not
    available."""
    if "max_observation_tokens" not in harness.model_fields_set:  # version 1 does not record it
        return None
    name = harness.tokenizer
    try:
        return counter_for(name)
    except (ImportError, OSError, ValueError) as error:
        result.notes.append(f"cut observations are not compared: tokenizer {name}: {error}"[:200])
        return None


def _with_new_footer(text: str) -> str:
    """Returns a recorded text for the model with `N turns left` in place of `N steps left` in its last lines,
    because the action format `mlgym` once wrote the latter."""
    return _OLD_FOOTER.sub(r"[\1 turns left] ", text)


def _remaining_turns(text: str) -> int | None:
    """Returns the number of remaining turns that a text for the model states, or None if the text does not
    state it.

    This is needed for older trajectories, which have no field for this number.
    """
    for word in reversed(text.split("[")):
        if any(mark in word for mark in _TURNS_LEFT_MARKS):
            number = word.split(" ", 1)[0]
            return int(number) if number.isdecimal() else None
    return None
