"""Lists all boxes on this machine, also those of other processes, and finds a box by its name."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

from air.errors import MissingError, UsageError
from air.sandbox.contract import ownership
from air.sandbox.ops import command_log


@dataclass(frozen=True)
class Live:
    """A box that exists now: a container, or a process box (a plain process with a folder, no container)."""

    name: str
    provider: str
    state: str
    """The state that the container engine reports (`running`, `created`, …). A process box has `running`."""
    run: str
    owner: str
    """The process that opened the box, as `host:pid:start`; see `ownership.owner`."""
    seconds_left: float | None
    """Seconds until the box expires, after which `air box gc` may remove the box; None if unknown."""
    where: str
    """The container's id, or, for a process box, the path of its workspace on this machine."""

    @property
    def pid(self) -> str:
        """The id of the process that opened the box, as text; `?` if the box's label does not contain it."""
        return self.owner.rsplit(":", 2)[-2] if self.owner.count(":") > 1 else "?"

    @property
    def dead(self) -> bool:
        """Whether the process that opened the box is dead. False if this cannot be determined."""
        return ownership.is_dead(self.owner)


def containers() -> list[Live]:
    """Asks the container engine for the boxes that are containers, and returns them, sorted by name.

    Raises:
        MissingError: no container engine answers.
        BoxStartError: the container engine failed.
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
    """Returns the process boxes (boxes that are plain processes, not containers), sorted by name."""
    live = []
    for folder, owner in ownership.box_folders():
        token = folder.name.rpartition("-")[2]
        if not re.fullmatch("[0-9a-f]{12}", token):
            continue  # a folder with our prefix that is no box, such as a snapshot
        name = f"air-{token}"
        run, left, workspace = _recorded(name)
        where = workspace or str(folder / "workspace")
        live.append(Live(name, "process", "running", run, owner, left, where))
    return sorted(live, key=lambda box: box.name)


def _recorded(name: str) -> tuple[str, float | None, str]:
    """Reads the command log of a process box; returns its run, remaining seconds and workspace path.

    If the log cannot be read, the run and the workspace path are empty, and the seconds are None.
    """
    try:
        events, _ = command_log.read(command_log.folder() / f"{name}.jsonl")
    except (OSError, MissingError):  # in another cache, another user's, or no home folder
        return "", None, ""
    if not events or (start := events[0])["type"] != "start":
        return "", None, ""
    ends = start["t"] + start["limits"]["seconds"] + ownership.WARM_SECONDS
    return str(start["run"]), ends - time.time(), str(start["workspace"])


def find(name: str) -> Live:
    """Returns the one existing box whose name begins with `name`, which may omit the prefix `air-`.

    Raises:
        MissingError: no box has such a name. Also raised if no process box has such a name and no container
            engine answers.
        UsageError: several boxes have such a name.
        BoxStartError: the container engine failed.
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
