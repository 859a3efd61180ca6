"""Runs the co-evolution of a file, and kills itself (SIGKILL) at one point.

    killed_coevolution.py FILE "[round 1/1] answers"      when a line begins so
    killed_coevolution.py FILE "end of round1/proposer"   when this training has ended, before its return

Every line for the user is a line of standard output.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from air.cli.runs import resumable
from air.cli.runs.rl import logged
from air.train.coevolve.coevolve_run import CoevolveRun
from air.train.coevolve.plan import plan
from air.train.config import overrides
from air.train.config.coevolve_config import CoevolveConfig


def main() -> None:
    file, point = sys.argv[1:]

    def say(line: str) -> None:
        print(line, flush=True)
        if line.startswith(point):
            os.kill(os.getpid(), signal.SIGKILL)

    @contextmanager
    def watched(folder: Path) -> Iterator[Callable[[], None]]:
        with logged(folder) as open_log:
            yield open_log
        if point == f"end of {folder.parent.name}/{folder.name}":
            os.kill(os.getpid(), signal.SIGKILL)

    planned = plan(overrides.build(CoevolveConfig, overrides.parse(["@", file], CoevolveConfig)))
    resumable.completed(planned, CoevolveRun(planned, say, watched).run)


if __name__ == "__main__":
    main()
