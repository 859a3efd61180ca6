"""What the question worlds share: the seeds of validation, and the adapter from an episode to a `World`."""

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
"""One in this many problems belongs to the seeds of validation."""

FACTS: Mapping[str, str] = {
    "success": "1 if the episode was solved, else 0",
    "num_actions": "number of actions that the world carried out or refused",
    "action_is_valid": "share of the actions that the world could carry out",
    "action_is_effective": "share of the actions that changed something or tried something new",
}
"""The facts that every question world reports, and what each means."""


def for_validation(seed: int) -> bool:
    """Tells whether `seed` is one of validation."""
    return seed >= VALIDATION_SEED


def belongs(key: str, seed: int) -> bool:
    """Tells whether the problem that `key` identifies may be asked under `seed`.

    Each problem belongs either to training or to validation, so that no seed of one can meet a problem of the
    other. A generator draws until a problem belongs.
    """
    number = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")
    return (number % _VALIDATION_SHARE == 0) == for_validation(seed)


def answering(player: Callable[[str], str]) -> Callable[[str], Action]:
    """Returns a scripted player whose answers are actions."""
    return lambda observation: Action(answer=player(observation))


@dataclass
class Tally:
    """Counts the actions of an episode, for the facts that every question world reports."""

    actions: int = 0
    valid: int = 0
    effective: int = 0
    success: bool = False

    def count(self, *, valid: bool, effective: bool) -> None:
        """Counts one action."""
        self.actions += 1
        self.valid += valid
        self.effective += effective

    def facts(self) -> dict[str, float]:
        """Returns the facts named in `FACTS`. The shares are 0 while there is no action."""
        share = 1 / self.actions if self.actions else 0.0
        return {
            "success": float(self.success),
            "num_actions": float(self.actions),
            "action_is_valid": self.valid * share,
            "action_is_effective": self.effective * share,
        }


class Episode(Protocol):
    """One episode of a question world, without anything asynchronous."""

    def start(self, seed: int) -> str:
        """Draws the problem of `seed` and returns the first observation."""
        ...

    def act(self, answer: str) -> Step:
        """Carries out one answer of the agent."""
        ...

    def facts(self) -> dict[str, float]:
        """Returns the facts of `FACTS`."""
        ...


class EpisodeWorld:
    """A `World` that plays an `Episode`. It reads `Action.answer` and nothing else of an action, so a number
    or a query in the model's thought has no effect."""

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
        """Does a piece of an episode's work, which takes less than a millisecond or so."""
        return work(argument)

    def facts(self) -> dict[str, float]:
        return self._episode.facts() if self._episode else Tally().facts()

    async def close(self) -> dict[str, Any]:
        if self._closed:
            return {}
        self._closed = self._ended = True
        return dict(self.facts())


class BlockingEpisodeWorld(EpisodeWorld):
    """An `EpisodeWorld` whose work takes long: one of the threads does it, and the event loop goes on."""

    def __init__(self, make: Callable[[], Episode], threads: Callable[[], Executor]) -> None:
        super().__init__(make)
        self._threads = threads

    async def _run(self, work: Callable[[ArgumentT], ResultT], argument: ArgumentT) -> ResultT:
        return await asyncio.get_running_loop().run_in_executor(self._threads(), work, argument)


ENDED = Step(Observation("The episode has ended."), done=True)
"""The result of an action after the end."""


@dataclass(frozen=True)
class Name:
    """The parts of a task id `question:KIND-levelLEVEL` or `question:KIND@PATH`."""

    task_id: str
    kind: str
    level: int | None
    path: Path | None


def digest(*parts: object) -> str:
    """Returns a digest of the parts that decide an episode."""
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()


def source_digest(package: str, *others: str) -> str:
    """Returns a digest of the rules and generators of a world: the code of its package, of this module and of
    `others`, without docstrings and comments. `package` is the path of one of the package's modules, `others`
    are paths of modules."""
    files = [Path(__file__), *sorted(Path(package).parent.glob("*.py")), *map(Path, others)]
    return digest(*(code_of_file(file) for file in files))
