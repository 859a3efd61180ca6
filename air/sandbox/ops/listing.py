"""Lists all boxes and helper containers (containers in which no agent acts) on this machine, including those
that other processes started, and finds a box by its name."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from air.errors import MissingError, UsageError
from air.sandbox.contract import ownership
from air.sandbox.ops import command_log


@dataclass(frozen=True)
class LiveBox:
    """A box that exists now, or a helper container (a container of air that stores snapshots or copies
    Python). A box is either a container or a process box (ordinary processes, with a folder on this machine).
    `run` is the id of the run of air that started it."""

    name: str
    provider: str
    state: str
    """The container's state (`running`, `created`, …). Always `running` for a process box."""
    run: str
    owner: str
    """The process that started the box, as `host:pid:start`; see `ownership.owner`."""
    seconds_left: float | None
    """Seconds until the box expires. Negative if the box has expired, so that `air box gc` may remove it.
    None if unknown."""
    where: str
    """The container's id, or the path of the workspace of a process box (a box without a container) on this
    machine."""
    use: Mapping[str, Any] = field(default_factory=dict)
    """What the box is used for, as its command log records it; empty if the log has no such record. See
    `Box.note_use`."""

    def of_run(self, run: str, folder: str) -> bool:
        """Whether the box is used for an episode of a run. `run` is the run's name or id; `folder` is the
        path of the run's folder, or empty if it is unknown."""
        return bool(self.use) and (
            run in (self.run, self.use.get("run")) or ("" != folder == self.use.get("folder"))
        )

    @property
    def pid(self) -> str:
        """The process id of the process that started the box, as text; `?` if it is unknown."""
        return self.owner.rsplit(":", 2)[-2] if self.owner.count(":") > 1 else "?"

    @property
    def dead(self) -> bool:
        """Whether the process that started the box is certainly dead."""
        return ownership.is_dead(self.owner)


def containers() -> list[LiveBox]:
    """Returns the boxes of this machine that are containers, sorted by name.

    Raises MissingError if no container engine answers, BoxStartError if the engine fails.
    """
    return _containers(helpers=False)


def helpers() -> list[LiveBox]:
    """Returns the helper containers of this machine, which store snapshots or copy Python, sorted by name.
    Raises the errors of `containers`."""
    return _containers(helpers=True)


def _containers(*, helpers: bool) -> list[LiveBox]:
    from air.sandbox.docker import engine

    now, live = time.time(), []
    for container in engine.containers_of_air():
        labels = container["Labels"]
        if (ownership.HELPER_LABEL in labels) != helpers:
            continue
        try:
            seconds_left = float(labels[ownership.EXPIRES_LABEL]) - now
        except ValueError:
            seconds_left = None
        name = container["Names"][0].lstrip("/")
        box = LiveBox(
            name=name,
            provider="docker",
            state=container["State"],
            run=labels.get(ownership.RUN_LABEL, ""),
            owner=labels[ownership.OWNER_LABEL],
            seconds_left=seconds_left,
            where=container["Id"],
            use=_opening(name).get("use", {}),
        )
        live.append(box)
    return sorted(live, key=lambda box: box.name)


def folders() -> list[LiveBox]:
    """Returns the process boxes (boxes that are not containers) of this machine, sorted by name."""
    live = []
    for folder, owner in ownership.box_folders():
        token = folder.name.rpartition("-")[2]
        if not re.fullmatch("[0-9a-f]{12}", token):
            continue  # the folder has the prefix of boxes but is none, for example a snapshot
        name = f"air-{token}"
        opening = _opening(name)
        start = opening.get("start")
        box = LiveBox(
            name=name,
            provider="process",
            state="running",
            run="" if start is None else str(start["run"]),
            owner=owner,
            seconds_left=None if start is None else _ends(start) - time.time(),
            where=str(folder / "workspace") if start is None else str(start["workspace"]),
            use=opening.get("use", {}),
        )
        live.append(box)
    return sorted(live, key=lambda box: box.name)


def _opening(name: str) -> dict[str, dict[str, Any]]:
    """Returns the records of the command log of the box `name` that tell how the box was started (type
    `start`) and what it is used for (type `use`), as a dict: type -> record. Empty if the log cannot be
    read."""
    try:
        return command_log.opening(command_log.folder() / f"{name}.jsonl")
    except (OSError, MissingError):  # log in another cache or of another user
        return {}


def _ends(start: Mapping[str, Any]) -> float:
    seconds: float = start["t"] + start["limits"]["seconds"] + ownership.WARM_SECONDS
    return seconds


def find(name: str) -> LiveBox:
    """Returns the existing box whose name begins with `name`. The prefix `air-` of the name may be left out.

    Raises MissingError if there is no such box, UsageError if there are several, and the errors of
    `containers`.
    """
    short = name.removeprefix("air-")

    def named(box: LiveBox) -> bool:
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
