"""The command line and the result of a grader; a task's `grade.py` brings the function that measures.

Exit 0: --out holds {"metrics": {NAME: NUMBER}}. Exit 3: it holds {"message": TEXT}, which the agent reads,
and `"remember": false` if the same artefact might do better on a faster machine. Every other end is a
failure of the grader.
"""

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
DATA = HERE / "data"
"""What the task's data.py wrote for the grader."""
BAD_ARTEFACT = 3
_ARG_START, _ARG_END = 45, 46
"""Positions of two addresses in /proc/self/stat, counted from the field after the program's name."""
Grade = Callable[[Path, str, int], dict[str, float]]
"""Measures an artefact (a folder) on a split ("val" or "test") under a seed; returns the metrics."""


class BadArtefact(Exception):
    """The artefact cannot be graded. The agent reads the text, so it must not carry hidden data."""

    def __init__(self, message: str, *, remember: bool = True) -> None:
        super().__init__(message)
        self.remember = remember
        """Whether it would fail so again; a wall clock that ran out depends on the machine."""


def run(grade: Grade) -> int:
    """Grades as the command line says, writes the result, and returns the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--artefact", type=Path, required=True)
    parser.add_argument("--split", choices=("val", "test"), required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if os.environ.get("AIR_SECOND_UID"):
        HERE.chmod(0o700)  # agent code runs as another user, who must not read what is hidden
        _hide_arguments()  # nor which split is graded
    try:
        result = {"metrics": grade(args.artefact, args.split, args.seed)}
    except BadArtefact as error:
        args.out.write_text(json.dumps({"message": str(error), "remember": error.remember}))
        return BAD_ARTEFACT
    args.out.write_text(json.dumps(result))
    return 0


def described(value: object) -> str:
    """The kind of a wrong answer. Agent code that saw hidden data chose it, so it is not quoted."""
    if value is None:
        return "None"
    kind = type(value).__name__
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"


def read_bytes(path: Path, most: int | None = None) -> bytes:
    """The bytes of one file of the artefact.

    Raises:
        BadArtefact: the file cannot be read, or is larger than `most` bytes.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadArtefact(f"{path.name} cannot be read: {error.strerror}") from None
    if most is not None and len(data) > most:
        size = f"{most // 1_000_000} MB" if most >= 1_000_000 else f"{most // 1000} kB"
        raise BadArtefact(f"{path.name} is larger than {size}")
    return data


def _hide_arguments() -> None:
    """Overwrites this process's arguments, which every user could read in /proc."""
    import ctypes  # takes a while to import, and few graders need it

    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
    ctypes.memset(start, 0, end - start)
