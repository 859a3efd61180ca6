"""`air replay PATH…`: plays recorded episodes again, action by action, and compares."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from air.cli.boxes.gpus import GPUS_HELP, wanted
from air.cli.keyvalue import key_value

if TYPE_CHECKING:
    from air.replay.comparison import Replayed
    from air.replay.regrade import Rescored
    from air.replay.restore import ReplayOptions
    from air.sandbox.pool.gpu_leases import GpuPool
    from air.trajectories import Trajectory

HELP = "play recorded episodes again without a model; report the first difference of each"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument(
        "paths",
        nargs="*",
        type=Path,
        metavar="PATH",
        help="a trajectory, a run's folder, or a folder of trajectories",
    )
    parser.add_argument("--from", dest="from_step", type=int, metavar="STEP", help=_FROM)
    parser.add_argument(
        "--rescore",
        action="store_true",
        help="only grade the recorded artefacts again, and pay for them anew",
    )
    parser.add_argument(
        "--reward",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="with --rescore: change the reward, e.g. delta=best target=0.95 format_penalty=0.1",
    )
    parser.add_argument("--image", help="play in this image instead of the recorded one")
    parser.add_argument(
        "--runtime",
        choices=("docker", "subprocess"),
        help="box: docker, or subprocess for the process box; default: as recorded",
    )
    parser.add_argument("--at-once", type=int, default=2, help="how many at a time (2)")
    parser.add_argument("--gpus", type=wanted, metavar="auto|IDS", help=GPUS_HELP)
    parser.add_argument("--exact", action="store_true", help="replace nothing in texts by --rules")
    parser.add_argument("--rules", action="store_true", help="list what is not compared, and stop")
    parser.add_argument(
        "--tolerance", type=float, default=0.0, help="by how much a score may differ (0)"
    )
    parser.add_argument(
        "--changed-task", action="store_true", help="play although the task's files were changed"
    )
    parser.add_argument(
        "--task-root",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="a folder of tasks, instead of the shipped ones",
    )
    parser.add_argument(
        "--mlgym-root", type=Path, metavar="DIR", help="a checkout of MLGym, for tasks mlgym:…"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object for each on stdout")


_FROM = (
    "compare from this step on: what comes before is done, then frozen in a snapshot from which the "
    "replay starts"
)


def run(args: argparse.Namespace) -> int:
    """Replays; 0: all matched, 1: something differs or failed, 2: something could not be replayed."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # it asks nobody for a tokenizer; read at imports
    from air.errors import ConfigError
    from air.replay import regrade
    from air.replay.restore import ReplayOptions
    from air.sandbox.contract.kinds import OF_RUNTIME

    if args.rules:
        _print_rules()
        return 0
    if not args.paths:
        raise ConfigError("name a trajectory or a run's folder", where="PATH")
    if args.at_once < 1 or (args.from_step is not None and args.from_step < 1):
        raise ConfigError("must be 1 or more", where="--at-once, --from")
    if args.reward and not args.rescore:
        raise ConfigError("has no effect without --rescore", where="--reward")
    only_played = {
        "tolerance": "tolerance",
        "exact": "exact",
        "from": "from_step",
        "image": "image",
    }
    idle = [f"--{flag}" for flag, name in only_played.items() if getattr(args, name)]
    if args.rescore and idle:
        raise ConfigError("no effect with --rescore", where=", ".join(idle))
    options = ReplayOptions(
        provider=None if args.runtime is None else OF_RUNTIME[args.runtime].provider,
        image=args.image,
        from_step=args.from_step,
        exact=args.exact,
        changed_task=args.changed_task,
        tolerance=args.tolerance,
        task_roots=tuple(args.task_root),
        mlgym_root=args.mlgym_root,
    )
    given = (key_value(text, "--reward") for text in args.reward)
    changes = dict(given) if args.rescore else None
    regrade.check_names(changes or {})
    return asyncio.run(_all(args, options, changes))


def _files(paths: list[Path]) -> tuple[list[Path], list[str]]:
    """The trajectories at these paths, each once, and what is wrong with a path."""
    from air.errors import UsageError
    from air.trajectories import trajectory_files

    files: list[Path] = []
    bad: list[str] = []
    for path in paths:
        try:
            files += trajectory_files(path)
        except UsageError as error:
            bad.append(str(error))
    return list(dict.fromkeys(files)), bad


async def _all(
    args: argparse.Namespace, options: ReplayOptions, changes: dict[str, Any] | None
) -> int:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from air.errors import AirError, UsageError
    from air.replay.replayer import Replayer
    from air.replay.restore import gpu_pools
    from air.trajectories import load
    from air.view.render.clean import clean

    files, bad = _files(args.paths)
    gpus: tuple[GpuPool | None, GpuPool | None] = (None, None)
    if args.gpus is not None:
        gpus = await asyncio.to_thread(gpu_pools, args.gpus, files, options, boxes=not args.rescore)
    failed, results = 0, []
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    gate = asyncio.Semaphore(args.at_once)
    shown = Progress(
        *columns,
        console=console,
        transient=True,
        disable=args.json or not console.is_terminal,
        redirect_stdout=sys.stdout.isatty(),  # else lines meant for a pipe would go to the terminal
    )
    with shown as progress:
        bar = progress.add_task("replaying", total=len(files))
        async with Replayer(options, at_once=args.at_once, gpus=gpus) as replayer:
            work = _work(replayer, options, changes)

            async def one(path: Path) -> None:
                nonlocal failed
                async with gate:
                    try:
                        results.append(await work(load(path)))
                        _show(results[-1], as_json=args.json)
                    except UsageError as error:
                        named = str(path) in str(error)
                        bad.append(f"{error}" if named else f"{path}: {error}")
                    except AirError as error:
                        failed += 1
                        print(clean(f"{path}: failed: {error}"), file=sys.stderr)
                progress.advance(bar)

            await asyncio.gather(*map(one, files))
    for problem in bad:
        print(clean(f"error: {problem}"), file=sys.stderr)
    if not args.json:
        _summary(results, failed, len(bad))
    if bad:
        return 2
    return 1 if failed or not all(r.matched for r in results) else 0


def _work(
    replayer: Any, options: ReplayOptions, changes: dict[str, Any] | None
) -> Callable[[Trajectory], Awaitable[Replayed | Rescored]]:
    if changes is None:
        replay: Callable[[Trajectory], Awaitable[Replayed]] = replayer.replay
        return replay

    async def again(trajectory: Trajectory) -> Rescored:
        from air.replay.regrade import rescore

        return await rescore(trajectory, replayer.grader_of(trajectory), changes, options)

    return again


def _show(done: Any, *, as_json: bool) -> None:
    """One line for what came of one trajectory, and its first difference."""
    from dataclasses import asdict

    from air.view.render.clean import clean

    if as_json:
        data = asdict(done) | {"path": str(done.path), "matched": done.matched}
        print(json.dumps(data), flush=True)
        return
    word = "matched" if done.matched else "DIFFERS"
    parts = [f"{done.equal_scores}/{done.scores} scores equal"]
    if hasattr(done, "reward"):
        parts.append(f"reward {done.recorded:+.4f} as recorded, {done.reward:+.4f} now")
    else:
        parts.insert(0, f"{done.steps} steps")
    print(clean(f"{word} {done.path} {done.task}: {', '.join(parts)}"))
    for note in getattr(done, "notes", []):
        print(f"  note: {' '.join(clean(note).split())}")
    if done.differences:
        print(f"  {clean(str(done.differences[0]))}".replace("\n", "\n  "))
        if len(done.differences) > 1:
            print(f"  and {len(done.differences) - 1} more")
    sys.stdout.flush()


def _summary(results: list[Any], failed: int, bad: int) -> None:
    matched = sum(r.matched for r in results)
    scores, equal = sum(r.scores for r in results), sum(r.equal_scores for r in results)
    share = f" ({equal / scores:.1%})" if scores else ""
    print(
        f"{matched} of {len(results)} matched; {equal} of {scores} scores equal{share}"
        + (f"; {failed} failed" if failed else "")
        + (f"; {bad} could not be replayed" if bad else "")
    )


def _print_rules() -> None:
    from air.trajectories.compare import NEVER, RULES

    print("in texts, replaced on both sides before they are compared:")
    for rule in RULES:
        print(f"  {rule.kind:<8} {rule.name:<28} {rule.example!r:<36} → {rule.instead}")
    print("not looked at:")
    for one in NEVER:
        print(f"  {one}")
