"""The options of `air replay`, which replays recorded episodes or grades their artefacts (the agent's graded
files) again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from air.tasks.spec import Provider


@dataclass(frozen=True)
class ReplayOptions:
    """Options for replaying a recorded episode, or for grading its artefacts (the agent's graded files)
    again."""

    provider: Provider | None = None
    """The kind of the agent's and the grader's boxes: `docker` (containers) or `process` (processes without a
    container). None: the kind in which the episode was recorded."""
    image: str | None = None
    """The name of the container image for the agent's box; None: the image with which the episode was
    recorded."""
    from_step: int | None = None
    """The number, from 1, of the first step to compare; None: the first step of the episode. Earlier steps
    are repeated without comparison. The comparison then continues in a new box that starts from a snapshot of
    the workspace, which contains neither files outside the workspace (such as `/tmp`) nor running
    processes."""
    exact: bool = False
    """True: recorded and new texts must be equal, except for the paths of the box's folders. False: the parts
    of texts that differ in every run, such as times, are not compared."""
    changed_task: bool = False
    """Whether the episode is replayed even if the task's files have changed since it was recorded."""
    tolerance: float = 0.0
    """The largest difference with which two scores still count as equal."""
    task_roots: tuple[Path, ...] = ()
    """Folders in which the task is looked up first, before the folders that the record of the episode
    (trajectory) names."""
    mlgym_root: Path | None = None
    """The folder of a checkout of MLGym, a collection of tasks; None: the folder that the record of the
    episode (trajectory) names."""
