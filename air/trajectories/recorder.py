"""Writes trajectory files; `air.trajectories.schema` documents every field.

A trajectory is the file `<folder>/<episode_id>.jsonl`, which only one process writes. Each line is `{"v": 2,
"type": …, "t": Unix time in seconds, …}` and is flushed at once, so a crash loses at most the turn that is
running. The folder can also contain `artefacts/` (see `air.trajectories.artefacts`), and `traces/<trace
id>.jsonl`, the episodes' traces (records with tokens, by the library `verifiers`). In version 1 of the
format, `observation` was the text that the model received, and `call`, `shown`, `diff`, `tokens` and the
settings of the run did not exist.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TextIO

from air.errors import InfrastructureError
from air.trajectories.schema import VERSION

Kind = Literal["start", "step", "validate", "end"]


class Recorder:
    """Writes the trajectory file `<folder>/<episode_id>.jsonl` line by line. If `folder` is None, writes
    nothing.

    Use it as a context manager, which closes the file. The constructor and `write` raise InfrastructureError
    if the disk is full or the folder is not writable, and the constructor if the file already exists.
    """

    def __init__(self, folder: Path | None, episode_id: str) -> None:
        self.episode = episode_id
        self.path = None if folder is None else folder / f"{episode_id}.jsonl"
        self._file: TextIO | None = None
        if self.path is not None:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self.path.open("x", encoding="utf-8")
            except OSError as error:
                raise InfrastructureError(f"cannot record to {self.path}: {error}") from error

    def write(self, kind: Kind, *, t: float | None = None, **fields: Any) -> None:
        """Appends a line of the type `kind`, with the further fields `fields`, to the trajectory file. `t` is
        the line's Unix time in seconds (None: now). Does nothing if there is no folder or the file is closed.
        Raises InfrastructureError if the file cannot be written."""
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
