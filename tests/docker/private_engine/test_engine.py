"""The private engine itself: it touches nothing of the machine, and ends with whoever started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docker.private_engine import supervisor
from tests.docker.private_engine.engine import problem
from tests.docker.private_engine.supervisor import until

pytestmark = pytest.mark.docker
ROOT = Path(__file__).parents[3]
OWNER = """
import tempfile, time
from pathlib import Path
from tests.docker.private_engine.engine import Engine

engine = Engine(Path(tempfile.mkdtemp(prefix="air-engine-")))
engine.start()
print(engine.folder, flush=True)
time.sleep(600)
"""


def _machine() -> tuple[list[str], str, list[str]]:
    """What a dockerd could change: interfaces, mounts, and the sockets in /run."""
    networks = sorted(os.listdir("/sys/class/net"))  # noqa: PTH208
    sockets = sorted(str(path) for path in Path("/run").glob("docker*"))
    mounts = Path("/proc/self/mounts").read_text()
    return networks, "\n".join(row for row in mounts.splitlines() if "air-engine" in row), sockets


@pytest.mark.skipif(bool(problem()), reason=problem())
def test_it_ends_with_its_owner_and_leaves_the_machine_as_it_was() -> None:
    before = _machine()
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    with owner:
        assert owner.stdout is not None
        folder = Path(owner.stdout.readline().strip())
        assert (folder / "docker.sock").is_socket()
        assert _machine() == before
        owner.send_signal(signal.SIGKILL)
    until(lambda: not folder.exists(), "an end of the engine")
    assert not supervisor.cgroups(folder.name)
    assert _machine() == before
