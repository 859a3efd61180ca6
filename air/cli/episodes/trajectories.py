"""`air trajectories export|import`: recorded episodes in the formats of other programs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from air.trajectories.importers import About

HELP = "export recorded episodes (ATIF, SFT), or import those of MLGym and verifiers"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`export`, `import`."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="export|import")
    export = actions.add_parser("export", help="write them for other programs")
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
        help="atif: one ATIF-v1.7 document an episode; sft: one line of messages an episode",
    )
    export.add_argument(
        "--out", type=Path, required=True, help="atif: a folder; sft: a .jsonl file"
    )
    export.add_argument(
        "--tokens", action="store_true", help="atif: with the replies' token ids and logprobs"
    )
    imports = actions.add_parser("import", help="read them as ours: MLGym's .traj, traces.jsonl")
    imports.add_argument(
        "paths", nargs="+", type=Path, metavar="FILE", help="files of MLGym or verifiers"
    )
    imports.add_argument("--out", type=Path, required=True, help="folder for the trajectories")
    imports.add_argument(
        "--mlgym-root", type=Path, metavar="DIR", help="MLGym's checkout, which knows the tasks"
    )
    imports.add_argument("--metric", help="without a checkout: the primary metric")
    imports.add_argument(
        "--direction",
        choices=("higher", "lower"),
        default="higher",
        help="without a checkout: which way the metric is better (higher)",
    )


def run(args: argparse.Namespace) -> int:
    """Does it; errors are raised for `air.cli.main` to print."""
    return _export(args) if args.action == "export" else _import(args)


def _export(args: argparse.Namespace) -> int:
    from air.errors import ConfigError, boundary
    from air.trajectories import load, trajectory_files
    from air.trajectories.atif import problems, to_atif
    from air.trajectories.conversations import to_sft

    found = [file for path in args.paths for file in trajectory_files(path)]
    files = list({file.resolve(): file for file in found}.values())
    if args.to == "sft":
        if args.tokens:
            raise ConfigError("has no effect with --to sft", where="--tokens")
        count = to_sft(files, args.out)
        print(f"{count} of {len(files)} episodes in {args.out}; the others did not end well")
        return 0
    _check_names(files, args.out)
    with boundary(ConfigError, f"cannot write {args.out}", OSError):
        args.out.mkdir(parents=True, exist_ok=True)
    for file in files:
        document = to_atif(load(file), tokens=args.tokens)
        if wrong := problems(document):
            raise ConfigError(f"cannot be ATIF: {wrong[0]}", where=str(file))
        with boundary(ConfigError, f"{file}: cannot be ATIF", ValueError):  # of NaN
            text = json.dumps(document, ensure_ascii=False, indent=1, allow_nan=False)
        target = args.out / f"{file.stem}.json"
        with boundary(ConfigError, f"cannot write {target}", OSError):
            target.write_text(text + "\n", encoding="utf-8", errors="replace")
    print(f"{len(files)} episodes in {args.out}")
    return 0


def _check_names(files: list[Path], out: Path) -> None:
    """Each episode needs a file of its own: of two runs, two may have one name.

    Raises:
        ConfigError: two would be written to one file.
    """
    from air.errors import ConfigError

    taken: dict[str, Path] = {}
    for file in files:
        other = taken.setdefault(file.stem, file)
        if other is not file:
            raise ConfigError(
                f"{other} and {file} would both be {out / file.stem}.json",
                where="--out",
                remedy="export them to two folders",
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
    """What is known of a task: by the flags, else by MLGym's checkout."""
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
