"""Keeps the index of a training run up to date. The index is a SQLite file about the run's recorded episodes;
only lines that were appended to the run's files since the last update are read.

A line that cannot be used (not JSON, or without a required field) is skipped, and counted as a problem of its
file. Several processes can update one index at the same time.
"""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from air.errors import MissingError
from air.json_lines import Mark, Tail, changed
from air.view.index.facts import Facts, integer, number, read_lines, text, whole
from air.view.index.run_discovery import LOGS, NOT_TRAJECTORIES
from air.view.index.sqlite_schema import FACTS, PLACES, file_of, opened, translated

BATCH_FILES = 200
"""The number of trajectory files (recordings of episodes) that are read in one transaction of the database.
After each transaction, the progress is reported. An interrupted update keeps the finished transactions."""
SUFFIX = ".jsonl"
Progress = Callable[[int, int], None]
"""The type of a function that shows progress. Its arguments are the number of changed files that have been
read, and the number of all changed files."""


def no_progress(done: int, total: int) -> None:
    """Shows nothing. Used as the `Progress` function if no progress must be shown."""


class IndexFile:
    """The SQLite file, in the cache folder, that is the index of a training run; `refresh` updates it.

    `folder` is the run's folder. It contains a folder `trajectories/`, or directly the trajectory files
    (recordings of episodes). The constructor raises MissingError if `folder` does not exist, and UsageError
    if the index cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        if not self.folder.is_dir():
            raise MissingError("no such run", where=str(folder), remedy="name a folder of outputs/")
        self._lock = threading.RLock()
        self._db = opened(file_of(self.folder))
        # Streamlit's cache drops indices without closing them.
        weakref.finalize(self, self._db.close)

    @property
    def trajectories(self) -> Path:
        """The folder of the run's trajectory files (recordings of episodes). It can change while a run is in
        progress: `trajectories/` may be created only after the first look."""
        inner = self.folder / "trajectories"
        return inner if inner.is_dir() else self.folder

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def refresh(self, progress: Progress = no_progress) -> bool:
        """Reads the new lines of the run's files into the index. Returns whether the index has changed.
        `progress` is called from time to time with the number of changed files that have been read, and the
        number of all changed files.

        A trajectory file (recording of an episode) that cannot be read is marked as unreadable. Raises
        MissingError if the run's folder is gone, UsageError if another file cannot be read, and
        InfrastructureError if SQLite fails.
        """
        with self._lock, translated(self.folder):
            marks = self.marks()
            files = self._files()
            new = [Path(one.path) for name, one in files.items() if changed(one, marks.get(name))]
            deleted = self._forget(marks, files.keys())
            read = False
            for start in range(0, len(new), BATCH_FILES):
                with self._writing():
                    for path in new[start : start + BATCH_FILES]:
                        read |= self._read_or_mark(path)
                progress(min(start + BATCH_FILES, len(new)), len(new))
            logs = self.refresh_logs()
            return bool(read or logs or deleted)

    def refresh_logs(self) -> bool:
        """Reads the new lines of `metrics.jsonl` and `groups.jsonl` into the index, but no recordings of
        episodes. Returns whether the index has changed. Raises the same errors as `refresh`."""
        with self._lock, translated(self.folder):
            marks = self.marks()
            new = [
                (kind, path)
                for kind in LOGS
                if (path := self.folder / f"{kind}.jsonl").is_file()
                and changed(path, marks.get(f"/{kind}"))
            ]
            for kind, path in new:
                with self._writing():
                    self._read_log(kind, path)
            return bool(new)

    def _files(self) -> dict[str, os.DirEntry[str]]:
        """Returns the run's trajectory files (recordings of episodes) on disk, as a dict by file name without
        suffix."""
        folder = self.trajectories
        omitted = NOT_TRAJECTORIES if folder == self.folder else ()
        with os.scandir(folder) as entries:
            entries_by_name = {e.name[: -len(SUFFIX)]: e for e in entries if _may_be_read(e)}
        return {name: entry for name, entry in entries_by_name.items() if name not in omitted}

    def _read_or_mark(self, path: Path) -> bool:
        """Reads the new lines of a trajectory file (the recording of an episode) into the index. If the file
        cannot be read, marks it as unreadable. Returns whether the index has changed."""
        self._db.execute("SAVEPOINT one")
        try:
            self._read_trajectory(path)
            return True
        except OSError:
            self._db.execute("ROLLBACK TO one")
            return self._mark_unreadable(path.stem)
        finally:
            self._db.execute("RELEASE one")

    def _mark_unreadable(self, name: str) -> bool:
        """Stores in the index that the trajectory file `name` cannot be read. The file then has the size -1
        in the index, so that every refresh tries to read it again.

        Returns whether the index has changed.
        """
        row = self._db.execute("SELECT id, size FROM files WHERE name = ?", [name]).fetchone()
        if row is not None and row["size"] < 0:
            return False
        if row is not None:
            self._drop(name, row["id"])
            self._db.execute("DELETE FROM files WHERE id = ?", [row["id"]])
        cursor = self._db.execute(
            "INSERT INTO files (name, size, mtime_ns, offset, seal, problems) VALUES (?, -1, 0, 0, ?, 1)",
            [name, b""],
        )
        self._db.execute(
            f"INSERT INTO episodes VALUES ({', '.join('?' * (1 + len(FACTS)))})",
            [cursor.lastrowid, *asdict(Facts()).values()],
        )
        return True

    def marks(self) -> dict[str, Mark]:
        """Returns up to which position each file has been read into the index, as a dict by file name without
        suffix.

        `metrics.jsonl` and `groups.jsonl` have the names `/metrics` and `/groups`.
        """
        rows = self.ask("SELECT name, size, mtime_ns, offset, seal FROM files")
        return {row[0]: Mark(*row[1:]) for row in rows}

    def _forget(self, marks: Mapping[str, Mark], files: Collection[str]) -> bool:
        """Removes those files from the index that no longer exist in the run's folder. Returns whether there
        were any.

        The keys of `marks` are the names of all files in the index. `files` are the names of the existing
        trajectory files.
        """
        logs = {f"/{kind}" for kind in LOGS if (self.folder / f"{kind}.jsonl").is_file()}
        deleted = [name for name in marks if name not in files and name not in logs]
        if not deleted:
            return False
        with self._writing():
            for name in deleted:
                (file,) = self._db.execute("SELECT id FROM files WHERE name = ?", [name]).fetchone()
                self._drop(name, file)
                self._db.execute("DELETE FROM files WHERE id = ?", [file])
        return True

    def _drop(self, name: str, file: int) -> None:
        if name.startswith("/"):
            self._db.execute("DELETE FROM log WHERE kind = ?", [name[1:]])
            if name == "/groups":
                self._db.execute("DELETE FROM members")
        for table in ("episodes", "lines"):
            self._db.execute(f"DELETE FROM {table} WHERE file = ?", [file])

    def _opened_tail(self, name: str, path: Path) -> tuple[Tail, int, int]:
        """Prepares to read what was added to a file of the run since the file was last read into the index.
        Returns three values: an iterable over the new lines, none of which is read yet; the file's id in the
        index; and the number of earlier lines that could not be used, because they are malformed or lack a
        required field.

        If the file was rewritten, removes its old content from the index. The iterable then yields the lines
        from the start of the file, and the number is 0.
        """
        row = self._db.execute("SELECT * FROM files WHERE name = ?", [name]).fetchone()
        mark = Mark(*row[2:6]) if row else Mark()
        tail = Tail(path, mark)
        if row is None:
            cursor = self._db.execute("INSERT INTO files (name) VALUES (?)", [name])
            return tail, int(cursor.lastrowid or 0), 0
        if tail.from_start:
            self._drop(name, row["id"])
        return tail, row["id"], 0 if tail.from_start else row["problems"]

    def _close_tail(self, tail: Tail, file: int, problems: int) -> None:
        mark = tail.mark
        self._db.execute(
            "UPDATE files SET size = ?, mtime_ns = ?, offset = ?, seal = ?, problems = ? WHERE id = ?",
            [mark.size, mark.mtime_ns, mark.offset, mark.seal, problems, file],
        )

    def _read_trajectory(self, path: Path) -> None:
        tail, file, problems = self._opened_tail(path.stem, path)
        row = self._db.execute(
            f"SELECT {', '.join(FACTS)} FROM episodes WHERE file = ?", [file]
        ).fetchone()
        facts = Facts(*row) if row else Facts()
        places, unusable = read_lines(facts, tail)
        self._db.executemany(
            f"INSERT INTO lines VALUES ({', '.join('?' * (1 + len(PLACES)))})",
            [(file, *asdict(place).values()) for place in places],
        )
        self._db.execute(
            f"INSERT OR REPLACE INTO episodes VALUES ({', '.join('?' * (1 + len(FACTS)))})",
            [file, *asdict(facts).values()],
        )
        self._close_tail(tail, file, problems + unusable)

    def _read_log(self, kind: str, path: Path) -> None:
        tail, file, problems = self._opened_tail(f"/{kind}", path)
        for line in tail:
            step = whole(line.data.get("step")) if line.data else None
            if line.data is None or step is None:
                problems += 1
                continue
            self._db.execute(
                "INSERT INTO log (kind, step, data) VALUES (?, ?, ?)",
                [kind, step, json.dumps(line.data)],
            )
            if kind == "groups":
                self._add_members(step, line.data)
        self._close_tail(tail, file, problems)

    def _add_members(self, step: int, group: dict[str, Any]) -> None:
        episodes = group.get("episodes")
        for one in episodes if isinstance(episodes, list) else []:
            if isinstance(one, dict) and (episode := text(one.get("episode"))) is not None:
                self._db.execute(
                    "INSERT OR REPLACE INTO members VALUES (?, ?, ?, ?)",
                    [episode, step, integer(group.get("group")), number(one.get("advantage"))],
                )

    def ask(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        """Runs an SQL query on the index and returns the rows. Raises InfrastructureError if SQLite fails."""
        with self._lock, translated(self.folder):
            return self._db.execute(query, values).fetchall()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Context manager: runs the block as one transaction of the index's database. If the block raises an
        error, the changes are undone."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:  # Ctrl-C too: others wait for this transaction
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")


def _may_be_read(entry: os.DirEntry[str]) -> bool:
    """Returns whether a directory entry is a regular file with the suffix `.jsonl` that is not hidden, and
    whose name is valid UTF-8."""
    if not entry.name.endswith(SUFFIX) or entry.name.startswith("."):
        return False
    try:
        entry.name.encode()
        return entry.is_file()
    except (UnicodeEncodeError, OSError):
        return False
