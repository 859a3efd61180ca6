"""What every provider of boxes must hold to, as checks that run against a real box.

`CHECKS` lists them all; `run` plays one in a box of its own. A check that does not hold raises
`Unmet`. Checks marked `container` are about isolation, which a process box does not have: it is
`KNOWN_GAPS` that says so, by name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from air.sandbox import open_box
from air.sandbox.base import Box, BoxSpec
from air.sandbox.conformance import attacks, commands, copies, paths, snapshots
from air.sandbox.conformance.check import Check, Unmet

Start = Callable[[BoxSpec], Awaitable[Box]]

CHECKS: tuple[Check, ...] = (
    *commands.CHECKS,
    *paths.CHECKS,
    *copies.CHECKS,
    *snapshots.CHECKS,
    *attacks.CHECKS,
)
"""Every check, in the order of reading."""

KNOWN_GAPS: dict[str, frozenset[str]] = {
    "docker": frozenset(),
    # What starts a program is the engine, inside the limit of the box: with no process left, nothing.
    "docker-exec": frozenset({"with-no-process-left-files-are-still-served"}),
    "process": frozenset(check.name for check in CHECKS if check.container),
}
"""By provider, or variant of one, the checks that it is known not to pass."""

__all__ = ["CHECKS", "KNOWN_GAPS", "Check", "Unmet", "run"]


async def run(check: Check, spec: BoxSpec, *, start: Start = open_box) -> None:
    """Plays one check in a fresh box of `spec`, with the limits that the check asks for.

    Args:
        start: opens the box; for a variant of a provider.

    Raises:
        Unmet: the box does not hold to it.
    """
    limits = spec.limits.model_copy(update=check.limits)
    changes = {"limits": limits, "scratch": ("/scratch",), "second_user": check.second_user}
    async with await start(spec.model_copy(update=changes)) as box:
        await check.play(box)
