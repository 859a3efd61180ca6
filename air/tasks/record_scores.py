"""Writes newly measured scores of a task's reference solutions (solvers) into the task's files `solvers.toml`
and `task.toml`, for `air tasks check`.

Only the baseline's score is written to `task.toml`. Comments, order and layout of both files are preserved.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path

from air.config import validate
from air.errors import ConfigError
from air.tasks.check import Checked, Solvers
from air.tasks.spec import TaskSpec

_SOLVER = re.compile(r"^\[\[solver\]\]", re.MULTILINE)


def record(task: TaskSpec, rows: Sequence[Checked]) -> None:
    """Writes the scores in `rows`, the results of `air.tasks.check.check`, into the task's files
    `solvers.toml` and `task.toml`.

    Raises ConfigError, and changes neither file, if a reference solution has no score, the task is MLGym's, a
    changed file would be invalid, or a score to be replaced is not on a line of its own.
    """
    if task.source is not None:
        raise ConfigError("its solvers ship with air: nothing to record", where=f"task {task.id}")
    if failed := [row for row in rows if row.val is None]:
        raise ConfigError(f"{failed[0].solver}: {failed[0].problem}", where=f"task {task.id}")
    head, *parts = _SOLVER.split(task.solvers.read_text(encoding="utf-8"))
    if len(parts) != len(rows):
        raise ConfigError("not every solver begins with [[solver]]", where=str(task.solvers))
    text = head
    for row, part in zip(rows, parts, strict=True):
        for key, value in (("val", row.val), ("test", row.test)):
            part = _set(
                part if _has(part, key) else _with_empty_score(part, key), key, value, task.solvers
            )
        text += "[[solver]]" + part
    validate(Solvers, tomllib.loads(text), where=str(task.solvers))
    declared = task.folder / "task.toml"
    changed = _set(declared.read_text(encoding="utf-8"), "baseline", rows[0].val, declared)
    validate(TaskSpec, tomllib.loads(changed), where=str(declared))
    task.solvers.write_text(text, encoding="utf-8")
    declared.write_text(changed, encoding="utf-8")


def _has(part: str, key: str) -> bool:
    return key in tomllib.loads(part)


def _with_empty_score(part: str, key: str) -> str:
    """Returns `part`, the TOML text of one reference solution, with a line such as `val = 0.0` added at its
    end, so that the line exists when the score in it is replaced by the new one. `key` is the score's name,
    `val` or `test`. The text must not have such a line yet."""
    body = part.rstrip("\n")
    return f"{body}\n{key} = 0.0{part[len(body) :] or chr(10)}"


def _set(text: str, key: str, value: float | None, file: Path) -> str:
    changed, count = re.subn(rf"(?m)^{key} *=.*$", f"{key} = {value!r}", text)
    if count != 1:
        raise ConfigError(f"`{key}`: is not on one line of its own", where=str(file))
    return changed
