"""Defines `Check`, a test of one promise of the interface `Box` in a real box, and helper functions for such
tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from air.errors import BoxFileError
from air.sandbox.contract.box import Box, ExecResult

Play = Callable[[Box], Awaitable[None]]


class Unmet(AssertionError):
    """The error that a conformance check raises if a box does not keep a promise of the interface `Box`."""


@dataclass(frozen=True)
class Check:
    """A conformance check: a function that tests one promise of the interface `Box` in a real box."""

    name: str
    """The promise that the check tests, as a phrase whose words are joined by `-`, such as
    `no-zombies-stay`."""
    play: Play
    """The async function that tests the promise in a new box. It raises `Unmet` if the box does not keep the
    promise."""
    container: bool = False
    """Whether the check tests isolation that only a container guarantees, not a process box (ordinary
    processes without a container)."""
    open: bool = False
    """Whether the check needs an open box (a container that its commands may use as a whole; see
    `BoxSpec.open`), with the default settings `OpenBox()`."""
    keep: bool = False
    """Whether the check needs an open box (see `BoxSpec.open`) whose workspace keeps the files that the image
    has there."""
    second_user: bool = False
    """Whether the check needs a box in which programs can also run as a second user, without the rights of
    the first; see `BoxSpec.second_user`."""
    limits: Mapping[str, Any] = field(default_factory=dict)
    """The limits of the box in which the check runs, as a dict {field of `BoxLimits`: value}."""


class Checks(list[Check]):
    """A list of conformance checks (tests of the interface `Box` in a real box). Its decorator `add` turns a
    function into a check and appends it."""

    def add(
        self,
        *,
        container: bool = False,
        open: bool = False,
        keep: bool = False,
        second_user: bool = False,
        **limits: Any,
    ) -> Callable[[Play], Play]:
        """Returns a decorator that makes a check from an async function, and appends the check to this list.
        The check's name is the function's name, with `-` instead of `_`.

        The arguments set the fields of `Check` with the same names. Further keyword arguments are fields of
        `BoxLimits`, and become `Check.limits`.
        """

        def register(play: Play) -> Play:
            name = play.__name__.replace("_", "-")
            self.append(Check(name, play, container, open or keep, keep, second_user, limits))
            return play

        return register


def expect(holds: object, what: object) -> None:
    """Raises `Unmet` if `holds` is false. `what` describes the failed expectation, and becomes the error's
    text."""
    if not holds:
        raise Unmet(f"{what!r:.2000}")


def same(actual: object, wanted: object) -> None:
    """Raises `Unmet` if `actual` does not equal `wanted`."""
    expect(actual == wanted, f"got {actual!r:.1000}, wanted {wanted!r:.1000}")


@contextmanager
def refused(*words: str) -> Iterator[None]:
    """Context manager: raises `Unmet` unless the block raises a BoxFileError whose text contains at least one
    of `words`.

    If no words are given, any BoxFileError is accepted.
    """
    try:
        yield
    except BoxFileError as error:
        expect(not words or any(word in str(error) for word in words), str(error))
    else:
        raise Unmet(f"nothing was refused ({' / '.join(words)})")


async def sh(box: Box, script: str, *, timeout: float = 60.0) -> ExecResult:  # noqa: ASYNC109
    """Runs a shell script in the box and returns its result. Raises `Unmet` if the script fails."""
    result = await box.exec(script, timeout=timeout)
    expect(result.ok, (script, result))
    return result


async def line(box: Box, script: str) -> str:
    """Runs a shell script in the box and returns its standard output without surrounding white space. Raises
    `Unmet` if the script fails."""
    return (await sh(box, script)).stdout.decode().strip()
