"""The files through which Agent0's curriculum training asks `air serve evaluate`: a client writes questions
with answers into a JSON file on a disk that it shares with the server, and reads the scores from a second
file, which the server writes beside the first.

    NAME.json            [{"question", "answer"}, …]
    NAME_results.json    [{"question", "answer", "score", "all_outputs", "extracted_results"}, …]

All files are in one folder, which the user of the server chooses. The server trusts whoever can create links
in this folder; it does not trust the names in requests.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from air.config import first_problem
from air.errors import ConfigError, InfrastructureError
from air.paths import write_whole
from air.train.coevolve.evaluate_service import LARGEST_BODY, MOST_TASKS

SUFFIX = ".json"
_RESULTS_SUFFIX = "_results.json"
_ERRORS = {
    errno.ENOENT: (404, "there is no such file"),
    errno.ENOTDIR: (404, "there is no such file"),
    errno.ELOOP: (403, "is a symbolic link; name the file itself"),  # because of O_NOFOLLOW
    errno.ENAMETOOLONG: (400, "the name is too long"),
    errno.EACCES: (403, "the server may not read it; change its permissions"),
    errno.EPERM: (403, "the server may not read it; change its permissions"),
}
"""For each error of the operating system that is the client's: the HTTP status and the message."""
FileState = tuple[int, int, int, int]
"""The device, inode, modification time in nanoseconds, and size of a file. A file that replaces another
differs in one of them, and so does a file that was written again, unless this took place within one step of
the disk's clock (a few milliseconds) and kept the size."""


class FileRefused(Exception):
    """Error: a file cannot be used as the client asks. `status` is the HTTP status for the client, and the
    error's text says why."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Row(BaseModel):
    """A question and the answer of its proposer (the model that wrote it). Both are empty if the proposal was
    malformed. Further keys of a row are ignored, as in Agent0."""

    model_config = ConfigDict(frozen=True)

    question: str = ""
    answer: str = ""


@dataclass(frozen=True)
class Questions:
    """The `rows` of a file, and the `state` that the file had when they were read."""

    rows: Sequence[Row]
    state: FileState


_ROWS = TypeAdapter(Annotated[list[Row], Field(max_length=MOST_TASKS)])


@dataclass(frozen=True)
class RowFile:
    """A file with questions. `name` is its name in the request, `path` its path, and `results` the path of
    the file with its results."""

    name: str
    path: Path
    results: Path

    @property
    def results_name(self) -> str:
        """The name of the file with the results, in the form that the client used for `name`."""
        return _results_name(self.name)

    def remove_old_results(self) -> None:
        """Removes an older file with results, so that no client takes its scores for the new ones. Raises
        FileRefused if the file with the questions cannot be read, and InfrastructureError if the older
        results cannot be removed; then nothing is removed."""
        with self._opened():
            pass  # a repeated request, whose questions are gone, must not remove the results of the first
        self._remove_results()

    def _remove_results(self) -> None:
        try:
            self.results.unlink(missing_ok=True)
        except OSError as error:
            text = f"{self.results_name:.300}: the results cannot be removed: {error.strerror}"
            raise InfrastructureError(f"{text}; remove them yourself") from error

    def read(self) -> Questions:
        """Returns the rows of the file. Raises FileRefused if the file cannot be read or is malformed."""
        with self._opened() as number:
            # Before the rows are read: then a change during the reading is noticed at the end.
            state = _state(os.fstat(number))
            with os.fdopen(number, "rb", closefd=False) as file:
                data = file.read(LARGEST_BODY + 1)
        if len(data) > LARGEST_BODY:
            raise FileRefused(413, f"{self.name}: more than {LARGEST_BODY} bytes")
        try:
            return Questions(_ROWS.validate_json(data), state)
        except ValidationError as error:
            bad = first_problem(error, data, quote=False)
            raise FileRefused(400, f"{self.name}: {bad.message}") from None

    @contextmanager
    def _opened(self) -> Iterator[int]:
        """Context manager: yields a descriptor of the file. Does not follow a link, and does not wait for a
        pipe. Raises FileRefused if the file is not a regular one, or for an OSError in the block."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            number = os.open(self.path, flags)
            try:
                if not stat.S_ISREG(os.fstat(number).st_mode):
                    raise FileRefused(403, f"{self.name}: is not a regular file")
                yield number
            finally:
                os.close(number)
        except OSError as error:
            status, text = _ERRORS.get(error.errno or 0, (503, str(error.strerror)))
            raise FileRefused(status, f"{self.name:.300}: {text}") from error

    def finish(self, results: Sequence[dict[str, Any]], state: FileState) -> str:
        """Writes the file with the results atomically, and removes the file with the questions, as Agent0's
        service does. `state` is that of the questions that were read.

        Returns an empty string, or, if the file with the questions cannot be removed, a warning; the results
        are then stored nevertheless. Raises InfrastructureError if the results cannot be stored, and
        FileRefused if the file with the questions has changed since it was read. In both cases there is no
        file with results, and the questions remain.
        """
        try:
            write_whole(self.results, json.dumps(results, indent=4).encode())
        except OSError as error:
            text = f"{self.results_name}: the results cannot be stored: {error.strerror}"
            raise InfrastructureError(text) from error
        try:
            changed = self._changed(state)  # as late as possible, because the removal follows
            if not changed:
                self.path.unlink(missing_ok=True)
        except OSError as error:
            return f"{self.name} cannot be removed: {error.strerror}"
        if changed:
            self._remove_results()
            text = "has changed while its questions were answered, so the results are dropped; ask again"
            raise FileRefused(409, f"{self.name}: {text}")
        return ""

    def _changed(self, state: FileState) -> bool:
        """Returns whether the file with the questions is another one than that of `state`. A file that is
        gone has not changed: no client waits for other results."""
        try:
            return _state(os.lstat(self.path)) != state
        except FileNotFoundError:
            return False


def _state(status: os.stat_result) -> FileState:
    return (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)


class RowFiles:
    """The folder with the files of questions. Raises ConfigError if `folder` is not a folder, or the server
    may not create files in it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.expanduser().resolve()
        self._busy: set[Path] = set()
        if not self._folder.is_dir():
            raise ConfigError(
                f"{folder} is not a folder", where="--files", remedy="create it, or name another"
            )
        if not os.access(self._folder, os.R_OK | os.W_OK | os.X_OK):
            raise ConfigError(
                f"files cannot be read and created in {folder}",
                where="--files",
                remedy="change its permissions, or name another",
            )

    @contextmanager
    def claimed(self, name: str) -> Iterator[RowFile]:
        """Context manager: yields the file that a request names, by an absolute path or by a path in the
        folder. During the block, no other request of this server can have the same file. Raises FileRefused
        if the name is malformed or leads out of the folder, or if another request has the file."""
        file = self._find(name)
        if file.path in self._busy:
            raise FileRefused(409, f"{name}: another request works on this file")
        self._busy.add(file.path)
        try:
            yield file
        finally:
            self._busy.discard(file.path)

    def _find(self, name: str) -> RowFile:
        # The client, too, looks for the results at the name in which every `.json` is replaced.
        if name.count(SUFFIX) != 1 or not name.endswith(SUFFIX) or "\0" in name:
            text = f"name={name!r:.300}: a name must end in {SUFFIX}, and have it nowhere else"
            raise FileRefused(400, text)
        if name.endswith(_RESULTS_SUFFIX):
            text = f"name={name!r:.300}: a name must not end in {_RESULTS_SUFFIX}, as those of results do"
            raise FileRefused(400, text)
        path = self._folder / name
        try:
            folder = path.parent.resolve()
        except (OSError, RuntimeError) as error:
            raise FileRefused(400, f"name={name!r:.300}: cannot be followed ({error})") from None
        if not folder.is_relative_to(self._folder):
            text = f"name={name!r:.300}: is outside the folder of this server (--files)"
            raise FileRefused(403, text)
        return RowFile(name, folder / path.name, folder / _results_name(path.name))


def _results_name(name: str) -> str:
    return name.removesuffix(SUFFIX) + _RESULTS_SUFFIX
