"""Implements the command `air replay PATH…`: runs the actions of recorded episodes again, without a model,
and compares the results of every turn with the recording.

With `--rescore`, the command repeats no action; it only grades the recorded artefacts (the agent's graded
files) again. The exit code is 0 if all results equal the recorded ones, 1 if a result differs or the machine
or air failed, and 2 if an episode could not be replayed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from air.cli import flags
from air.cli.heavy_imports import collector_paused

if TYPE_CHECKING:
    from rich.progress import Progress

    from air.replay.comparison import ReplayResult
    from air.replay.options import ReplayOptions
    from air.replay.regrade import RescoreResult
    from air.replay.replayer import Replayer
    from air.sandbox.pool.gpu_leases import GpuPool
    from air.trajectories import Trajectory

HELP = "play recorded episodes again without a model; report the first difference of each"
EXAMPLES = (
    "air replay outputs/RUN",
    "air replay outputs/RUN --rescore --reward delta=best",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths",
        nargs="*",
        type=Path,
        metavar="PATH",
        help="a trajectory, a run's folder, or a folder of trajectories",
    )
    parser.add_argument(
        "--from",
        dest="from_step",
        type=int,
        metavar="STEP",
        help="compare from this step on; the earlier steps run first and are kept as a snapshot (1)",
    )
    parser.add_argument(
        "--rescore",
        action="store_true",
        help="only grade the recorded artefacts again, and compute their rewards anew",
    )
    parser.add_argument(
        "--reward",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="with --rescore: change the reward, e.g. delta=best target=0.95 format_penalty=0.1 (none)",
    )
    parser.add_argument(
        "--image", help="play in this image instead of the recorded one (as recorded)"
    )
    flags.add_runtime(parser, default=None, note="default: as recorded")
    parser.add_argument("--at-once", type=int, default=2, help="episodes at a time (2)")
    flags.add_gpus(parser)
    parser.add_argument("--exact", action="store_true", help="compare texts without the --rules")
    parser.add_argument("--rules", action="store_true", help="list what is not compared, and stop")
    parser.add_argument(
        "--tolerance", type=float, default=0.0, help="largest difference of equal scores (0)"
    )
    parser.add_argument(
        "--changed-task", action="store_true", help="replay even if the task's files have changed"
    )
    flags.add_task_root(parser)
    flags.add_mlgym_root(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object an episode on stdout")


def run(args: argparse.Namespace) -> int:
    # Set before imports read it, so that no tokenizer is downloaded.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with collector_paused():
        from air.replay import regrade
        from air.replay.options import ReplayOptions
        from air.sandbox.contract.kinds import OF_RUNTIME

    if args.rules:
        _print_rules()
        return 0
    _check(args)
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
    changes = dict(flags.key_value(text, "--reward") for text in args.reward)
    regrade.check_names(changes)
    return asyncio.run(_all(args, options, changes if args.rescore else None))


def _check(args: argparse.Namespace) -> None:
    """Raises ConfigError, which names the flag, if a flag has a wrong value, or has no effect together with
    the other flags."""
    from air.errors import ConfigError

    if not args.paths:
        raise ConfigError("name a trajectory or a run's folder", where="PATH")
    if args.at_once < 1 or (args.from_step is not None and args.from_step < 1):
        raise ConfigError("must be 1 or more", where="--at-once, --from")
    if args.reward and not args.rescore:
        raise ConfigError("has no effect without --rescore", where="--reward")
    played_only = {
        "tolerance": "tolerance",
        "exact": "exact",
        "from": "from_step",
        "image": "image",
    }
    idle = [f"--{flag}" for flag, name in played_only.items() if getattr(args, name)]
    if args.rescore and idle:
        raise ConfigError("has no effect with --rescore", where=", ".join(idle))


@dataclass
class _Tally:
    """The results of all episodes that have been replayed, and the errors of those that could not be
    replayed."""

    results: list[ReplayResult | RescoreResult] = field(default_factory=list)
    bad: list[str] = field(default_factory=list)
    """An error message for every path that could not be replayed."""
    failed: int = 0
    """The number of episodes whose replay failed because of the machine or air (see
    `InfrastructureError`)."""

    @property
    def exit_code(self) -> int:
        if self.bad:
            return 2
        return 1 if self.failed or not all(result.matched for result in self.results) else 0


def _files(paths: Sequence[Path], tally: _Tally) -> list[Path]:
    """Returns the files of recorded episodes in `paths` (files and folders of runs), without duplicates. Adds
    an error message to `tally.bad` for each path that contains no recorded episode."""
    from air.errors import UsageError
    from air.trajectories import trajectory_files

    files: list[Path] = []
    for path in paths:
        try:
            files += trajectory_files(path)
        except UsageError as error:
            tally.bad.append(str(error))
    return list(dict.fromkeys(files))


async def _all(
    args: argparse.Namespace, options: ReplayOptions, changes: Mapping[str, Any] | None
) -> int:
    """Replays all episodes that the arguments name, prints the results, and returns the exit code (see this
    module). If `changes` is not None, repeats no action, but grades the artefacts (the agent's graded files)
    again; `changes` maps names of reward settings to new values, and may be empty."""
    from air.replay.replayer import Replayer
    from air.replay.restore import gpu_pools
    from air.view.render.clean import clean

    tally = _Tally()
    files = _files(args.paths, tally)
    gpus: tuple[GpuPool | None, GpuPool | None] = (None, None)
    if args.gpus is not None:
        gpus = await asyncio.to_thread(gpu_pools, args.gpus, files, options, boxes=not args.rescore)
    limit = asyncio.Semaphore(args.at_once)
    with _progress(disable=args.json) as progress:
        bar = progress.add_task("replaying", total=len(files))
        async with Replayer(options, at_once=args.at_once, gpus=gpus) as replayer:

            async def one(path: Path) -> None:
                async with limit:
                    await _one(path, replayer, options, changes, tally, as_json=args.json)
                progress.advance(bar)

            await asyncio.gather(*map(one, files))
    for problem in tally.bad:
        print(clean(f"error: {problem}"), file=sys.stderr)
    if not args.json:
        _print_summary(tally)
    return tally.exit_code


def _progress(*, disable: bool) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        console=console,
        transient=True,
        disable=disable or not console.is_terminal,
        redirect_stdout=sys.stdout.isatty(),  # keeps lines for a pipe off the terminal
    )


async def _one(
    path: Path,
    replayer: Replayer,
    options: ReplayOptions,
    changes: Mapping[str, Any] | None,
    tally: _Tally,
    *,
    as_json: bool,
) -> None:
    """Replays the episode that is recorded in the file `path`, prints the result, and adds it to `tally`. If
    `changes` (new reward settings) is not None, grades the recorded artefacts again instead. An error is
    printed or added to `tally`, but not raised."""
    from air.errors import AirError, UsageError
    from air.replay.regrade import rescore
    from air.trajectories import load
    from air.view.render.clean import clean

    try:
        trajectory: Trajectory = load(path)
        result: ReplayResult | RescoreResult
        if changes is None:
            result = await replayer.replay(trajectory)
        else:
            result = await rescore(trajectory, replayer.grader_of(trajectory), changes, options)
        tally.results.append(result)
        _print_result(result, as_json=as_json)
    except UsageError as error:
        message = str(error)
        tally.bad.append(message if str(path) in message else f"{path}: {message}")
    except AirError as error:
        tally.failed += 1
        print(clean(f"{path}: failed: {error}"), file=sys.stderr)


def _print_result(result: ReplayResult | RescoreResult, *, as_json: bool) -> None:
    """Prints whether the results of an episode equal the recorded ones, with notes and the first difference.
    With `as_json`, prints the whole result as one JSON object."""
    from dataclasses import asdict

    from air.replay.regrade import RescoreResult
    from air.view.render.clean import clean

    if as_json:
        data = asdict(result) | {"path": str(result.path), "matched": result.matched}
        print(json.dumps(data), flush=True)
        return
    word = "matched" if result.matched else "DIFFERS"
    scores = f"{result.equal_scores}/{result.scores} scores equal"
    if isinstance(result, RescoreResult):
        rewards = f"reward {result.recorded:+z.4f} as recorded, {result.reward:+z.4f} now"
        facts, notes = f"{scores}, {rewards}", []
    else:
        facts, notes = f"{result.steps} steps, {scores}", result.notes
    print(clean(f"{word} {result.path} {result.task}: {facts}"))
    for note in notes:
        print(f"  note: {' '.join(clean(note).split())}")
    if result.differences:
        print(f"  {clean(str(result.differences[0]))}".replace("\n", "\n  "))
        if len(result.differences) > 1:
            print(f"  and {len(result.differences) - 1} more")
    sys.stdout.flush()


def _print_summary(tally: _Tally) -> None:
    matched = sum(result.matched for result in tally.results)
    scores = sum(result.scores for result in tally.results)
    equal = sum(result.equal_scores for result in tally.results)
    share = f" ({equal / scores:.1%})" if scores else ""
    print(
        f"{matched} of {len(tally.results)} matched; {equal} of {scores} scores equal{share}"
        + (f"; {tally.failed} failed" if tally.failed else "")
        + (f"; {len(tally.bad)} could not be replayed" if tally.bad else "")
    )


def _print_rules() -> None:
    from air.replay.ignored_differences import NEVER, RULES

    print("replaced in both texts before they are compared:")
    for rule in RULES:
        print(f"  {rule.kind:<8} {rule.name:<28} {rule.example!r:<36} → {rule.instead}")
    print("not compared:")
    for text in NEVER:
        print(f"  {text}")
