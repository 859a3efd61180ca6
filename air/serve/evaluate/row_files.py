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

from air.errors import ConfigError, InfrastructureError
from air.paths import write_whole
from air.train.coevolve.evaluate_service import LARGEST_BODY, MOST_TASKS

SUFFIX = ".json"
_ERRORS = {
    errno.ENOENT: (404, "there is no such file"),
    errno.ENOTDIR: (404, "there is no such file"),
    errno.ELOOP: (403, "is a symbolic link; name the file itself"),  # because of O_NOFOLLOW
    errno.ENAMETOOLONG: (400, "the name is too long"),
}
"""For each error of the operating system that is the client's: the HTTP status and the message."""


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

    def read(self) -> list[Row]:
        """Returns the rows of the file, and removes an older file with results, so that a client never takes
        those for the new ones. Raises FileRefused if the file cannot be read or is malformed."""
        try:
            data = self._bytes()
            self.results.unlink(missing_ok=True)
        except OSError as error:
            status, text = _ERRORS.get(error.errno or 0, (503, str(error.strerror)))
            raise FileRefused(status, f"{self.name:.300}: {text}") from error
        if len(data) > LARGEST_BODY:
            raise FileRefused(413, f"{self.name}: more than {LARGEST_BODY} bytes")
        try:
            return _ROWS.validate_json(data)
        except ValidationError as error:
            first = json.loads(error.json(include_url=False, include_input=False))[0]
            where = "".join(f" {part}:" for part in first["loc"])
            raise FileRefused(400, f"{self.name}:{where} {first['msg']}") from None

    def _bytes(self) -> bytes:
        """Returns the bytes of the file, but at most one more than a file may have. Does not follow a link,
        and does not wait for a pipe."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        number = os.open(self.path, flags)
        try:
            if not stat.S_ISREG(os.fstat(number).st_mode):
                raise FileRefused(403, f"{self.name}: is not a regular file")
            with os.fdopen(number, "rb", closefd=False) as file:
                return file.read(LARGEST_BODY + 1)
        finally:
            os.close(number)

    def finish(self, results: Sequence[dict[str, Any]]) -> None:
        """Writes the file with the results atomically, and removes the file with the questions, as Agent0's
        service does. Raises InfrastructureError if one of these fails; then there is no file with results."""
        try:
            write_whole(self.results, json.dumps(results, indent=4).encode())
            try:
                self.path.unlink(missing_ok=True)
            except OSError:
                self.results.unlink(missing_ok=True)
                raise
        except OSError as error:
            text = f"{self.results_name}: the results cannot be stored: {error.strerror}"
            raise InfrastructureError(text) from error


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
    return f"{name.removesuffix(SUFFIX)}_results{SUFFIX}"
