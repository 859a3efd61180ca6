"""Reads pickle files of `torch.distributed` without executing any code that they name.

Each class that a checkpoint may name is replaced by `Record`, which only stores the arguments and the state
of an object. A pickle that names anything else is refused.
"""

from __future__ import annotations

import collections
import io
import pickle
from typing import Any

import torch

_SHARD = "torch.distributed._shard"
_DCP = "torch.distributed.checkpoint"


class Record:
    """A placeholder for an object in a pickle. Stores the constructor arguments and the state from which
    ordinary unpickling would build the object."""

    args: tuple[Any, ...]
    state: Any

    def __new__(cls, *args: Any) -> Record:
        """Returns a new record that stores the constructor arguments `args`."""
        self = super().__new__(cls)
        self.args, self.state = args, None
        return self

    def __setstate__(self, state: Any) -> None:
        """Stores the state of the pickled object. The object's attributes, including those in slots, become
        attributes of the record."""
        self.state = state
        for attributes in state if isinstance(state, tuple) and len(state) == 2 else (state,):
            if isinstance(attributes, dict):
                self.__dict__.update(attributes)


class ShardedTensorRecord(torch.Tensor):
    """A placeholder for a `ShardedTensor` in a pickle, which stores the tensor's state. A real
    `ShardedTensor` cannot be loaded without the process group that wrote it."""

    state: Any

    @classmethod
    def __torch_dispatch__(cls, function: Any, *_: Any) -> Any:
        """Raises an error for every torch operation, because a record has no values to compute with."""
        raise TypeError(f"a record of a ShardedTensor has no values for {function}")

    def __setstate__(self, state: Any) -> None:
        """Stores the state of the pickled `ShardedTensor`."""
        self.state = state


def _nested_class(owner: Any, name: str) -> Any:
    """Replaces the function `getattr`, by which old pickles refer to the nested class
    `ShardedTensor.ProcessGroupState`: returns `Record` for this class, and raises UnpicklingError for
    anything else."""
    if owner is not ShardedTensorRecord or name != "ProcessGroupState":
        raise pickle.UnpicklingError(f"attribute {name!r} is not allowed")
    return Record


SHARDED_TENSOR_NAMES: list[Any] = [
    (ShardedTensorRecord, f"{_SHARD}.sharded_tensor.api.ShardedTensor"),
    (_nested_class, "builtins.getattr"),
    *(
        (Record, f"{_SHARD}.{name}")
        for name in (
            "metadata.ShardMetadata",
            "sharded_tensor.shard.Shard",
            "sharded_tensor.metadata.ShardedTensorMetadata",
            "sharded_tensor.metadata.TensorProperties",
            "sharded_tensor.metadata.MEM_FORMAT_ENCODING",
            "sharding_spec.chunk_sharding_spec.ChunkShardingSpec",
            "sharding_spec.api.EnumerableShardingSpec",
        )
    ),
    (Record, "torch.distributed.remote_device._remote_device"),
    (Record, f"{_SHARD}.sharded_tensor.api.ShardedTensor.ProcessGroupState"),
]
"""The names (of classes and functions) that pickles of `ShardedTensor` may contain in addition to those that
torch itself allows, each paired with the object that replaces it. The list has the form that
`torch.serialization.safe_globals` takes."""

_METADATA_NAMES = {
    *(
        (f"{_DCP}.metadata", name)
        for name in (
            "Metadata",
            "TensorStorageMetadata",
            "BytesStorageMetadata",
            "TensorProperties",
            "ChunkStorageMetadata",
            "MetadataIndex",
            "StorageMeta",
            "_MEM_FORMAT_ENCODING",
        )
    ),
    (f"{_DCP}.filesystem", "_StorageInfo"),
    (f"{_DCP}.filesystem", "_StoragePrefix"),
    ("torch.serialization", "_get_layout"),
    ("pathlib", "PosixPath"),
    ("pathlib", "WindowsPath"),
}


class _MetadataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Returns the class or value that replaces the name `module.name` in a pickle. Raises UnpicklingError
        for a name that checkpoint metadata never needs."""
        if (module, name) in _METADATA_NAMES:
            return Record
        if (module, name) == ("torch", "Size"):
            return torch.Size
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if module == "torch" and isinstance(dtype := getattr(torch, name, None), torch.dtype):
            return dtype
        raise pickle.UnpicklingError(f"the name {module}.{name} is not allowed")


def read_metadata(data: bytes) -> Record:
    """Returns the content of the file `.metadata` of `torch.distributed.checkpoint`, whose bytes are `data`.
    Raises UnpicklingError if the bytes are not such metadata."""
    try:
        result = _MetadataUnpickler(io.BytesIO(data)).load()
    except pickle.UnpicklingError:
        raise
    except Exception as error:  # a damaged pickle raises anything
        raise pickle.UnpicklingError(f"it is damaged: {error!r}") from error
    if not isinstance(result, Record):
        raise pickle.UnpicklingError(f"it holds a {type(result).__name__}")
    return result
