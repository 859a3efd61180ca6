"""Keeps the lines of a trajectory (the record of an episode) in memory until they are saved, so that the undo
of `air shell` can remove the last lines."""

from __future__ import annotations

import copy
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from air.errors import ConfigError, InfrastructureError, UsageError, boundary
from air.trajectories import VERSION, Recorder
from air.trajectories.artefacts import copy_artefact


class Draft(Recorder):
    """A `Recorder` (it writes the trajectory, the record of an episode) that keeps the lines in memory, in
    `lines`. Only the method `save` writes a file."""

    def __init__(self, episode_id: str) -> None:
        super().__init__(None, episode_id)
        self.lines: list[dict[str, Any]] = []
        self._saved: set[Path] = set()

    def write(self, kind: str, *, t: float | None = None, **fields: Any) -> None:
        """Appends a line to the trajectory. `kind` is the type of the line, such as `step`; `t` is its Unix
        time in seconds (None: now), and `fields` are its other fields."""
        at = round(time.time() if t is None else t, 3)
        self.lines.append({"v": VERSION, "type": kind, "t": at, **fields})

    def diff(self, turn: int | None = None) -> dict[str, Any] | None:
        """Returns the changes that a step made to files in the workspace (the agent's folder), as a dict with
        the fields of `air.trajectories.schema.Diff`, such as `text`, a unified diff. None if the changes were
        not recorded.

        `turn` is the number of the step's turn, counted from 1; None means the last step. Raises UsageError
        if there is no such step.
        """
        steps = [line for line in self.lines if line["type"] == "step"]
        matches = [line for line in steps if turn is None or line["turn"] == turn]
        if not matches:
            raise UsageError("there is no step" if turn is None else f"there is no step {turn}")
        diff: dict[str, Any] | None = matches[-1].get("diff")
        return diff

    def save(self, path: Path, sources: Sequence[Path]) -> None:
        """Writes the trajectory to the file `path` atomically, and copies the graded artefacts (archives of
        the agent's files) into the folder of `path`. Each artefact is copied from the first of the folders
        `sources` that contains it; an artefact in none of them is left out.

        The same draft can be saved to the same path again. Raises ConfigError if `path` does not end in
        `.jsonl`, if `path` exists and this draft did not write it, or if a line cannot be written as JSON.
        Raises InfrastructureError if the disk is full or the folder is not writable.
        """
        if path.suffix != ".jsonl":
            raise ConfigError("must end in .jsonl", where=str(path))
        doing = f"cannot save to {path}"
        with (
            boundary(ConfigError, doing, RuntimeError, ValueError),  # from `resolve`, or for NaN
            boundary(InfrastructureError, doing, OSError),
        ):
            target = path.resolve()
            if os.path.lexists(path) and target not in self._saved:
                raise ConfigError("is there already", where=str(path), remedy="give another name")
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".new-", dir=target.parent) as folder:
                new = self._write(Path(folder), target, sources)
                new.replace(target)
            self._saved.add(target)

    def _write(self, folder: Path, target: Path, sources: Sequence[Path]) -> Path:
        """Writes the trajectory to a new file in the temporary folder `folder`, and returns the path of this
        file. Copies each graded artefact (an archive of the agent's files), from the first of the folders
        `sources` that has it, into the folder of `target`, the final path of the trajectory."""
        with Recorder(folder, target.stem) as recorder:
            for line in copy.deepcopy(self.lines):
                grade = line if line["type"] == "validate" else line.get("test") or {}
                if grade.get("kept"):
                    grade["kept"] = _kept(grade["kept"], sources, target.parent)
                fields = {name: line[name] for name in line if name not in ("v", "type")}
                recorder.write(line["type"], **fields)
        assert recorder.path is not None
        return recorder.path


def _kept(name: str, sources: Sequence[Path], folder: Path) -> str:
    """Copies an artefact (an archive of the agent's graded files) into `folder`, from the first of the
    folders `sources` that contains it. `name` is the path of the archive relative to such a folder. Returns
    `name`, or "" if no folder contains the artefact."""
    kept = any(copy_artefact(source, name, folder) for source in sources)
    return name if kept else ""
