"""How an image without Python is told from another failure of a start, by the words of the engine."""

from __future__ import annotations

import pytest

from air.sandbox.docker.engine_errors import lacks_python


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('container_linux.go:380: starting container process caused: exec: "python3": executable '
         "file not found in $PATH: unknown", '"python3": executable file not found in $PATH'),
        ("crun: executable file `python3` not found in $PATH: No such file or directory: OCI runtime "
         "attempted to invoke a command that was not found", "`python3` not found in $PATH"),
        ("a box did not start: box air-1: its stream ended (Python 3.6.9 is older than 3.8)",
         "Python 3.6.9 is older than 3.8"),
        ("a box did not start: box air-1: its stream ended (ModuleNotFoundError: No module named "
         "'ctypes')", "ModuleNotFoundError: No module named 'ctypes'"),
        ("a box did not start: box air-1: its stream ended", None),
        ('exec: "sh": executable file not found in $PATH: unknown', None),
        ("fork/exec: resource temporarily unavailable: unknown", None),
    ],
)  # fmt: skip
def test_an_image_without_python_is_told_from_other_failures(text: str, why: str | None) -> None:
    assert lacks_python(text) == why
