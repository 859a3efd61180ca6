"""Playing a recorded episode again: every action, in a fresh box, without a model.

What comes back is compared with what was recorded: each observation and what the model would have been
shown of it, exit codes, and every score, which is measured anew (no grade of an earlier run is remembered).
What two runs can never share is declared in `air.trajectories.compare.RULES`; anything else that differs is
reported, the first of it with both sides. A replay goes on after a difference, so all scores are compared.

Nothing needs a network, unless the task itself opens one.
"""

from __future__ import annotations

import asyncio
import math
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from air import tasks
from air.env.played import Play, ReplayOptions, action_of, begin, load_task
from air.env.tokens import TokenCounter, counter_for
from air.errors import ConfigError
from air.formats import Action, FormatError
from air.sandbox.base import Box
from air.sandbox.leases import GpuPool
from air.sandbox.pool import Pool
from air.tasks.grading import Grader
from air.tasks.spec import Provider, TaskSpec
from air.trajectories import Start, Step, Trajectory, Validation
from air.trajectories.compare import Difference, Folders, texts, values
from air.worlds import base as worlds
from air.worlds.research import describe

_PROVIDERS: dict[str, Provider] = {"container": "docker", "process": "process"}
_LEFT = ("turns left]", "steps left]")
_CUT = "tokens cut …]"


@dataclass
class Replayed:
    """What came of one replay."""

    path: Path
    task: str
    steps: int = 0
    """Steps compared."""
    scores: int = 0
    """Scores compared, that of the test split among them."""
    equal_scores: int = 0
    differences: list[Difference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What is no difference, but must be known."""
    seconds: float = 0.0

    @property
    def matched(self) -> bool:
        """Whether nothing differs."""
        return not self.differences

    def differs(self, *found: Difference | None) -> bool:
        """Takes up differences; whether there were any."""
        there = [one for one in found if one is not None]
        self.differences += there
        return bool(there)


class Replayer:
    """Plays trajectories again, many at once; use through `async with`.

    Args:
        at_once: most boxes of agents, and of graders, at a time.
        gpus: GPUs for agents' boxes and for graders'; see `air.env.played.gpu_pools`.
    """

    def __init__(
        self,
        options: ReplayOptions,
        *,
        at_once: int = 2,
        gpus: tuple[GpuPool | None, GpuPool | None] = (None, None),
    ) -> None:
        self._options = options
        self._at_once = at_once
        self._gpus = gpus
        self._stack = AsyncExitStack()
        self._graders: dict[Provider, Grader] = {}

    async def __aenter__(self) -> Replayer:
        """Opens the pools.

        Raises:
            BoxStartError: what keeps snapshots did not start.
        """
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="air-replay-"))
        self._grades = Path(folder)
        boxes, graders = self._gpus
        self._boxes = await self._stack.enter_async_context(Pool(self._at_once, gpus=boxes))
        self._grader_boxes = await self._stack.enter_async_context(
            Pool(self._at_once, gpus=graders, nested=True)
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def replay(self, trajectory: Trajectory) -> Replayed:
        """Plays one trajectory again.

        Raises:
            UsageError: it cannot be replayed; says why.
            InfrastructureError: a box or a grader failed.
        """
        start = _start(trajectory)
        task = load_task(start, trajectory.path, self._options)
        if (task.gpus or task.grader.gpus) and self._gpus[0] is None:
            raise ConfigError(
                f"needs {task.needs()}, and no GPU is given",
                where=str(trajectory.path),
                remedy="name GPUs, or all: --gpus auto",
            )
        provider = self._options.provider or _PROVIDERS[start.isolation]
        skip = self._options.from_step or 1
        if not 1 <= skip <= max(1, len(trajectory.steps)):
            raise ConfigError(
                f"there is no step {skip}: it has {len(trajectory.steps)}",
                where=str(trajectory.path),
                remedy="give another --from",
            )
        began = time.monotonic()
        done = Replayed(trajectory.path, task.id)
        async with AsyncExitStack() as stack:
            play = await self._begin(trajectory, start, task, provider, skip - 1, stack)
            _note_image(done, start, play.world.box)
            await _Comparison(play, self._options, done).run(skip - 1)
        done.seconds = time.monotonic() - began
        return done

    def grader_of(self, trajectory: Trajectory) -> Grader:
        """What grades the artefacts of a trajectory.

        Raises:
            ConfigError: air did not record it.
        """
        start = _start(trajectory)
        return self._grader(self._options.provider or _PROVIDERS[start.isolation])

    async def _begin(
        self,
        trajectory: Trajectory,
        start: Start,
        task: TaskSpec,
        provider: Provider,
        skip: int,
        stack: AsyncExitStack,
    ) -> Play:
        """A play that stands after the first `skip` steps, in a box that `stack` holds."""
        spec = task.box_spec(provider)
        if image := self._options.image or start.image:
            spec = spec.model_copy(update={"image": image})
        await asyncio.to_thread(tasks.data.prepare, task)
        grader = self._grader(provider)
        if not skip:
            box = await stack.enter_async_context(self._boxes.lease(spec))
            return await begin(trajectory, start, task, box, grader)
        async with self._boxes.lease(spec) as first:
            before = await begin(trajectory, start, task, first, grader)
            await before.go(skip)
            snapshot = await first.snapshot()
        await stack.enter_async_context(snapshot)
        box = await stack.enter_async_context(self._boxes.lease(spec, snapshot=snapshot))
        return before.carried(box)

    def _grader(self, provider: Provider) -> Grader:
        if provider not in self._graders:
            self._graders[provider] = Grader(self._grader_boxes, provider, self._grades / provider)
        return self._graders[provider]


class _Comparison:
    """One play, compared step by step."""

    def __init__(self, play: Play, options: ReplayOptions, done: Replayed) -> None:
        self._play, self._options, self._done = play, options, done
        self._world, self._start = play.world, play.start
        self._then = Folders(play.start.workspace, play.start.temporary, play.start.gpus)
        box = play.world.box
        self._now = Folders(box.workspace, box.path("/tmp"), tuple(box.gpus))
        self._tokens = _counter(play.start, done)

    async def run(self, skip: int) -> None:
        """Plays what comes after the first `skip` steps, and the end."""
        trajectory = self._play.trajectory
        if not skip and self._start.prompt:
            left = self._start.max_turns or _left(self._start.prompt)
            opening = self._play.format.opening(self._world.standing(left))
            self._text(0, "prompt", self._start.prompt, describe(self._world.task) + opening)
            self._taught()
        for step in trajectory.steps[skip:]:
            await self._step(step)
            self._done.steps += 1
        if trajectory.end is None:
            self._done.notes.append("it has no end: compared as far as it goes")
        elif not trajectory.end.ok:
            self._done.notes.append(f"it ended by a failure: {trajectory.end.error}")
        else:
            await self._finish(trajectory)

    def _taught(self) -> None:
        """The action format, which ends the system prompt; what a run says before it is its own."""
        tools, played = self._world.tools, self._play.format
        extra = [played.optional[name] for name in (tools.settings.offered if tools else ())]
        taught = "\n".join([played.instructions, *extra])
        self._text(0, "system prompt's end", self._start.system[-len(taught) :], taught)

    async def _step(self, step: Step) -> None:
        action = action_of(step, self._play.format)
        if action is None:
            self._malformed(step)
            self._gradings(step, [])
            return
        self._parsed(step, action)
        came = await self._world.step(action)
        old = step.observation
        if old is not None:
            self._text(step.turn, "observation", old, came.observation.text)
        self._shown(step, came.observation.text)
        self._done.differs(values(step.turn, "exit code", step.code, came.code))
        if step.observation is not None:
            self._done.differs(values(step.turn, "timed out", step.timed_out, came.timed_out))
        self._gradings(step, [] if came.validation is None else [came.validation])

    def _gradings(self, step: Step, fresh: list[worlds.Validation]) -> None:
        """What a step asked to be graded. Only of the step at which an episode broke off may a grading
        not have been recorded."""
        trajectory = self._play.trajectory
        recorded = trajectory.validations_of(step)
        broke_off = trajectory.end is None or not trajectory.end.ok
        if broke_off and step is trajectory.steps[-1] and len(recorded) < len(fresh):
            self._done.notes.append(f"step {step.turn}: its grading was not recorded")
        else:
            self._done.differs(values(step.turn, "gradings", len(recorded), len(fresh)))
        for old, new in zip(recorded, fresh, strict=False):
            self._grade(step.turn, old, new)

    def _malformed(self, step: Step) -> None:
        """A reply that was no action: it must still be none, for the same reason."""
        if step.problem == "length" or not step.shown:
            return
        try:
            again = self._then.named(self._play.format.parse(step.reply).text)
        except FormatError as error:
            again = self._then.named(str(error)) + self._now.named(self._footer(step))
        self._done.differs(
            texts(step.turn, "shown", (step.shown, self._then), (again, Folders()), exact=True)
        )

    def _parsed(self, step: Step, action: Action) -> None:
        """The recorded action must be what the reply says, to the character: both are of one file."""
        try:
            again = self._play.format.parse(step.reply)
        except FormatError as error:
            self._done.differs(Difference(step.turn, "action", repr(step.action), str(error)))
            return
        for text in (action.text, step.action or ""):
            found = texts(
                step.turn, "action", (text, self._then), (again.text, self._then), exact=True
            )
            if self._done.differs(found):
                return

    def _shown(self, step: Step, observation: str) -> None:
        """What the model was shown: the observation within its bound, and what follows every one."""
        if self._tokens is not None:
            most = int(self._start.settings["max_observation_tokens"])
            text, _ = self._tokens.cap(observation, most)
        elif _CUT in step.shown:
            self._done.notes.append(
                f"step {step.turn}: what was shown was cut, and is not compared"
            )
            return
        else:
            text = observation
        self._text(step.turn, "shown", step.shown, text + self._footer(step))

    def _footer(self, step: Step) -> str:
        left = _left(step.shown) if step.left is None else step.left
        return self._play.format.footer(self._world.standing(left))

    async def _finish(self, trajectory: Trajectory) -> None:
        """The grading that the end asked for, and the test split."""
        await self._world.finish()
        turn = trajectory.steps[-1].turn if trajectory.steps else 0
        recorded = [one for one in trajectory.validations if one.automatic]
        fresh = [one for one in self._world.validations if one.automatic]
        self._done.differs(values(turn, "gradings at the end", len(recorded), len(fresh)))
        for old, new in zip(recorded, fresh, strict=False):
            self._grade(turn, old, new)
        assert trajectory.end is not None
        test = trajectory.end.test
        old_score = test.score if test else trajectory.end.metrics.get("test_score")
        self._score(turn, "test score", old_score, self._world.test_score)
        self._reward(turn, trajectory)

    def _reward(self, turn: int, trajectory: Trajectory) -> None:
        """The recorded reward is the sum of its terms, and the deltas' term that of the equal scores."""
        end = trajectory.end
        assert end is not None
        if end.terms is None or end.reward is None:
            return
        self._close(turn, "reward, the sum of its terms", end.reward, sum(end.terms.values()))
        then = [one.score for one in trajectory.validations]
        if "delta" in end.terms and then == [one.score for one in self._world.validations]:
            self._close(turn, "delta in all", end.terms["delta"], self._world.reward)

    def _close(self, turn: int, what: str, old: float, new: float) -> None:
        """Sums of the same numbers, in whatever order."""
        if not math.isclose(old, new, rel_tol=1e-9, abs_tol=1e-9):
            self._done.differs(values(turn, what, old, new))

    def _grade(self, turn: int, old: Validation, new: worlds.Validation) -> None:
        self._score(turn, "score", old.score, new.score)
        if old.score is None and new.score is None:
            self._text(turn, "problem with the artefact", old.problem, new.problem)
        elif old.score == new.score:
            self._done.differs(
                values(turn, "delta", old.delta, new.delta),
                values(turn, "standard error", old.stderr, new.stderr),
                values(turn, "phi", old.phi, new.phi),
                values(turn, "metrics", dict(old.metrics), new.metrics),
                None if old.anchor is None else values(turn, "anchor", old.anchor, new.anchor),
            )
        if old.artefact and new.digest and old.artefact != new.digest:
            self._done.notes.append(f"step {turn}: the artefact's bytes differ")

    def _score(self, turn: int, what: str, old: float | None, new: float | None) -> None:
        self._done.scores += 1
        close = old == new
        if old is not None and new is not None:
            close = abs(old - new) <= self._options.tolerance
        self._done.equal_scores += close
        if not close:
            self._done.differs(values(turn, what, old, new))

    def _text(self, turn: int, what: str, old: str, new: str) -> bool:
        return self._done.differs(
            texts(turn, what, (old, self._then), (new, self._now), exact=self._options.exact)
        )


def _start(trajectory: Trajectory) -> Start:
    start, where = trajectory.start, str(trajectory.path)
    if start is None:
        raise ConfigError("ended before it began: there is nothing to replay", where=where)
    if start.origin != "air" or start.isolation not in _PROVIDERS:
        raise ConfigError(
            f"was imported from {start.origin}: only what air recorded itself can be replayed",
            where=where,
        )
    return start


def _counter(start: Start, done: Replayed) -> TokenCounter | None:
    """What bounded the observations; None where it cannot be had."""
    if "max_observation_tokens" not in start.settings:
        return None
    name = start.settings.get("tokenizer")
    try:
        return counter_for(name)
    except (ImportError, OSError, ValueError) as error:
        done.notes.append(f"cut observations are not compared: tokenizer {name}: {error}"[:200])
        return None


def _note_image(done: Replayed, start: Start, box: Box) -> None:
    if start.image_digest and box.image_digest and start.image_digest != box.image_digest:
        done.notes.append(
            f"image {start.image} was {start.image_digest[:19]}, and {box.spec.image} is "
            f"{box.image_digest[:19]}"
        )


def _left(text: str) -> int | None:
    """Turns left, as an older file only has them in what was shown."""
    for word in reversed(text.split("[")):
        if any(mark in word for mark in _LEFT):
            number = word.split(" ", 1)[0]
            return int(number) if number.isdigit() else None
    return None
