"""A conformance check, and the helpers in which checks are written."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from air.errors import BoxFileError
from air.sandbox.contract.box import Box, ExecResult

Play = Callable[[Box], Awaitable[None]]


class Unmet(AssertionError):
    """A box broke the contract."""


@dataclass(frozen=True)
class Check:
    """One promise of the contract."""

    name: str
    """The promise, as words joined by `-`."""
    play: Play
    """Checks it in a fresh box; raises `Unmet`."""
    container: bool = False
    """Whether it needs the isolation of a container."""
    second_user: bool = False
    """Whether it needs a grader's box."""
    limits: Mapping[str, Any] = field(default_factory=dict)
    """Limits that differ from the default."""


class Checks(list[Check]):
    """A list of checks, to which `add` registers functions."""

    def add(
        self, *, container: bool = False, second_user: bool = False, **limits: Any
    ) -> Callable[[Play], Play]:
        """Registers a function under its own name."""

        def register(play: Play) -> Play:
            name = play.__name__.replace("_", "-")
            self.append(Check(name, play, container, second_user, limits))
            return play

        return register


def expect(holds: object, what: object) -> None:
    """Raises `Unmet`, with `what` as its text, unless `holds`."""
    if not holds:
        raise Unmet(f"{what!r:.2000}")


def same(actual: object, wanted: object) -> None:
    """Raises `Unmet` unless the two are equal."""
    expect(actual == wanted, f"got {actual!r:.1000}, wanted {wanted!r:.1000}")


@contextmanager
def refused(*words: str) -> Iterator[None]:
    """Raises `Unmet` unless the block raises BoxFileError with one of the words in its text."""
    try:
        yield
    except BoxFileError as error:
        expect(not words or any(word in str(error) for word in words), str(error))
    else:
        raise Unmet(f"nothing was refused ({' / '.join(words)})")


async def sh(box: Box, script: str, *, timeout: float = 20.0) -> ExecResult:  # noqa: ASYNC109
    """Runs a script that must end by itself with status 0."""
    result = await box.exec(script, timeout=timeout)
    expect(result.ok, (script, result))
    return result


async def line(box: Box, script: str) -> str:
    """The output of a script that must succeed, stripped."""
    return (await sh(box, script)).stdout.decode().strip()
