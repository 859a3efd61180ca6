"""Writes and reads trajectory files; `air.trajectories.trajectory` documents every field.

A trajectory is the file `<folder>/<episode_id>.jsonl`, which only one process writes. Each line is
`{"v": 2, "type": …, "t": unix seconds, …}` with type `start`, `step`, `validate` or `end`. Each line is
flushed at once, so a crash loses at most the running step. `read` returns unknown fields too and skips a
half-written last line.

A run can also store two other things in the same folder, to which the lines refer: the graded files in
`artefacts/` (see `air.trajectories.artefacts`), and in `traces/<trace id>.jsonl` the episode as verifiers
records it, with tokens and logprobs.

In version 1 of the format, the field `observation` was the text that the model received. The fields `call`,
`shown`, `diff` and `tokens` and the settings of the run did not exist.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TextIO

from air.errors import ConfigError, InfrastructureError, MissingError, boundary

VERSION = 2
Kind = Literal["start", "step", "validate", "end"]


class Recorder:
    """Writes one trajectory file line by line. As a context manager, it closes the file after the block.

    Args:
        folder: the folder of the file; if None, nothing is recorded.
        episode_id: the file's name without its ending.

    Raises:
        InfrastructureError: the disk is full or the folder cannot be written.
    """

    def __init__(self, folder: Path | None, episode_id: str) -> None:
        self.path = None if folder is None else folder / f"{episode_id}.jsonl"
        self._file: TextIO | None = None
        if self.path is not None:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self.path.open("x", encoding="utf-8")
            except OSError as error:
                raise InfrastructureError(f"cannot record to {self.path}: {error}") from error

    def write(self, kind: Kind, *, t: float | None = None, **fields: Any) -> None:
        """Appends one line to the trajectory.

        Args:
            kind: the line's type.
            t: the time of the event, in seconds since the epoch; by default, the current time.
            fields: the line's other fields.
        """
        if self._file is None:
            return
        at = round(time.time() if t is None else t, 3)
        line = {"v": VERSION, "type": kind, "t": at, **fields}
        text = json.dumps(line, ensure_ascii=False, allow_nan=False)
        try:
            # The output of an agent's program can contain lone surrogates, which UTF-8 cannot encode.
            self._file.write(text.encode("utf-8", "replace").decode() + "\n")
            self._file.flush()
        except OSError as error:
            raise InfrastructureError(f"cannot record to {self.path}: {error}") from error

    def close(self) -> None:
        """Closes the trajectory file. Does nothing if the file is already closed or nothing is recorded."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()


def trajectory_files(path: Path) -> list[Path]:
    """Returns the trajectory files at a path, sorted by name.

    Args:
        path: a trajectory file, a run's folder (with a folder `trajectories`), or a folder of trajectories.

    Raises:
        MissingError: there is no trajectory at `path`.
    """
    if path.is_file():
        return [path]
    inner = path / "trajectories"
    files = sorted((inner if inner.is_dir() else path).glob("*.jsonl"))
    if not files:
        raise MissingError(
            "has no trajectories", where=str(path), remedy="name a run's folder, or its record_dir"
        )
    return files


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Reads a trajectory file and yields each line as a dictionary. A half-written last line is skipped.

    Raises:
        ConfigError: the file cannot be read, a line is not a JSON object, or the version of a line is newer
            than this program.
    """
    with (
        boundary(ConfigError, f"cannot read {path}", OSError),
        path.open(encoding="utf-8", errors="replace") as file,
    ):
        lines = file.readlines()
    for number, text in enumerate(lines, start=1):
        try:
            line = json.loads(text)
        except (ValueError, RecursionError) as error:
            if number == len(lines) and isinstance(error, json.JSONDecodeError):
                return
            raise ConfigError("not JSON", where=f"{path}:{number}") from None
        if not isinstance(line, dict) or not isinstance(line.get("v", 0), int):
            raise ConfigError("not a line of a trajectory", where=f"{path}:{number}")
        if line.get("v", 0) > VERSION:
            raise ConfigError(
                f"trajectory version {line['v']} is newer than this air reads ({VERSION})",
                where=f"{path}:{number}",
                remedy="update air",
            )
        yield line
