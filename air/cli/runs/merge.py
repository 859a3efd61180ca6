"""The command `air merge MODEL FOLDER`: writes a LoRA adapter and its base model as one ordinary model.

MODEL is a run's folder, which stands for its last checkpoint, a checkpoint, or an adapter's folder.
"""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = (
    "merge a LoRA adapter (of a run or a folder) into its base model, as an ordinary model folder"
)
EXAMPLES = ("air merge outputs/RUN merged/RUN",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="run's folder, checkpoint, or adapter's folder")
    parser.add_argument("folder", type=Path, help="folder to write: new, or empty")
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        default="float32",
        help="type of the written weights; the sums are computed in float32 (float32)",
    )


def run(args: argparse.Namespace) -> int:
    from air.errors import UsageError
    from air.train.evaluation.settings import run_of
    from air.train.model import adapters
    from air.train.model.policy import merged

    of_run = run_of(args.model)
    adapter = str(of_run[1] if of_run else Path(args.model).expanduser())
    if not adapters.is_adapter(adapter):
        raise UsageError(
            f"holds no LoRA adapter (no {adapters.ADAPTER_CONFIG})",
            where=adapter,
            remedy="a model that was trained as a whole needs no merging",
        )
    if args.folder.exists() and (not args.folder.is_dir() or any(args.folder.iterdir())):
        raise UsageError("already exists", where=str(args.folder), remedy="name another folder")
    args.folder.mkdir(parents=True, exist_ok=True)
    merged(adapter, args.dtype).save(args.folder)
    print(f"merged {adapter} into its base model: {args.folder}")
    return 0
