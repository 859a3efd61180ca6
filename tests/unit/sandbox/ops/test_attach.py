"""What a person's command in a container bounds itself to, under the shells that are here."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from air.sandbox.ops.container_exec import BOUND

SHELLS = [
    argv
    for argv in (["sh"], ["dash"], ["bash", "--posix"], ["busybox", "sh"])
    if shutil.which(argv[0])
]


@pytest.mark.parametrize("argv", SHELLS, ids=" ".join)
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("ulimit -Sc 0", "4096 4096 0 0"),
        ("ulimit -Sn 99", "4096 4096 0 0"),
        ("ulimit -Sn 300; ulimit -Hn 300; ulimit -Sc 0; ulimit -Hc 0", "300 300 0 0"),
        ("ulimit -Sn 200; ulimit -Hn 300", "200 300 0 0"),
    ],
)
def test_a_shell_bounds_itself_and_what_it_starts(argv: list[str], before: str, after: str) -> None:
    tell = "echo $(ulimit -Sn) $(ulimit -Hn) $(ulimit -Sc) $(ulimit -Hc)"
    script = f'{before}\n{BOUND}\nsh -c "$0"'
    done = subprocess.run([*argv, "-c", script, tell], capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == (after, "")
