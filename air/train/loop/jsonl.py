"""Appends to files of one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def append(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Appends rows.

    Raises:
        OSError: they could not be written; it names the file, which a full disk's own error does not.
    """
    try:
        with path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
