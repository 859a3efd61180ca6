"""Copies the files of one of MLGym's tasks from a checkout into the agent's and the grader's folders.

The agent gets the starter code and, in `data/`, only the files that `table.toml` allows. The grader gets its
programs, its settings (`how.json`), and the folder `mlgym/` with everything that the evaluation script
expects, including all data and the answers.
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
from air.tasks.sources.mlgym import house_prices_split, sat

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE / "grader"
SHARED = ("grading.py", "runner.py", "player.py")
"""File names of the programs that MLGym's graders share with the graders of air's own tasks. They lie in the
folder `_shared` of the shipped tasks."""
SOLVERS = HERE / "solvers"
DATA = "data"
_LARGE = 64 << 20
"""Size in bytes above which a file is hashed by its size and modification time instead of its contents."""


@dataclass(frozen=True)
class CheckoutSource:
    """Copies the files of one of MLGym's tasks from a checkout into the folders of the agent and of the
    grader. It implements the interface `Source` (see `air.tasks.spec`) for tasks that are not in air's own
    format."""

    name: str
    """File name of the task's config in MLGym, without `.yaml`."""
    how: dict[str, Any]
    """Settings for the grader's program, as JSON values. The method `fill` adds the seed and writes them to
    the file `how.json`."""
    own_solvers: Path
    """Path of the file in the checkout with the task's reference solutions; it might not exist."""
    starter: tuple[Path, ...]
    """Files and folders of the checkout that are copied into the workspace."""
    data: tuple[Path, ...] = ()
    """Folders of the checkout whose contents are copied into `data/` of the grader's workspace; the agent
    gets only the files that `shown` allows."""
    table: Path | None = None
    """The CSV file with all rows, from which the files of `data/` are made. None if the checkout already has
    these files."""
    generates: bool = False
    """Whether the checkout lacks the task's data and the module `air.tasks.sources.mlgym.sat` generates
    them."""
    downloads: tuple[str, ...] = ()
    """The files that `air tasks fetch` downloads for the task, as paths relative to the workspace."""
    shown: tuple[str, ...] = ()
    """Shell patterns (such as `*.csv`) for the names of the files in `data/` that the agent gets."""
    protected: tuple[str, ...] = field(default=())
    """Files and folders of the workspace that are write-protected for the agent, as paths relative to it."""

    @property
    def solvers(self) -> Path:
        """The file with the task's reference solutions: in the checkout if it exists there, otherwise among
        air's files. The file might not exist."""
        return self.own_solvers if self.own_solvers.is_file() else SOLVERS / f"{self.name}.toml"

    def digest(self, *more: str) -> str:
        """Returns the SHA-256, in hex, of everything on which a score depends: the grader's settings and
        programs, the task's files, and the strings `more`."""
        digest = hashlib.sha256(json.dumps([self.how, self.shown, more], sort_keys=True).encode())
        for name, file in (*self._files(), *_programs()):
            digest.update(f"{name}\n{_stamp(file)}\n".encode())
        return digest.hexdigest()

    def fill(
        self, agent: Path, grader: Path, split_seed: int, *, usual_seed: int, downloads: Path | None
    ) -> None:
        workspace = grader / "mlgym"
        for source in self.starter:
            for name, file in _named_files(source, source.name):
                copy_file(file, agent / name)
                copy_file(file, workspace / name)
        for folder in self.data:
            for name, file in _named_files(folder):
                copy_file(file, workspace / DATA / name)
        if self.table is not None:
            (workspace / DATA).mkdir(parents=True)
            state = (
                house_prices_split.STATE if split_seed == usual_seed else divmod(split_seed, 2**32)
            )
            house_prices_split.house_prices(self.table, workspace / DATA, state)
        if self.generates:
            sat.formulas(workspace / DATA, split_seed)
        for name in self.downloads:
            assert downloads is not None
            copy_file(downloads / download_name(name), workspace / name)
            if not name.startswith(f"{DATA}/"):  # the loop below copies `data/`
                copy_file(downloads / download_name(name), agent / name)
        for name, file in list(_named_files(workspace / DATA)):
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in self.shown):
                copy_file(file, agent / DATA / name)
        for name, file in _programs():
            copy_file(file, grader / name)
        settings = self.how | {"seed": split_seed}
        (grader / "how.json").write_text(json.dumps(settings), encoding="utf-8")

    def _files(self) -> Iterator[tuple[str, Path]]:
        for source in self.starter:
            yield from _named_files(source, source.name)
        for folder in self.data:
            yield from _named_files(folder, DATA)
        if self.table is not None:
            yield DATA, self.table


def download_name(path: str) -> str:
    """Returns the name under which a downloaded file is stored in the folder of downloads, which has no
    subfolders. `path` is the file's path in the workspace: `data/a.csv` gives `data--a.csv`."""
    return path.replace("/", "--")


def _programs() -> Iterator[tuple[str, Path]]:
    """Yields a pair for each program of the grader: the name of its copy in the grader's folder, and its
    path."""
    yield from _named_files(PROGRAMS)
    for name in SHARED:
        yield name, paths.shipped("tasks") / "_shared" / name


def _named_files(path: Path, name: str = "") -> Iterator[tuple[str, Path]]:
    """Yields pairs (name, path) of the files at `path`, in a fixed order. For a folder, these are all files
    below it, and a name is the file's path relative to the folder, with `name` and a slash before it. For a
    file, the only pair has the name `name` or, if that is empty, the file's own name."""
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
