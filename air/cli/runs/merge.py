"""Implements the command `air merge MODEL FOLDER`: writes a LoRA adapter (with its base model) or a sharded
checkpoint as one ordinary model.

MODEL is one of: the folder of a run (its last checkpoint is used), a checkpoint, the folder of an adapter, or
a folder of shards. Shards are the files `model_world_size_N_rank_R.pt` of verl, or a checkpoint of prime-rl's
trainer.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from air.cli.heavy_imports import collector_paused

HELP = "write a LoRA adapter with its base model, or a sharded checkpoint, as an ordinary model"
EXAMPLES = (
    "air merge outputs/RUN merged/RUN",
    "air merge checkpoints/global_step_50/actor merged/agent0",
    "air merge outputs/checkpoints/step_50 merged/step_50 --base Qwen/Qwen3-4B-Base",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", help="run's folder, checkpoint, adapter's folder, or folder of shards"
    )
    parser.add_argument("folder", type=Path, help="folder to write: new, or empty")
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        help="type of the written weights (default: of an adapter float32, of shards their own)",
    )
    parser.add_argument(
        "--base",
        help="with shards: folder or hub id with config and tokenizer (default: beside the shards)",
    )


def run(args: argparse.Namespace) -> int:
    with collector_paused():
        from air.errors import UsageError
        from air.train.model import adapters
        from air.train.model.shards.merge import shards_folder

    shards = shards_folder(args.model)
    run_and_checkpoint = None
    if not shards:
        from air.train.evaluation.settings import find_checkpoint  # loads verifiers, for seconds

        run_and_checkpoint = find_checkpoint(args.model)
    model = str(run_and_checkpoint[1] if run_and_checkpoint else Path(args.model).expanduser())
    if not shards and not adapters.is_adapter(model):
        raise UsageError(
            f"holds neither a LoRA adapter (no {adapters.ADAPTER_CONFIG}) nor shards "
            "(no model_world_size_N_rank_R.pt, no .metadata)",
            where=model,
            remedy="a model that was trained as a whole needs no merging",
        )
    if args.folder.exists() and (not args.folder.is_dir() or any(args.folder.iterdir())):
        raise UsageError("already exists", where=str(args.folder), remedy="name another folder")
    if shards:
        return _merge_shards(args, shards)
    if args.base:
        raise UsageError(
            "an adapter names its base model itself", where="--base", remedy="leave it out"
        )
    return _merge_adapter(args, model)


def _merge_adapter(args: argparse.Namespace, adapter: str) -> int:
    from air.train.model.policy import merged

    args.folder.mkdir(parents=True, exist_ok=True)
    merged(adapter, args.dtype or "float32").save(args.folder)
    print(f"merged {adapter} into its base model: {args.folder}")
    return 0


def _merge_shards(args: argparse.Namespace, shards: Path) -> int:
    import torch

    from air.cli.output import safe
    from air.train.model.shards.merge import merge

    dtype = getattr(torch, args.dtype) if args.dtype else None
    written = merge(shards, args.folder, base=args.base, dtype=dtype)
    if written.warning:
        print(f"warning: {safe(written.warning)}", file=sys.stderr)
    print(
        f"merged {shards} into {args.folder}: {written.tensors} tensors, {written.parameters} weights"
    )
    return 0
