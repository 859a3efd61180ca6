"""Lists the boxes on this machine, of every provider and owner, and finds one of them by its name."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

from air.errors import MissingError, UsageError
from air.sandbox.contract import ownership
from air.sandbox.ops import command_log


@dataclass(frozen=True)
class Live:
    """A box that exists now: a container, or a process box's folder."""

    name: str
    provider: str
    state: str
    """The engine's word (`running`, `created`, …); `running` for a folder."""
    run: str
    owner: str
    """The owner's label; see `ownership.owner`."""
    seconds_left: float | None
    """Seconds until it may be collected; None if unknown."""
    where: str
    """The container's id, or the path of the workspace on this machine."""

    @property
    def pid(self) -> str:
        """The owner's pid."""
        return self.owner.rsplit(":", 2)[-2] if self.owner.count(":") > 1 else "?"

    @property
    def dead(self) -> bool:
        """Whether its owner is certainly dead."""
        return ownership.is_dead(self.owner)


def containers() -> list[Live]:
    """The boxes that are containers, sorted by name.

    Raises:
        MissingError: no engine answers.
        BoxStartError: the engine failed.
    """
    from air.sandbox.docker import engine

    now, live = time.time(), []
    for container in engine.boxes():
        labels = container["Labels"]
        try:
            seconds_left = float(labels[ownership.EXPIRES_LABEL]) - now
        except ValueError:
            seconds_left = None
        box = Live(
            name=container["Names"][0].lstrip("/"),
            provider="docker",
            state=container["State"],
            run=labels.get(ownership.RUN_LABEL, ""),
            owner=labels[ownership.OWNER_LABEL],
            seconds_left=seconds_left,
            where=container["Id"],
        )
        live.append(box)
    return sorted(live, key=lambda box: box.name)


def folders() -> list[Live]:
    """The process boxes, sorted by name."""
    live = []
    for folder, owner in ownership.box_folders():
        token = folder.name.rpartition("-")[2]
        if not re.fullmatch("[0-9a-f]{12}", token):
            continue  # our folder, but not of a box
        name = f"air-{token}"
        run, left, workspace = _recorded(name)
        where = workspace or str(folder / "workspace")
        live.append(Live(name, "process", "running", run, owner, left, where))
    return sorted(live, key=lambda box: box.name)


def _recorded(name: str) -> tuple[str, float | None, str]:
    """The run, the seconds left and the workspace of a process box, from its record, since its folder has
    no labels."""
    try:
        events, _ = command_log.read(command_log.folder() / f"{name}.jsonl")
    except (OSError, MissingError):  # recorded elsewhere, another user's, or there is no home
        return "", None, ""
    if not events or (start := events[0])["type"] != "start":
        return "", None, ""
    ends = start["t"] + start["limits"]["seconds"] + ownership.WARM_SECONDS
    return str(start["run"]), ends - time.time(), str(start["workspace"])


def find(name: str) -> Live:
    """The one live box whose name, with or without `air-`, begins with `name`.

    Raises:
        MissingError: there is none; or no process box fits and no engine answers.
        UsageError: several fit.
        BoxStartError: the engine failed.
    """
    short = name.removeprefix("air-")

    def named(box: Live) -> bool:
        return box.name.removeprefix("air-").startswith(short)

    boxes = [box for box in folders() if named(box)]
    try:
        boxes += [box for box in containers() if named(box)]
    except MissingError:
        if not boxes:
            raise
    if not boxes:
        raise MissingError(f"there is no live box `{name}`", remedy="see `air box ls`")
    if len(boxes) > 1:
        names = ", ".join(box.name for box in boxes[:4])
        begins = f"the names of {len(boxes)} boxes begin with `{name}`"
        raise UsageError(begins, remedy=f"name one: {names}")
    return boxes[0]
