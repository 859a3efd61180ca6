"""Where the files of one of MLGym's tasks come from, and how they are laid out for agent and grader.

The agent's workspace gets the starter code and, in `data/`, only the files that the table lets through.
The grader's folder gets our programs, `how.json`, and under `mlgym/` the workspace as the evaluation
script expects it: starter code and all data, answers included.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from air.tasks.sources.mlgym import split

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE / "grader"
SOLVERS = HERE / "solvers"
DATA = "data"
_LARGE = 64 << 20
"""Files above this many bytes are told apart by size and time, not by contents."""


@dataclass(frozen=True)
class CheckoutSource:
    """The files of one task in a checkout. Read only."""

    name: str
    """The config's name."""
    how: dict[str, Any]
    """What the grader's program is told; the seed is added when the files are laid out."""
    own_solvers: Path
    """Recorded solvers in the checkout; it may be absent."""
    starter: tuple[Path, ...]
    """Files and folders that are laid into the workspace."""
    data: tuple[Path, ...] = ()
    """Folders whose contents make up `data/`."""
    table: Path | None = None
    """The file that `data/` is split from, where the checkout has no such folder."""
    shown: tuple[str, ...] = ()
    """Patterns of the data files that the agent may see."""
    protected: tuple[str, ...] = field(default=())
    """Paths in the agent's workspace that are write-protected."""

    @property
    def solvers(self) -> Path:
        """The recorded solvers of this task: the checkout's own, else ours; it may be absent."""
        return self.own_solvers if self.own_solvers.is_file() else SOLVERS / f"{self.name}.toml"

    def digest(self, *more: str) -> str:
        """SHA-256 over all that decides a score: what the grader is told, our programs, the files."""
        digest = hashlib.sha256(json.dumps([self.how, self.shown, more], sort_keys=True).encode())
        for name, file in (*self._files(), *_below(PROGRAMS)):
            digest.update(f"{name}\n{_stamp(file)}\n".encode())
        return digest.hexdigest()

    def fill(self, agent: Path, grader: Path, split_seed: int, *, usual_seed: int) -> None:
        """Lays out both folders, which exist and are empty.

        Args:
            split_seed: decides the random parts of evaluations, and how data is split that the
                checkout has not split itself; with `usual_seed` that is MLGym's own split.
        """
        workspace = grader / "mlgym"
        for source in self.starter:
            for name, file in _below(source, source.name):
                _copy(file, agent / name)
                _copy(file, workspace / name)
        for folder in self.data:
            for name, file in _below(folder):
                _copy(file, workspace / DATA / name)
        if self.table is not None:
            (workspace / DATA).mkdir(parents=True)
            state = split.STATE if split_seed == usual_seed else split_seed
            split.house_prices(self.table, workspace / DATA, state)
        for name, file in list(_below(workspace / DATA)):
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in self.shown):
                _copy(file, agent / DATA / name)
        for name, file in _below(PROGRAMS):
            _copy(file, grader / name)
        told = self.how | {"seed": split_seed}
        (grader / "how.json").write_text(json.dumps(told), encoding="utf-8")

    def _files(self) -> Iterator[tuple[str, Path]]:
        for source in self.starter:
            yield from _below(source, source.name)
        for folder in self.data:
            yield from _below(folder, DATA)
        if self.table is not None:
            yield DATA, self.table


def _below(path: Path, name: str = "") -> Iterator[tuple[str, Path]]:
    """A file, or the files of a folder in a fixed order, under the names they get."""
    if path.is_file():
        yield name or path.name, path
        return
    for file in sorted(path.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            yield (PurePosixPath(name) / file.relative_to(path).as_posix()).as_posix(), file


def _stamp(file: Path) -> str:
    status = file.stat()
    if status.st_size > _LARGE:
        return f"{status.st_size} {status.st_mtime_ns}"
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _copy(source: Path, dest: Path) -> None:
    dest.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, dest)
    dest.chmod(0o755 if os.access(source, os.X_OK) else 0o644)
