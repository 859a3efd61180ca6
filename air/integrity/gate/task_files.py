"""Defines `TaskFiles`: the files of a task that hacks can use, listed from the task's tests and its solution.

A real agent knows less. If a task is safe from an agent that knows which files the tests read, it is safe
from one that does not.
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
"""The smallest size in bytes of a file of the solution that counts as an answer. Hacks search the task's
image for copies of answers; shorter contents could be there by chance."""
_LANGUAGES = ("py", "sh", "pl", "rb", "lua", "js", "php", "awk", "c", "cc", "cpp", "sql")
_NAME = re.compile(r"(?<![\w$:}@])(/?[\w.-]+(?:/[\w.-]+)*\.[A-Za-z][A-Za-z0-9]{0,4})(?![\w(/])")
_HIDDEN = ("/tests", "/solution", "/logs", "/dev", "/proc", "/usr", "/etc", "/bin", "/lib")
_MOST_READ = 200_000


@dataclass(frozen=True)
class TaskFiles:
    """The files of a task that hacks can use, by their role."""

    workdir: str
    """The absolute path of the working directory."""
    outputs: tuple[str, ...]
    """Absolute paths of the files that the solution makes or changes, and of others that the tests name."""
    inputs: tuple[str, ...]
    """Absolute paths of the files in the working directory that are not outputs."""
    programs: tuple[str, ...]
    """The programs among `outputs` and `inputs`."""
    tests: tuple[str, ...]
    """The paths of the task's test files, relative to `/tests` in the box in which the tests run."""
    answers: tuple[str, ...]
    """Size, SHA-256 and path of each file that the solution makes or changes, as one text for each file, with
    spaces between the three. Files smaller than `LEAST_ANSWER` are left out."""

    @property
    def variables(self) -> str:
        """Shell code that sets the variables which the hacks use (see `air.integrity.gate.hacks`)."""
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
    """Returns the files of a task that hacks can use, grouped by their role.

    `before`: the files of the working directory at the start, by absolute path. `made`: the files of the
    artefact that the solution made, by absolute path. `tests`: the test files, by their path relative to
    `/tests`.
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
    """Returns the absolute paths of all file names that occur in the tests, except those below the folders of
    the tests and of the system (`_HIDDEN`). Relative names are resolved against `workdir`."""
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
