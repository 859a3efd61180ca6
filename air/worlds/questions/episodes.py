"""The code that the question worlds share: the division of problems between training and validation seeds,
and `EpisodeWorld`, which adapts a synchronous `Episode` to the asynchronous interface `World`."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from air.actions.base import Action
from air.source_code import code_of_file
from air.worlds.base import Observation, Step
from air.worlds.sources import VALIDATION_SEED

ArgumentT = TypeVar("ArgumentT")
ResultT = TypeVar("ResultT")

_VALIDATION_SHARE = 5
"""About one in this many problems is reserved for validation seeds."""

FACTS: Mapping[str, str] = {
    "success": "1 if the episode was solved, else 0",
    "num_actions": "number of actions that the world carried out or refused",
    "action_is_valid": "share of the actions that the world could carry out",
    "action_is_effective": "share of the actions that changed something or tried something new",
}
"""The facts (numbers about an episode, see `World.facts`) that every question world reports: each fact's
meaning, by its name."""


def for_validation(seed: int) -> bool:
    """Returns whether `seed` is a validation seed, that is, at least `VALIDATION_SEED`."""
    return seed >= VALIDATION_SEED


def belongs(key: str, seed: int) -> bool:
    """Returns whether an episode with the seed `seed` may ask a certain problem. `key` is a text that
    identifies the problem.

    A hash of `key` assigns each problem either to training seeds or to validation seeds, so that training and
    validation never share a problem. A generator draws problems until this function accepts one.
    """
    number = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")
    return (number % _VALIDATION_SHARE == 0) == for_validation(seed)


def answering(player: Callable[[str], str]) -> Callable[[str], Action]:
    """Converts a scripted player (a function that plays instead of a model) from one form to the other:
    `player` returns an answer as a string, the result returns an action with this answer. Both take the text
    of the latest observation."""
    return lambda observation: Action(answer=player(observation))


@dataclass
class Tally:
    """Counts an episode's actions: all of them, those that the world could carry out (`valid`), and those
    that changed something or tried something new (`effective`). From these numbers the episode's facts
    (numbers with the names in `FACTS`) are computed."""

    actions: int = 0
    valid: int = 0
    effective: int = 0
    success: bool = False

    def count(self, *, valid: bool, effective: bool) -> None:
        """Counts one action. `valid`: the world could carry out the action. `effective`: the action changed
        something or tried something new."""
        self.actions += 1
        self.valid += valid
        self.effective += effective

    def facts(self) -> dict[str, float]:
        """Returns the episode's facts, numbers by name: `success` (1 or 0), `num_actions`, and the shares
        `action_is_valid` and `action_is_effective` of the actions, which are 0 before the first action."""
        share = 1 / self.actions if self.actions else 0.0
        return {
            "success": float(self.success),
            "num_actions": float(self.actions),
            "action_is_valid": self.valid * share,
            "action_is_effective": self.effective * share,
        }


class Episode(Protocol):
    """The interface of one episode in which an agent answers a question. Its methods are synchronous; the
    class `EpisodeWorld` adapts them to the asynchronous interface `World`."""

    def start(self, seed: int) -> str:
        """Starts the episode with the problem that `seed` selects, and returns the first observation."""
        ...

    def act(self, answer: str) -> Step:
        """Grades one answer of the agent or, in a task such as a shop, carries out the actions in it. Returns
        the result: observation, reward, and whether the episode has ended."""
        ...

    def facts(self) -> dict[str, float]:
        """Returns numbers about the episode so far, by name, such as `success`: one for each name in
        `FACTS`."""
        ...


class EpisodeWorld:
    """A `World` (an environment for an agent) that runs episodes of one kind of question. `make` creates an
    `Episode`. The episode gets only the answer in an action, so that a number or a query in the model's
    reasoning has no effect."""

    def __init__(self, make: Callable[[], Episode]) -> None:
        self._make = make
        self._episode: Episode | None = None
        self._ended = False
        self._closed = False

    async def reset(self, seed: int) -> Observation:
        episode = self._make()
        text = await self._run(episode.start, seed)
        self._episode, self._ended = episode, False
        return Observation(text)

    async def step(self, action: Action) -> Step:
        if self._episode is None:
            raise RuntimeError("step before reset")
        if self._ended:
            return ENDED
        step = await self._run(self._episode.act, action.answer)
        self._ended = step.done
        return step

    async def _run(self, work: Callable[[ArgumentT], ResultT], argument: ArgumentT) -> ResultT:
        """Calls `work`, a method of the episode, with `argument`, and returns its result. The call blocks the
        event loop, which is acceptable because it takes only about a millisecond. A subclass may use a
        thread."""
        return work(argument)

    def facts(self) -> dict[str, float]:
        return self._episode.facts() if self._episode else Tally().facts()

    async def close(self) -> dict[str, Any]:
        if self._closed:
            return {}
        self._closed = self._ended = True
        return dict(self.facts())


class BlockingEpisodeWorld(EpisodeWorld):
    """An `EpisodeWorld` for episodes with slow methods. It calls the methods in the thread pool that
    `threads` returns, so that they do not block the event loop."""

    def __init__(self, make: Callable[[], Episode], threads: Callable[[], Executor]) -> None:
        super().__init__(make)
        self._threads = threads

    async def _run(self, work: Callable[[ArgumentT], ResultT], argument: ArgumentT) -> ResultT:
        return await asyncio.get_running_loop().run_in_executor(self._threads(), work, argument)


ENDED = Step(Observation("The episode has ended."), done=True)
"""The result of an action after the episode has ended."""


@dataclass(frozen=True)
class Name:
    """The parsed task id of a question task: `question:KIND`, `question:KIND-levelLEVEL` or
    `question:KIND@PATH`. `level` or `path` is None if the id does not contain it; `path` is absolute."""

    task_id: str
    kind: str
    level: int | None
    path: Path | None


def digest(*parts: object) -> str:
    """Returns the SHA-256 hash, in hex, of the text whose lines are `parts`, each converted to a string."""
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()


def source_digest(package: str, *others: str) -> str:
    """Returns a digest (hash) of source files, without their docstrings and comments, by which a change of a
    kind of question task is noticed. The files are `episodes.py`, all Python files in the same folder as
    `package` (the path of a Python file), and the files whose paths are in `others`."""
    files = [Path(__file__), *sorted(Path(package).parent.glob("*.py")), *map(Path, others)]
    return digest(*(code_of_file(file) for file in files))
