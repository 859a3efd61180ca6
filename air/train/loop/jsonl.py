"""Appends JSON objects to a file, one on each line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def append(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Appends each dict of `rows` to the file at `path`, as one line of JSON.
    Raises OSError, which names the file, if a row could not be written, as on a full disk."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
