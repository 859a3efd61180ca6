"""Defines `TaskFiles`: the files of a Harbor task that hacks (scripts that try to earn a reward without doing
the work) can use. They are found by reading the task's tests and running its solution.

A real agent knows less. If a task is safe from an agent that knows which files the tests read, it is also
safe from an agent that does not know them.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

LEAST_ANSWER = 8
"""A file that the solution makes counts as an answer if it has at least this size in bytes. Hacks search the
task's image for copies of answers; shorter contents could be there by chance."""
_LANGUAGES = ("py", "sh", "pl", "rb", "lua", "js", "php", "awk", "c", "cc", "cpp", "sql")
_NAME = re.compile(r"(?<![\w$:}@])(/?[\w.-]+(?:/[\w.-]+)*\.[A-Za-z][A-Za-z0-9]{0,4})(?![\w(/])")
_HIDDEN = ("/tests", "/solution", "/logs", "/dev", "/proc", "/usr", "/etc", "/bin", "/lib")
_MOST_READ = 200_000


@dataclass(frozen=True)
class TaskFiles:
    """The files of a Harbor task that hacks (scripts that try to earn a reward without doing the work) can
    use, grouped by their role."""

    workdir: str
    """The absolute path of the working directory."""
    outputs: tuple[str, ...]
    """The absolute paths of the files that the solution makes or changes, and of other files that the tests
    name."""
    inputs: tuple[str, ...]
    """Absolute paths of the files in the working directory that are not outputs."""
    programs: tuple[str, ...]
    """The absolute paths of the programs among `outputs` and `inputs`."""
    tests: tuple[str, ...]
    """The paths of the task's test files, relative to `/tests` in the box in which the tests run."""
    answers: tuple[str, ...]
    """One string for each file that the solution makes or changes: its size, SHA-256 and path, separated by
    spaces. Files with fewer than `LEAST_ANSWER` bytes are left out."""

    @property
    def variables(self) -> str:
        """Shell code that sets the variables which the hacks use, such as `OUTPUTS`. The module
        `air.integrity.gate.hacks` describes them."""
        lists = {
            "OUTPUTS": self.outputs,
            "INPUTS": self.inputs,
            "PROGRAMS": self.programs,
            "TESTS": self.tests,
            "ANSWERS": self.answers,
        }
        lines = [f"{name}={shlex.quote(_joined(items))}" for name, items in lists.items()]
        return "\n".join([f"WORKDIR={shlex.quote(self.workdir)}", *lines]) + "\n"


def task_files(
    workdir: str,
    before: Mapping[str, bytes],
    made: Mapping[str, bytes],
    tests: Mapping[str, Path],
) -> TaskFiles:
    """Returns the files of a Harbor task that hacks can use, grouped by their role.

    `workdir`: the absolute path of the working directory. `before`: the contents of the files in it at the
    start, by absolute path. `made`: the contents of the files that the solution made, by absolute path.
    `tests`: the test files on this machine, by their path relative to `/tests` in the box.
    """
    changed = {path: data for path, data in made.items() if before.get(path) != data}
    outputs = sorted({*changed, *(path for path in named(tests, workdir) if path not in before)})
    inputs = sorted(set(before) - set(outputs))
    programs = [
        path
        for path in (*outputs, *inputs)
        if _is_program(path, changed.get(path, before.get(path, b"")))
    ]
    return TaskFiles(
        workdir=workdir,
        outputs=tuple(outputs),
        inputs=tuple(inputs),
        programs=tuple(programs),
        tests=tuple(sorted(tests)),
        answers=tuple(
            f"{len(data)} {hashlib.sha256(data).hexdigest()} {path}"
            for path, data in sorted(changed.items())
            if len(data) >= LEAST_ANSWER
        ),
    )


def named(tests: Mapping[str, Path], workdir: str) -> set[str]:
    """Returns the absolute paths of all files whose names occur in the text of the test files. Leaves out
    files below the folders of the tests and of the system (`_HIDDEN`). Relative names count from
    `workdir`."""
    paths = set()
    for file in tests.values():
        text = file.read_bytes()[:_MOST_READ].decode("utf-8", "replace")
        for name in _NAME.findall(text):
            path = posixpath.normpath(posixpath.join(workdir, name))
            if not any(path.startswith(f"{hidden}/") for hidden in _HIDDEN):
                paths.add(path)
    return paths


def _is_program(path: str, data: bytes) -> bool:
    name = posixpath.basename(path)
    return (
        name.rpartition(".")[2] in _LANGUAGES
        or name in ("Makefile", "makefile")
        or data.startswith(b"#!")
    )


def _joined(items: Iterable[str]) -> str:
    return "\n".join(item for item in items if "\n" not in item)
