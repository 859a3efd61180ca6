"""Measures how long one trial of a Harbor task takes in air and in Harbor's own package: `make bench-harbor`.

Both programs play the same ten small tasks with the reference solution, one after the other, in the same run
of this benchmark. A trial consists of a box of the task's image, the solution, a fresh box with the declared
artefacts, and the tests. Images are built before. Harbor uses its own Docker environment if `docker compose`
is installed, otherwise one that uses the plain `docker` command. The time that a program needs to start and
to import its packages is not counted.

    python -m bench.harbor --rounds 3
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.harbor.languages import LANGUAGES
from tests.harbor_package import ours

BAR = 0.5
"""The largest allowed ratio of air's time to Harbor's time; above it, the benchmark exits with status 1."""
TASKS = 10
STOCK = Path(ours.__file__).with_name("stock.py")


def of_harbor(paths: Sequence[Path], out: Path) -> dict[str, tuple[float, float]]:
    """Plays the tasks in Harbor; returns the reward and the seconds of each task's trial, by the task's
    name."""
    argv = [os.environ["AIR_HARBOR_PYTHON"], str(STOCK), "trials", "oracle", str(out)]
    ended = subprocess.run([*argv, *map(str, paths)], stdout=subprocess.PIPE, text=True, check=True)
    lines = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    if failed := [line for line in lines if line["error"]]:
        raise SystemExit(f"Harbor failed on {failed[0]['path']}: {failed[0]['error']}")
    return {Path(one["path"]).name: (one["rewards"]["reward"], one["seconds"]) for one in lines}


def main() -> int:
    parser = argparse.ArgumentParser(description="Times trials of Harbor tasks.")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of all tasks (3)")
    parser.add_argument("--tasks", type=int, default=TASKS, help=f"the first tasks ({TASKS})")
    parser.add_argument("--report", type=Path, default=Path("build/bench-harbor.json"))
    args = parser.parse_args()
    sides: dict[str, list[dict[str, tuple[float, float]]]] = {"air": [], "harbor": []}
    with tempfile.TemporaryDirectory(prefix="air-bench-harbor-") as place:
        root = Path(place)
        paths = ours.with_image(LANGUAGES, root / "tasks")[: args.tasks]
        for number in range(args.rounds):
            grades = root / f"grades-{number}"
            sides["air"].append(asyncio.run(ours.trials("oracle", paths, grades)))
            sides["harbor"].append(of_harbor(paths, root / f"trials-{number}"))
    rewards = {
        (n, reward) for side in sides.values() for one in side for n, (reward, _) in one.items()
    }
    if len(rewards) != len(paths):
        raise SystemExit(f"the rewards differ: {sorted(rewards)}")
    medians = {
        side: {name: statistics.median(one[name][1] for one in rounds) for name in rounds[0]}
        for side, rounds in sides.items()
    }
    means = {side: statistics.fmean(times.values()) for side, times in medians.items()}
    table = Table("task", "air, s", "Harbor, s", "share")
    for name, seconds in medians["air"].items():
        theirs = medians["harbor"][name]
        table.add_row(name, f"{seconds:.2f}", f"{theirs:.2f}", f"{seconds / theirs:.2f}")
    share = means["air"] / means["harbor"]
    table.add_row("mean", f"{means['air']:.2f}", f"{means['harbor']:.2f}", f"{share:.2f}")
    Console().print(table)
    args.report.parent.mkdir(parents=True, exist_ok=True)
    args.report.write_text(json.dumps({"rounds": sides, "medians": medians, "share": share}) + "\n")
    print(f"{args.report} has every trial; at most {BAR} of Harbor's time is asked")
    return 0 if share <= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
