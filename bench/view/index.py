"""Measures the speed of the viewer's index over 10,000 episodes, and over one trajectory of 100 MB.

    python -m bench.view.index [--episodes N] [--megabytes M]

Writes the runs into a temporary folder, then prints one line for each measurement: the first reading, a
refresh without new data, a refresh after one more episode, pages of filtered and sorted episodes, and jumps
and steps in the large trajectory. The peak memory is that of this process.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from air.trajectories import VERSION
from air.view.index.episode_file import scan
from air.view.index.run_index import SORTS, Filter, RunIndex

TASKS = ("titanic", "digits", "prisonersDilemma", "cartPole")


def main() -> None:
    """Runs all measurements and prints them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--megabytes", type=int, default=100)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        os.environ["AIR_CACHE"] = str(root / "cache")
        many_episodes(root / "many", args.episodes)
        one_large(root / "large", args.megabytes)
    said("peak memory", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "MB")


def many_episodes(folder: Path, count: int) -> None:
    """Writes a run of `count` short episodes, and measures the viewer's index over it."""
    rng = random.Random(0)
    (folder / "trajectories").mkdir(parents=True)
    for number in range(count):
        write(folder / "trajectories" / f"{number:032x}.jsonl", rng, turns=4, output=600)
    size = sum(path.stat().st_size for path in (folder / "trajectories").iterdir())
    print(f"{count} episodes, {size / 1e6:.0f} MB in {folder.name}/")
    index = RunIndex(folder)
    said("first reading", once(index.file.refresh), "s")
    said("refresh, nothing new", median(index.file.refresh), "s")
    write(folder / "trajectories" / ("f" * 32 + ".jsonl"), rng, turns=4, output=600)
    said("refresh, one episode more", once(index.file.refresh), "s")
    for sort in SORTS:
        said(f"100 episodes by {sort}", median(lambda sort=sort: index.episodes(sort=sort)), "s")
    wanted = Filter(task="digits", errors=True, text="a", reward=(0.1, 2.0))
    said(
        "100 filtered, and counted",
        median(lambda: (index.episodes(wanted), index.count(wanted))),
        "s",
    )
    said("the last page", median(lambda: index.episodes(offset=count - 100)), "s")
    said("totals and by task", median(lambda: (index.totals(), index.by_task())), "s")
    index.file.close()
    said("opening again, refreshed", once(lambda: RunIndex(folder).file.refresh()), "s")


def one_large(folder: Path, megabytes: int) -> None:
    """Writes a run with one episode of about `megabytes` MB, and measures the viewer's index over it."""
    rng = random.Random(1)
    path = folder / "trajectories" / "large.jsonl"
    path.parent.mkdir(parents=True)
    write(path, rng, turns=megabytes * 10, output=98_000)
    print(f"one trajectory of {path.stat().st_size / 1e6:.0f} MB, {megabytes * 10} turns")
    index = RunIndex(folder)
    said("first reading", once(index.file.refresh), "s")
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(step(rng, megabytes * 10 + 1, 98_000)) + "\n")
    said("refresh, one turn more", once(index.file.refresh), "s")
    one = index.episodes()[0]
    count = index.items(one)
    starts = [rng.randrange(count) for _ in range(9)]
    said("16 turns read", each(lambda at: index.load(one, index.places(one, at, 16)), starts), "s")
    said("jump to the next error", each(lambda at: index.jump(one, at, "error"), starts), "s")
    said("the whole score curve", median(lambda: index.curve(one)), "s")
    said("`air show` reads it without an index", once(lambda: scan(path)), "s")


def write(path: Path, rng: random.Random, *, turns: int, output: int) -> None:
    """Writes a trajectory with `turns` turns and `output` characters of output in each; every second turn
    validates."""
    start: dict[str, Any] = {
        "episode": path.stem,
        "task": rng.choice(TASKS),
        "model": "m",
        "metric": "x",
    }
    lines = [
        line("start", **start, direction="higher", baseline=0.1, prompt="p" * 800, system="s" * 200)
    ]
    for turn in range(1, turns + 1):
        lines.append(step(rng, turn, output))
        if turn % 2 == 0:
            lines.append(
                line(
                    "validate", turn=turn, score=rng.random(), delta=rng.random() - 0.5, seconds=0.1
                )
            )
    lines.append(
        line("end", ok=True, why="submit", reward=rng.random(), metrics={"seconds_model": 1.0})
    )
    path.write_text("".join(json.dumps(one) + "\n" for one in lines), encoding="utf-8")


def step(rng: random.Random, turn: int, output: int) -> dict[str, Any]:
    """Returns the record of a turn with about `output` characters of output."""
    said = f"epoch {turn} loss {rng.random():.6f}\n" * (output // 24)
    reply = f"Try it.\n```bash\npython3 train.py --seed {turn}\n```"
    action = f"python3 train.py --seed {turn}"
    code = int(rng.random() < 0.1)
    return line(
        "step", turn=turn, reply=reply, action=action, observation=said, shown=said[:900], code=code
    )


def line(kind: str, **fields: Any) -> dict[str, Any]:
    """Returns the JSON object of one line of a trajectory, of the type `kind` with the given fields."""
    return {"v": VERSION, "type": kind, "t": time.time(), **fields}


def once(work: Callable[[], object]) -> float:
    """Returns the seconds of one call of `work`."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def median(work: Callable[[], object], times: int = 9) -> float:
    """Returns the median of the seconds of `times` calls of `work`."""
    return statistics.median(once(work) for _ in range(times))


def each(work: Callable[[int], object], values: list[int]) -> float:
    """Calls `work` with each of the values; returns the median of the calls' seconds."""
    return statistics.median(once(lambda value=value: work(value)) for value in values)  # type: ignore[misc]


def said(name: str, value: float, unit: str) -> None:
    """Prints one measurement."""
    print(
        f"  {name:<38}{value * 1000:9.1f} ms" if unit == "s" else f"  {name:<38}{value:9.0f} {unit}"
    )


if __name__ == "__main__":
    main()
