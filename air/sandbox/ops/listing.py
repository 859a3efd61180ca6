"""The boxes that are on this machine, of whatever provider and owner, and one of them by its name."""

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
    """Seconds until it may be collected; None where it does not say."""
    where: str
    """The container's id, or where this machine finds the workspace."""

    @property
    def pid(self) -> str:
        """The owner's process."""
        return self.owner.rsplit(":", 2)[-2] if self.owner.count(":") > 1 else "?"

    @property
    def dead(self) -> bool:
        """Whether its owner is certainly gone."""
        return ownership.is_dead(self.owner)


def containers() -> list[Live]:
    """Boxes that are containers, by name.

    Raises:
        MissingError: no engine answers.
        BoxStartError: the engine failed.
    """
    from air.sandbox.docker import engine

    now, found = time.time(), []
    for one in engine.boxes():
        labels = one["Labels"]
        try:
            left = float(labels[ownership.EXPIRES_LABEL]) - now
        except ValueError:
            left = None
        box = Live(
            name=one["Names"][0].lstrip("/"),
            provider="docker",
            state=one["State"],
            run=labels.get(ownership.RUN_LABEL, ""),
            owner=labels[ownership.OWNER_LABEL],
            seconds_left=left,
            where=one["Id"],
        )
        found.append(box)
    return sorted(found, key=lambda box: box.name)


def folders() -> list[Live]:
    """Process boxes, by name."""
    found = []
    for folder, owner in ownership.box_folders():
        token = folder.name.rpartition("-")[2]
        if not re.fullmatch("[0-9a-f]{12}", token):
            continue  # a folder of ours, but no box's
        name = f"air-{token}"
        run, left, workspace = _recorded(name)
        where = workspace or str(folder / "workspace")
        found.append(Live(name, "process", "running", run, owner, left, where))
    return sorted(found, key=lambda box: box.name)


def _recorded(name: str) -> tuple[str, float | None, str]:
    """The run of a process box, its seconds left and its workspace, from its record; a folder has no
    labels."""
    try:
        found, _ = command_log.read(command_log.folder() / f"{name}.jsonl")
    except (OSError, MissingError):  # recorded elsewhere, another user's, or there is no home
        return "", None, ""
    if not found or (start := found[0])["type"] != "start":
        return "", None, ""
    ends = start["t"] + start["limits"]["seconds"] + ownership.WARM_SECONDS
    return str(start["run"]), ends - time.time(), str(start["workspace"])


def find(name: str) -> Live:
    """The one live box whose name, with or without `air-`, begins with `name`.

    Raises:
        MissingError: there is none, or no engine answers and it is no process box.
        UsageError: there are several.
        BoxStartError: the engine failed.
    """
    short = name.removeprefix("air-")

    def named(box: Live) -> bool:
        return box.name.removeprefix("air-").startswith(short)

    found = [box for box in folders() if named(box)]
    try:
        found += [box for box in containers() if named(box)]
    except MissingError:
        if not found:
            raise
    if not found:
        raise MissingError(f"there is no live box `{name}`", remedy="see `air box ls`")
    if len(found) > 1:
        names = ", ".join(box.name for box in found[:4])
        begins = f"the names of {len(found)} boxes begin with `{name}`"
        raise UsageError(begins, remedy=f"name one: {names}")
    return found[0]
