"""`Check`, one test of what a box promises, and the helper functions that such tests use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from air.errors import BoxFileError
from air.sandbox.contract.box import Box, ExecResult

Play = Callable[[Box], Awaitable[None]]


class Unmet(AssertionError):
    """Error: a box breaks a promise of the interface `Box` (see `air.sandbox.contract.box`)."""


@dataclass(frozen=True)
class Check:
    """A conformance check: a function that tests one promise of the interface `Box` in a real box."""

    name: str
    """The promise in words, joined by `-`."""
    play: Play
    """The function that tests the promise in a fresh box; it raises `Unmet` if the promise is broken."""
    container: bool = False
    """Whether the promise needs the isolation of a container."""
    second_user: bool = False
    """Whether the check needs a grader's box, in which programs may run as a second user."""
    limits: Mapping[str, Any] = field(default_factory=dict)
    """The limits that the check sets for its box, by the field names of `BoxLimits`."""


class Checks(list[Check]):
    """A list of checks. The decorator `add` appends a function as a check."""

    def add(
        self, *, container: bool = False, second_user: bool = False, **limits: Any
    ) -> Callable[[Play], Play]:
        """Returns a decorator that appends the decorated function to this list as a check.

        The function's name becomes the name of the check. For the other arguments see the fields of `Check`.
        """

        def register(play: Play) -> Play:
            name = play.__name__.replace("_", "-")
            self.append(Check(name, play, container, second_user, limits))
            return play

        return register


def expect(holds: object, what: object) -> None:
    """Raises `Unmet` with the text `what` if `holds` is false."""
    if not holds:
        raise Unmet(f"{what!r:.2000}")


def same(actual: object, wanted: object) -> None:
    """Raises `Unmet` unless `actual` equals `wanted`."""
    expect(actual == wanted, f"got {actual!r:.1000}, wanted {wanted!r:.1000}")


@contextmanager
def refused(*words: str) -> Iterator[None]:
    """Context manager: raises `Unmet` unless the `with` block raises a BoxFileError with one of `words`.

    If `words` is empty, any BoxFileError is accepted.
    """
    try:
        yield
    except BoxFileError as error:
        expect(not words or any(word in str(error) for word in words), str(error))
    else:
        raise Unmet(f"nothing was refused ({' / '.join(words)})")


async def sh(box: Box, script: str, *, timeout: float = 20.0) -> ExecResult:  # noqa: ASYNC109
    """Runs a shell script in the box and returns its result; raises `Unmet` unless it exits with status 0."""
    result = await box.exec(script, timeout=timeout)
    expect(result.ok, (script, result))
    return result


async def line(box: Box, script: str) -> str:
    """Runs a shell script in the box and returns its stripped standard output; raises `Unmet` if it fails."""
    return (await sh(box, script)).stdout.decode().strip()
