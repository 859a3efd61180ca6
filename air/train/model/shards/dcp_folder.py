"""Reads a checkpoint folder of `torch.distributed.checkpoint` (DCP), as the training framework prime-rl
writes it.

Each tensor is stored as one or more rectangular blocks in files `*.distcp`. The file `.metadata` lists the
tensors, and says in which file and at which byte each block is stored. Only the model's weights are read, not
optimiser states or other contents.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch

from air.errors import MissingError, UsageError
from air.train.model.shards.blocks import Block, Sharded
from air.train.model.shards.safe_unpickle import Record, read_metadata

METADATA = ".metadata"
_PREFIXES = ("app.model.", "model.", "")
"""The prefixes that a trainer may have added to the names of the model's weights in a checkpoint. The first
is that of prime-rl."""
_NO_WEIGHTS = ("app.", "optim", "optimizer", "lr_scheduler", "scheduler", "dataloader", "progress")


def is_here(folder: Path) -> bool:
    """Returns whether the folder is a checkpoint of `torch.distributed.checkpoint`."""
    return (folder / METADATA).is_file()


def read(folder: Path, expected: Collection[str]) -> dict[str, Sharded]:
    """Returns the model's tensors in the checkpoint `folder`, by name. In the checkpoint, each name may have
    a prefix such as `model.`; the returned names have none. `expected` has the names of the model's weights
    without a prefix, from which the prefix in the checkpoint is found. Raises UsageError if the folder is not
    a valid checkpoint of the model, and MissingError if a file is missing."""
    where = str(folder / METADATA)
    try:
        metadata = read_metadata((folder / METADATA).read_bytes())
    except pickle.UnpicklingError as error:
        raise UsageError(
            f"is no metadata of a checkpoint: {error}", where=where, remedy="nothing of it was run"
        ) from error
    try:
        entries: dict[str, Record] = metadata.state_dict_metadata  # type: ignore[attr-defined]
        places = {
            (index.fqn, tuple(getattr(index, "offset", ()))): info
            for index, info in metadata.storage_data.items()  # type: ignore[attr-defined]
        }
        prefix = next(
            (one for one in _PREFIXES if any(one + name in entries for name in expected)), None
        )
        if prefix is None:
            raise UsageError(
                f"none of its {len(entries)} entries is a weight of the model",
                where=where,
                remedy="give the model's config with --base",
            )
        return {
            key.removeprefix(prefix): _tensor(folder, key, entry, places)
            for key, entry in entries.items()
            if key.startswith(prefix)
            and hasattr(entry, "chunks")
            and not _is_not_weight(key, prefix)
        }
    except (AttributeError, TypeError, ValueError, IndexError) as error:
        raise UsageError(
            f"is not as torch.distributed.checkpoint writes it ({error})", where=where
        ) from error


def _is_not_weight(key: str, prefix: str) -> bool:
    """Returns whether the entry `key` of a checkpoint is something else than a weight of the model, for
    example a state of the optimiser. `prefix` is the prefix of the weights' names. If it is empty, the
    entries whose names begin with a string in `_NO_WEIGHTS`, such as `optim`, are not weights. Otherwise all
    entries with the prefix are weights."""
    return not prefix and key.startswith(_NO_WEIGHTS)


def _tensor(folder: Path, key: str, entry: Any, places: dict[Any, Any]) -> Sharded:
    blocks = []
    for chunk in entry.chunks:
        offsets, sizes = tuple(chunk.offsets), tuple(chunk.sizes)
        info = places.get((key, offsets))
        if info is None:
            raise UsageError(
                f"{key}: the block at {offsets} is in no file", where=str(folder / METADATA)
            )
        blocks.append(_block(folder, key, info, offsets, sizes))
    return Sharded(key, tuple(entry.size), entry.properties.state[0], blocks)


def _block(
    folder: Path, key: str, info: Any, offsets: tuple[int, ...], sizes: tuple[int, ...]
) -> Block:
    name, start, length = info.relative_path, int(info.offset), int(info.length)
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise UsageError(f"{key}: its file {name} is not in the folder", where=str(folder))
    if getattr(info, "transform_descriptors", None):
        raise UsageError(
            f"{key}: unknown layout: it was written with {info.transform_descriptors}",
            where=str(path),
            remedy="merge it with the trainer that wrote it",
        )
    if not path.is_file():
        raise MissingError(
            f"the file {name} is missing",
            where=str(folder),
            remedy="copy it from the machine of the rank that wrote it",
        )
    if path.stat().st_size < start + length:
        raise UsageError(f"{key}: the file ends too early", where=str(path))

    def load() -> torch.Tensor:
        with path.open("rb") as file:
            file.seek(start)
            data = io.BytesIO(file.read(length))
        try:
            tensor = torch.load(data, map_location="cpu", weights_only=True)
        except Exception as error:  # a damaged file raises anything
            text = str(error).splitlines()[0][:200] if str(error) else repr(error)
            raise UsageError(f"{key}: cannot be read: {text}", where=str(path)) from error
        if type(tensor) is not torch.Tensor:
            raise UsageError(f"{key}: is no tensor", where=str(path))
        return tensor

    return Block(str(path), offsets, sizes, load)
