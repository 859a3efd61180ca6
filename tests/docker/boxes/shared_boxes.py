"""Boxes that many conformance checks share, so that each check need not start a container of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from air.sandbox import conformance, open_box
from air.sandbox.conformance import (
    attacks,
    commands,
    file_transfer,
    guest_attacks,
    limits,
    open_boxes,
    ports,
    read_write,
    running_commands,
    sessions,
)
from air.sandbox.contract.box import Box, BoxSpec

USES = (commands, file_transfer, limits, open_boxes, ports, read_write, running_commands, sessions)
"""Modules of checks of what a box does. Checks of snapshots have boxes of their own."""
ATTACKS = (attacks, guest_attacks)
"""Modules of checks of what a box withstands. They share other boxes than the checks of `USES`."""


class SharedBoxes:
    """Boxes that are used again. Each is emptied after each use, and replaced by a new one after a use that
    failed."""

    def __init__(self) -> None:
        self._boxes: dict[tuple[str, str], Box] = {}

    @asynccontextmanager
    async def lend(self, spec: BoxSpec, group: str = "") -> AsyncIterator[Box]:
        """A box with these settings that nothing is left in. Boxes are shared only within a group."""
        key = (group, spec.model_dump_json())
        box = self._boxes.pop(key, None) or await open_box(spec)
        try:
            yield box
            inside = " ".join((".", "/tmp", *spec.scratch))
            remove = f"find {inside} -mindepth 1 -maxdepth 1 -exec rm -rf {{}} +"
            emptied = await box.exec(f"kill -KILL -1; {remove}", timeout=60)
            assert emptied.ok, emptied
        except BaseException:
            await box.close()
            raise
        self._boxes[key] = box

    async def run(self, check: conformance.Check, spec: BoxSpec) -> None:
        """Plays a conformance check in a shared box with the settings `spec`, or in one of its own."""
        if not shares(check):
            await conformance.run(check, spec)
            return
        limits = spec.limits.model_copy(update=check.limits)
        spec = spec.model_copy(update={"limits": limits, "scratch": ("/scratch",)})
        group = "attacks" if _is_in(check, ATTACKS) else "uses"
        async with self.lend(spec, group) as box:
            await check.play(box)

    async def close(self) -> None:
        for box in self._boxes.values():
            await box.close()


@asynccontextmanager
async def shared_boxes() -> AsyncIterator[SharedBoxes]:
    """Shared boxes that are closed at the end."""
    shared = SharedBoxes()
    try:
        yield shared
    finally:
        await shared.close()


def shares(check: conformance.Check) -> bool:
    """Whether a check can be run in a box that others used: it needs a usual box, and leaves it alive."""
    usual = not check.open and not check.second_user and check.limits in ({}, {"pids": 256})
    return usual and not check.name.startswith("closing-") and _is_in(check, (*USES, *ATTACKS))


def _is_in(check: conformance.Check, modules: tuple[object, ...]) -> bool:
    return any(check in module.CHECKS for module in modules)  # type: ignore[attr-defined]
