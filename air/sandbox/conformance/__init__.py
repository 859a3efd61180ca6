"""What every provider of boxes must hold to, as checks that run against a real box.

`CHECKS` lists them all; `run` plays one in a box of its own. A check that does not hold raises
`Unmet`. Checks marked `container` are about isolation, which a process box does not have: it is
`KNOWN_GAPS` that says so, by name.
"""

from __future__ import annotations

from air.sandbox import open_box
from air.sandbox.base import BoxSpec
from air.sandbox.conformance import attacks, commands, copies, limits, paths
from air.sandbox.conformance.check import Check, Unmet

CHECKS: tuple[Check, ...] = (
    *commands.CHECKS,
    *paths.CHECKS,
    *copies.CHECKS,
    *attacks.CHECKS,
    *limits.CHECKS,
)
"""Every check, in the order of reading."""

KNOWN_GAPS: dict[str, frozenset[str]] = {
    "docker": frozenset(),
    "process": frozenset(check.name for check in CHECKS if check.container),
}
"""By provider, the checks that it is known not to pass."""

__all__ = ["CHECKS", "KNOWN_GAPS", "Check", "Unmet", "run"]


async def run(check: Check, spec: BoxSpec) -> None:
    """Plays one check in a fresh box of `spec`, with the limits that the check asks for.

    Raises:
        Unmet: the box does not hold to it.
    """
    limits = spec.limits.model_copy(update=check.limits)
    changes = {"limits": limits, "scratch": ("/scratch",), "second_user": check.second_user}
    async with await open_box(spec.model_copy(update=changes)) as box:
        await check.play(box)
