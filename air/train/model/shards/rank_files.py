"""Reads the files `model_world_size_N_rank_R.pt` of the training framework verl, which writes one file per
rank (process) of its FSDP (fully sharded data parallel) trainer.

Each file is a state dict. Its values are `DTensor` shards (from FSDP 2, and from FSDP 1 with a device mesh),
`ShardedTensor` shards (from FSDP 1 without a device mesh), and ordinary tensors, which must be equal in all
files. The files are mapped into memory, so a tensor's values are read from disk only when they are used.
"""

from __future__ import annotations

import logging
import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from air.errors import MissingError, UsageError
from air.train.model.shards.blocks import Block, Sharded
from air.train.model.shards.safe_unpickle import SHARDED_TENSOR_NAMES, ShardedTensorRecord

_NAME = re.compile(r"model_world_size_(\d+)_rank_(\d+)\.pt")


def is_here(folder: Path) -> bool:
    """Returns whether the folder contains a file `model_world_size_N_rank_R.pt` of any rank."""
    return folder.is_dir() and any(_NAME.fullmatch(path.name) for path in folder.iterdir())


def read(folder: Path) -> dict[str, Sharded]:
    """Returns the tensors of all ranks' files by name. Raises MissingError if the file of a rank is missing,
    and UsageError if a file cannot be read or the files are not those of one checkpoint."""
    files = _files(folder)
    ranks = [_state_dict(path) for path in files]
    for path, tensors in zip(files, ranks, strict=True):
        if differing := tensors.keys() ^ ranks[0].keys():
            raise UsageError(
                f"only one of this file and {files[0].name} has {min(differing)}",
                where=str(path),
                remedy="are all files of the same step?",
            )
    return {
        name: _tensor(
            name, [(str(path), one[name]) for path, one in zip(files, ranks, strict=True)]
        )
        for name in ranks[0]
    }


def _files(folder: Path) -> list[Path]:
    """Returns the paths of all ranks' files, in the order of the ranks. Raises MissingError if one is
    missing, and UsageError if the folder has files of several world sizes."""
    matches = [match for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))]
    sizes = {int(match[1]) for match in matches}
    if len(sizes) > 1:
        raise UsageError(
            f"has files of several world sizes: {', '.join(map(str, sorted(sizes)))}",
            where=str(folder),
            remedy="leave those of one run alone in the folder",
        )
    (size,) = sizes
    files = [folder / f"model_world_size_{size}_rank_{rank}.pt" for rank in range(size)]
    if missing := [path.name for path in files if not path.is_file()]:
        raise MissingError(
            f"{len(missing)} of the {size} ranks' files are missing, such as {missing[0]}",
            where=str(folder),
            remedy="copy them from the machines of the other ranks",
        )
    if len(matches) > size:
        raise UsageError(f"has ranks beyond the world size {size}", where=str(folder))
    return files


def _state_dict(path: Path) -> Mapping[str, Any]:
    import torch.distributed.tensor  # it lets torch.load read DTensors

    try:
        with _quiet(), torch.serialization.safe_globals(SHARDED_TENSOR_NAMES):
            result = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        raise UsageError(
            f"has contents that a checkpoint of weights has not: {_refusal(error)}",
            where=str(path),
            remedy="nothing of it was run",
        ) from error
    except Exception as error:  # a damaged file raises anything
        text = str(error).splitlines()[0][:200] if str(error) else repr(error)
        raise UsageError(f"cannot be read: {text}", where=str(path)) from error
    if not isinstance(result, Mapping) or not all(
        isinstance(key, str) and isinstance(value, torch.Tensor) for key, value in result.items()
    ):
        raise UsageError("is no state dict of tensors", where=str(path))
    return result


def _refusal(error: pickle.UnpicklingError) -> str:
    """Returns a short reason for an error of `torch.load`, whose own text is a page long: the name of the
    refused class, or the text's last line."""
    found = re.search(r"GLOBAL (\S+) was not an allowed", str(error))
    return found[1] if found else str(error).splitlines()[-1][:200]


@contextmanager
def _quiet() -> Iterator[None]:
    """Context manager that suppresses torch's warning that a device mesh has no process group in this
    process."""
    logger = logging.getLogger("torch.distributed.device_mesh")
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before


Copies = Sequence[tuple[str, Any]]
"""The values of one name in all ranks' state dicts, in the order of the ranks, each as a pair (path of the
rank's file, value)."""


def _tensor(name: str, copies: Copies) -> Sharded:
    from torch.distributed.tensor import DTensor

    kinds = {type(value) for _, value in copies}
    if kinds == {DTensor}:
        return _of_dtensors(name, copies)
    if kinds == {ShardedTensorRecord}:
        return _of_sharded_tensors(name, copies)
    if kinds <= {torch.Tensor, torch.nn.Parameter}:
        value = copies[0][1]
        shape = tuple(value.shape)
        blocks = [_block(where, tensor, (0,) * tensor.dim()) for where, tensor in copies]
        return Sharded(name, shape, value.dtype, blocks)
    names = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise _unknown(name, copies[0][0], f"the ranks hold {names}")


def _of_dtensors(name: str, copies: Copies) -> Sharded:
    """Builds the tensor `name` from its `DTensor` shards `copies`, pairs of a file and the shard in it. The
    offsets of each rank's block follow from the shard's placements and from the rank's coordinate in the
    device mesh. Raises UsageError for an unknown layout."""
    coordinates = [_coordinate(name, where, value) for where, value in copies]
    extents = tuple(1 + max(numbers) for numbers in zip(*coordinates, strict=True))
    shape, placements = tuple(copies[0][1].shape), tuple(copies[0][1].placements)
    blocks = []
    for (where, value), coordinate in zip(copies, coordinates, strict=True):
        if tuple(value.shape) != shape or tuple(value.placements) != placements:
            raise _unknown(
                name, where, f"its shape or placement is not that of the file {copies[0][0]}"
            )
        offsets, sizes = [0] * len(shape), list(shape)
        for placement, index, count in zip(placements, coordinate, extents, strict=True):
            if type(placement).__name__ == "Replicate":
                continue
            if type(placement).__name__ != "Shard":  # partial sums, interleaved shards
                raise _unknown(name, where, f"its placement is {placement}")
            # As torch.chunk: all parts have the same size, but the last ones are smaller or empty.
            part = -(-sizes[placement.dim] // count)
            start = min(index * part, sizes[placement.dim])
            sizes[placement.dim] = min(part, sizes[placement.dim] - start)
            offsets[placement.dim] += start
        blocks.append(_block(where, value._local_tensor, tuple(offsets), tuple(sizes)))
    return Sharded(name, shape, copies[0][1].dtype, blocks)


def _coordinate(name: str, where: str, value: Any) -> tuple[int, ...]:
    """Returns the coordinate, in the device mesh, of the rank that wrote the `DTensor` shard `value` of the
    tensor `name` into the file `where`. Raises UsageError if the shard does not record the coordinate."""
    # The one attribute that has had the same meaning in all versions of torch.
    coordinate = value._spec.mesh.__dict__.get("_coordinate_on_dim")
    if coordinate is None or len(coordinate) != len(value.placements):
        raise _unknown(name, where, "the rank's place in the device mesh is not recorded")
    return tuple(coordinate)


def _of_sharded_tensors(name: str, copies: Copies) -> Sharded:
    """Returns the tensor `name` from `ShardedTensor` shards, which record their offsets and sizes in the
    whole tensor. Raises UsageError for an unknown layout."""
    blocks, tensors = [], []
    try:
        shape = tuple(copies[0][1].state[1].size)
        for where, value in copies:
            shards, metadata = value.state[:2]
            if tuple(metadata.size) != shape:
                raise _unknown(name, where, f"its shape is not that in the file {copies[0][0]}")
            for shard in shards:
                offsets, sizes = (
                    tuple(getattr(shard.metadata, key)) for key in ("shard_offsets", "shard_sizes")
                )
                tensors.append(shard.tensor)
                blocks.append(_block(where, shard.tensor, offsets, sizes))
    except (AttributeError, TypeError, IndexError) as error:
        raise _unknown(
            name, copies[0][0], f"its shards are not as torch writes them ({error})"
        ) from error
    dtype = tensors[0].dtype if tensors else copies[0][1].dtype
    return Sharded(name, shape, dtype, blocks)


def _block(
    where: str,
    tensor: torch.Tensor,
    offsets: tuple[int, ...],
    sizes: tuple[int, ...] | None = None,
) -> Block:
    tensor = tensor.detach()
    return Block(where, offsets, tuple(tensor.shape) if sizes is None else sizes, lambda: tensor)


def _unknown(name: str, where: str, reason: str) -> UsageError:
    return UsageError(
        f"{name}: unknown layout: {reason}",
        where=where,
        remedy="merge it with the trainer that wrote it",
    )
