"""The program that runs notebook cells in a box, where no kernel starts."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

from air.serve.fusion.kernel_driver import NOT_STARTED


def test_without_a_kernel_no_cell_runs_and_the_exit_status_says_so(tmp_path: Path) -> None:
    request, result = tmp_path / "request", tmp_path / "result"
    fields = {"cells": ["1"], "cell_timeout": 1, "total_timeout": 1, "most_output": 100}
    request.write_text(json.dumps(fields))
    driver = str(files("air.serve.fusion").joinpath("kernel_driver.py"))
    # -S: whatever packages this Python has, the program sees none
    argv = [sys.executable, "-I", "-S", driver, str(request), str(result)]
    done = subprocess.run(argv, capture_output=True, check=False, timeout=60)
    assert done.returncode == NOT_STARTED
    assert b"No module named 'jupyter_client'" in done.stderr
    assert not result.exists()
