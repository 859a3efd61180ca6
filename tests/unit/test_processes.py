"""What `tests/conftest.py` does for every test, shown by a test run of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = """
import os, signal, subprocess
import pytest

STARTED = []

@pytest.fixture
def grace_seconds():
    return 0.0

@pytest.mark.parametrize("passes", [True, False])
@pytest.mark.parametrize("leads", [True, False])
def test_leaves_a_process(passes, leads):
    pipe = subprocess.PIPE
    process = subprocess.Popen(["cat", "-"], stdin=pipe, stdout=pipe, start_new_session=leads)
    STARTED.append(process)
    process.stdin.write(b"up\\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"up\\n"
    assert passes

def test_nothing_runs():
    assert len(STARTED) == 4
    for process in STARTED:
        assert process.poll() == 0  # unknown: another has waited for it
        with pytest.raises(ProcessLookupError):
            os.kill(process.pid, 0)

def test_ends_what_it_starts():
    with subprocess.Popen(["sleep", "600"]) as process:
        process.kill()

def test_ctrl_c_means_the_same():
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
"""


@pytest.mark.slow
def test_a_test_leaves_nothing_running_and_a_background_run_obeys_ctrl_c(tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "test_it.py").write_text(TESTS)
    options = ("-q", "-p", "no:cacheprovider", "-n", "1", "--import-mode=importlib")
    outer = ("PYTEST_", "AIR_FAILED_FILE")  # variables that mean the run that plays this test
    env = {name: value for name, value in os.environ.items() if not name.startswith(outer)}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(tmp_path)],
        env=env | {"PYTHONPATH": str(ROOT)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines().count("the test left running: cat -") == 4, done.stdout
    assert "2 failed, 5 passed, 4 errors" in done.stdout, done.stdout
