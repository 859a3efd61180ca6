"""Copies the files of one of MLGym's tasks from a checkout into the agent's and the grader's folders.

The agent gets the starter code and, in `data/`, only the files that `table.toml` allows. The grader gets its
programs, `how.json`, and in `mlgym/` what the evaluation script expects, with all data and the answers.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from air import paths
from air.tasks.files import copy_file, walk
from air.tasks.sources.mlgym import sat, split

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE / "grader"
SHARED = ("grading.py", "runner.py", "player.py")
"""Programs that the graders of air's own tasks also use."""
SOLVERS = HERE / "solvers"
DATA = "data"
_LARGE = 64 << 20
"""Files with more bytes than this are hashed by their size and modification time, not by their contents."""


@dataclass(frozen=True)
class CheckoutSource:
    """The files of one of MLGym's tasks in a checkout."""

    name: str
    """File name of the task's config in MLGym, without `.yaml`."""
    how: dict[str, Any]
    """Settings for the grader's program; `fill` adds the seed and writes them to `how.json`."""
    own_solvers: Path
    """Path of the file in the checkout with the task's reference solutions; it might not exist."""
    starter: tuple[Path, ...]
    """Files and folders of the checkout that are copied into the workspace."""
    data: tuple[Path, ...] = ()
    """Folders of the checkout whose contents are copied into the task's folder `data/`."""
    table: Path | None = None
    """The CSV file with all rows, from which `data/` is made; None if the checkout has the split data."""
    generates: bool = False
    """Whether `air.tasks.sources.mlgym.sat` generates the data."""
    downloads: tuple[str, ...] = ()
    """Paths in the workspace of the files that `air tasks fetch` downloads."""
    shown: tuple[str, ...] = ()
    """Shell patterns (such as `*.csv`) for the names of the files in `data/` that the agent gets."""
    protected: tuple[str, ...] = field(default=())
    """Write-protected files and folders of the agent's workspace, as paths relative to it."""

    @property
    def solvers(self) -> Path:
        """The reference solutions in the checkout or else among air's files; might not exist."""
        return self.own_solvers if self.own_solvers.is_file() else SOLVERS / f"{self.name}.toml"

    def digest(self, *more: str) -> str:
        """Returns the SHA-256 of everything on which a score depends: settings, programs, files, and the
        texts `more`."""
        digest = hashlib.sha256(json.dumps([self.how, self.shown, more], sort_keys=True).encode())
        for name, file in (*self._files(), *_programs()):
            digest.update(f"{name}\n{_stamp(file)}\n".encode())
        return digest.hexdigest()

    def fill(
        self, agent: Path, grader: Path, split_seed: int, *, usual_seed: int, downloads: Path | None
    ) -> None:
        workspace = grader / "mlgym"
        for source in self.starter:
            for name, file in _below(source, source.name):
                copy_file(file, agent / name)
                copy_file(file, workspace / name)
        for folder in self.data:
            for name, file in _below(folder):
                copy_file(file, workspace / DATA / name)
        if self.table is not None:
            (workspace / DATA).mkdir(parents=True)
            state = split.STATE if split_seed == usual_seed else divmod(split_seed, 2**32)
            split.house_prices(self.table, workspace / DATA, state)
        if self.generates:
            sat.formulas(workspace / DATA, split_seed)
        for name in self.downloads:
            assert downloads is not None
            copy_file(downloads / download_name(name), workspace / name)
            if not name.startswith(f"{DATA}/"):  # those are shown below
                copy_file(downloads / download_name(name), agent / name)
        for name, file in list(_below(workspace / DATA)):
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in self.shown):
                copy_file(file, agent / DATA / name)
        for name, file in _programs():
            copy_file(file, grader / name)
        settings = self.how | {"seed": split_seed}
        (grader / "how.json").write_text(json.dumps(settings), encoding="utf-8")

    def _files(self) -> Iterator[tuple[str, Path]]:
        for source in self.starter:
            yield from _below(source, source.name)
        for folder in self.data:
            yield from _below(folder, DATA)
        if self.table is not None:
            yield DATA, self.table


def download_name(path: str) -> str:
    """Returns the name among a task's downloads of the file with this path in the workspace."""
    return path.replace("/", "--")


def _programs() -> Iterator[tuple[str, Path]]:
    """Yields (name of the copy, file) for each program of the grader."""
    yield from _below(PROGRAMS)
    for name in SHARED:
        yield name, paths.shipped("tasks") / "_shared" / name


def _below(path: Path, name: str = "") -> Iterator[tuple[str, Path]]:
    """Yields (name of the copy, file) for each file at or below `path`, in a fixed order."""
    if path.is_file():
        yield name or path.name, path
        return
    for file in walk(path):
        yield (PurePosixPath(name) / file.relative_to(path).as_posix()).as_posix(), file


def _stamp(file: Path) -> str:
    status = file.stat()
    if status.st_size > _LARGE:
        return f"{status.st_size} {status.st_mtime_ns}"
    return hashlib.sha256(file.read_bytes()).hexdigest()
