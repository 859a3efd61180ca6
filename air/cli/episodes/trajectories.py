"""Implements the command `air trajectories export|import`: converts recorded episodes to formats of other
programs (ATIF, the Agent Trajectory Interchange Format; data for supervised fine-tuning), or imports episodes
that MLGym or `verifiers` recorded."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from air.trajectories.importers import About

HELP = "export recorded episodes (ATIF, SFT), or import episodes of MLGym and verifiers"
EXAMPLES = (
    "air trajectories export outputs/RUN --to sft --out demos.jsonl",
    "air trajectories import traces.jsonl --out imported",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="export|import")
    export = actions.add_parser("export", help="convert trajectories for other programs")
    export.add_argument(
        "paths",
        nargs="+",
        type=Path,
        metavar="PATH",
        help="a trajectory, a run's folder, or a folder of trajectories",
    )
    export.add_argument(
        "--to",
        choices=("atif", "sft"),
        required=True,
        help="atif: one ATIF document an episode; sft: one line of messages an episode",
    )
    export.add_argument(
        "--out", type=Path, required=True, help="atif: a folder; sft: a .jsonl file"
    )
    export.add_argument(
        "--tokens", action="store_true", help="atif: include the replies' token ids and logprobs"
    )
    export.add_argument(
        "--atif-version",
        metavar="VERSION",
        help="atif: the version of the format, 1.4 to 1.8 (the newest)",
    )
    imports = actions.add_parser(
        "import", help="convert MLGym's .traj or verifiers' traces.jsonl to trajectories"
    )
    imports.add_argument(
        "paths",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="a .traj file of MLGym or a traces.jsonl of verifiers",
    )
    imports.add_argument(
        "--out", type=Path, required=True, help="the folder to write trajectories to"
    )
    imports.add_argument(
        "--mlgym-root",
        type=Path,
        metavar="DIR",
        help="a checkout of MLGym, which describes its tasks",
    )
    imports.add_argument("--metric", help="without a checkout: the task's metric")
    imports.add_argument(
        "--direction",
        choices=("higher", "lower"),
        default="higher",
        help="without a checkout: which values of the metric are better (higher)",
    )


def run(args: argparse.Namespace) -> int:
    return _export(args) if args.action == "export" else _import(args)


def _export(args: argparse.Namespace) -> int:
    from air.errors import ConfigError, boundary
    from air.trajectories import load, trajectory_files
    from air.trajectories.atif import NEWEST, VERSIONS, problems, to_atif
    from air.trajectories.conversations import to_sft

    paths = [file for path in args.paths for file in trajectory_files(path)]
    files = list({file.resolve(): file for file in paths}.values())
    if args.to == "sft":
        if args.tokens or args.atif_version:
            flag = "--tokens" if args.tokens else "--atif-version"
            raise ConfigError("has no effect with --to sft", where=flag)
        count = to_sft(files, args.out)
        print(f"{count} of {len(files)} episodes in {args.out}; the others failed or did not end")
        return 0
    version = args.atif_version or NEWEST
    if version not in VERSIONS:
        raise ConfigError(
            f"{version!r} cannot be written; known: {', '.join(VERSIONS)}", where="--atif-version"
        )
    _check_names(files, args.out)
    with boundary(ConfigError, f"cannot write {args.out}", OSError):
        args.out.mkdir(parents=True, exist_ok=True)
    for file in files:
        document = to_atif(load(file), tokens=args.tokens, version=version)
        if wrong := problems(document):
            raise ConfigError(f"cannot be written as ATIF: {wrong[0]}", where=str(file))
        with boundary(ConfigError, f"{file}: cannot be written as ATIF", ValueError):  # for NaN
            text = json.dumps(document, ensure_ascii=False, indent=1, allow_nan=False)
        target = args.out / f"{file.stem}.json"
        with boundary(ConfigError, f"cannot write {target}", OSError):
            target.write_text(text + "\n", encoding="utf-8", errors="replace")
    print(f"{len(files)} episodes in {args.out}")
    return 0


def _check_names(files: list[Path], out: Path) -> None:
    """Raises ConfigError if two files have the same name (without suffix), because their exports would have
    the same path in the folder `out`."""
    from air.errors import ConfigError

    names: dict[str, Path] = {}
    for file in files:
        other = names.setdefault(file.stem, file)
        if other is not file:
            raise ConfigError(
                f"{other} and {file} would both be written to {out / file.stem}.json",
                where="--out",
                remedy="export them to different folders",
            )


def _import(args: argparse.Namespace) -> int:
    from air.trajectories.importers import import_mlgym, import_verifiers

    written: list[Path] = []
    for path in args.paths:
        if path.suffix == ".traj":
            written.append(import_mlgym(path, args.out, _about(args)))
        else:
            written += import_verifiers(path, args.out)
    print(f"{len(written)} episodes in {args.out}")
    return 0


def _about(args: argparse.Namespace) -> Callable[[str], About]:
    """Returns a function that maps the id of an MLGym task to an `About` object: the task's metric, and
    whether higher or lower values are better. If the flag `--metric` is given, both come from the flags.
    Otherwise they come from the MLGym checkout, and the object also says how scores become rewards."""
    from air import tasks
    from air.rewards.delta import DeltaReward
    from air.trajectories.importers import About

    def about(task_id: str) -> About:
        if args.metric is not None:
            return About(metric=args.metric, direction=args.direction)
        task = tasks.load(task_id, mlgym_root=args.mlgym_root)
        return About(
            metric=task.metric,
            direction=task.direction,
            baseline=task.baseline,
            scale=task.reward_scale().model_dump(mode="json"),
            pay=DeltaReward(task.reward_scale()),
        )

    return about
