"""Converts a sharded checkpoint to one Hugging Face folder with safetensors files, config and tokenizer.

The config determines which tensors the model has. The tensors are read and checked one by one, and written
file by file. So at most the tensors of one output file (1 GiB, or the largest tensor) and one further tensor
are in memory.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from air.errors import UsageError, boundary
from air.train.model.shards import dcp_folder, rank_files
from air.train.model.shards.blocks import Sharded, same_bits

FILE_BYTES = 1 << 30
"""The largest size in bytes of an output file with weights. Only a file with a single, larger tensor exceeds
this size."""
_GENERATION = "generation_config.json"
_SUBFOLDERS = ("", "actor", "trainer")
"""Where a checkpoint folder may have its shards, in the order of the search: in the folder itself, or in its
subfolder `actor` (verl) or `trainer` (prime-rl)."""
_CONFIG_FOLDERS = ("huggingface", "")
"""Where a folder with shards may have the config and the tokenizer, in the order of the search: in the
subfolder `huggingface` (verl), or in the folder itself."""


@dataclass(frozen=True)
class Merged:
    """The result of `merge`: the numbers of tensors, parameters (single numbers) and weight files that were
    written."""

    tensors: int
    parameters: int
    files: int
    warning: str = ""
    """A warning for the user if the generation config could not be fetched, so that the new folder lacks it;
    otherwise empty."""


def shards_folder(model: str | Path) -> Path | None:
    """Returns the folder that contains the shards of the checkpoint folder `model`: this folder itself, or
    its subfolder `actor` or `trainer`. Returns None if there are no shards."""
    for name in _SUBFOLDERS:
        folder = Path(model).expanduser() / name
        if rank_files.is_here(folder) or dcp_folder.is_here(folder):
            return folder
    return None


def merge(
    shards: Path,
    folder: Path,
    *,
    base: str | None = None,
    dtype: torch.dtype | None = None,
    file_bytes: int = FILE_BYTES,
) -> Merged:
    """Converts the sharded checkpoint in the folder `shards` to a Hugging Face model in `folder`, which must
    be new or empty.

    `base` is the folder or Hugging Face id from which config and tokenizer are taken. If `base` is None, they
    must be in the folder of the shards or its subfolder `huggingface`. `dtype` is the data type of the
    written weights; None: that of the checkpoint. A file of weights has at most `file_bytes` bytes. After an
    error, no incomplete folder remains.

    Raises UsageError if the shards are inconsistent or are not those of the config's model, and MissingError
    if a file is missing.
    """
    source = base or _config_beside(shards)
    config, tokenizer = _read_base(source)
    wanted, ties = _wanted(config, source)
    is_verl = rank_files.is_here(shards)
    found = rank_files.read(shards) if is_verl else dcp_folder.read(shards, wanted)
    _check_names(shards, source, wanted, found, ties)
    unfinished = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        with boundary(UsageError, str(folder), OSError, SafetensorError):
            unfinished.mkdir(parents=True)
            written = _write(unfinished, [*wanted], found, ties, dtype, file_bytes)
            types = {_type(found[name], dtype) for name in wanted if name not in ties}
            config.dtype = types.pop() if len(types) == 1 else None
            config.save_pretrained(unfinished)
            tokenizer.save_pretrained(unfinished)
            warning = _copy_generation_config(source, unfinished)
            if folder.exists():
                folder.rmdir()
            unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return replace(written, warning=warning)


def _config_beside(shards: Path) -> str:
    for name in _CONFIG_FOLDERS:
        if (shards / name / "config.json").is_file():
            return str(shards / name)
    raise UsageError(
        "there is no config.json beside the shards",
        where=str(shards),
        remedy="name the model from which the training started with --base",
    )


def _read_base(source: str) -> tuple[Any, Any]:
    """Returns the config and the tokenizer of the folder or Hugging Face id `source`. Raises UsageError if
    they cannot be read."""
    from transformers import AutoConfig, AutoTokenizer

    try:
        config = AutoConfig.from_pretrained(source)
        tokenizer = AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError, KeyError) as error:
        text = " ".join(str(error).split())[:200]
        raise UsageError(
            f"its config or tokenizer cannot be read: {text}",
            where=source,
            remedy="name a folder or a hub id that has both with --base",
        ) from error
    return config, tokenizer


def _wanted(config: Any, source: str) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    """Returns two dicts about the tensors that a model with this config has. The first maps each tensor's
    name to its shape. The second is for tied tensors, which are identical to another tensor and therefore not
    written: it maps the name of each to the name of the other tensor. Also sets `config.architectures`.
    Raises UsageError if the config is not that of a causal language model. `source` names the config in the
    error."""
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    except (ValueError, ImportError) as error:
        raise UsageError(
            f"is not the config of a causal language model: {str(error).splitlines()[0][:200]}",
            where=source,
        ) from error
    config.architectures = [type(model).__name__]
    shapes: dict[str, tuple[int, ...]] = {}
    ties: dict[str, str] = {}
    first: dict[int, str] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        shapes[name] = tuple(tensor.shape)
        if id(tensor) in first:
            ties[name] = first[id(tensor)]
        first.setdefault(id(tensor), name)
    return shapes, ties


def _check_names(
    shards: Path,
    source: str,
    wanted: Mapping[str, tuple[int, ...]],
    found: Mapping[str, Sharded],
    ties: Mapping[str, str],
) -> None:
    """Raises UsageError if the checkpoint (`found`) lacks a tensor of the model (`wanted`), has a tensor that
    the model lacks, or has a tensor of another shape. The checkpoint may lack tied tensors (`ties`). `shards`
    and `source` are the checkpoint and the config's folder or Hugging Face id, for the error message."""
    remedy = f"is {source} the model that was trained?"
    for name in (name for name in wanted if name not in found and name not in ties):
        raise UsageError(f"the checkpoint has no {name}", where=str(shards), remedy=remedy)
    for name, tensor in found.items():
        if name not in wanted:
            if ".lora_" in name or "lora_A" in name:
                remedy = "adapters of other trainers are not merged: save the adapter itself"
            raise UsageError(
                f"the checkpoint has {name}, the model has not", where=str(shards), remedy=remedy
            )
        if tensor.shape != wanted[name]:
            raise UsageError(
                f"{name} has the shape {tensor.shape}, in the model {wanted[name]}",
                where=str(shards),
                remedy=remedy,
            )


def _write(
    folder: Path,
    wanted: Sequence[str],
    found: Mapping[str, Sharded],
    ties: Mapping[str, str],
    dtype: torch.dtype | None,
    file_bytes: int,
) -> Merged:
    """Writes the tensors with the names `wanted`, except those in `ties`, into safetensors files in `folder`
    and, if there are several files, their index. `found` has the tensors of the checkpoint, by name. `ties`
    maps the name of each tied tensor to the name of the tensor with the same weights. `dtype` is the type of
    the written weights (None: that of the checkpoint), and a file has at most `file_bytes` bytes. Raises
    UsageError if a tied tensor differs from the other one."""
    from safetensors.torch import save_file

    for name, other in ties.items():
        _check_tie(name, other, found)
    names = [name for name in wanted if name not in ties]
    groups = list(_groups({name: found[name] for name in names}, dtype, file_bytes))
    files: dict[str, str] = {}
    size = parameters = 0
    for number, group in enumerate(groups, start=1):
        tensors = {name: found[name].whole().to(_type(found[name], dtype)) for name in group}
        file = f"model-{number:05}-of-{len(groups):05}.safetensors"
        file = "model.safetensors" if len(groups) == 1 else file
        save_file(tensors, folder / file, metadata={"format": "pt"})
        files |= dict.fromkeys(group, file)
        size += sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        parameters += sum(tensor.numel() for tensor in tensors.values())
    if len(groups) > 1:
        index = {"metadata": {"total_size": size}, "weight_map": files}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
    return Merged(len(names), parameters, len(groups))


def _type(tensor: Sharded, dtype: torch.dtype | None) -> torch.dtype:
    """Returns the data type in which a tensor is written: `dtype`, if it is given and the tensor has
    floating-point numbers; otherwise the tensor's own type."""
    return dtype if dtype and tensor.dtype.is_floating_point else tensor.dtype


def _check_tie(name: str, other: str, found: Mapping[str, Sharded]) -> None:
    if name in found and not same_bits(found[name].whole(), found[other].whole()):
        raise found[name].wrong(
            found[name].blocks[0].where,
            f"differs from {other}, but the config ties them",
            "set tie_word_embeddings to false in the config, and give it with --base",
        )


def _groups(
    tensors: Mapping[str, Sharded], dtype: torch.dtype | None, file_bytes: int
) -> Iterator[list[str]]:
    """Divides `tensors`, in order, into groups that fit into files of `file_bytes` bytes each if their
    elements have the type `dtype`. Yields the names of the tensors of each file. A larger tensor gets a file
    of its own."""
    group: list[str] = []
    total = 0
    for name, tensor in tensors.items():
        size = torch.Size(tensor.shape).numel() * _type(tensor, dtype).itemsize
        if group and total + size > file_bytes:
            yield group
            group, total = [], 0
        group.append(name)
        total += size
    if group:
        yield group


def _copy_generation_config(source: str, folder: Path) -> str:
    """Copies the generation config file of the model `source` (a folder or Hugging Face id), if there is one,
    unchanged into `folder`. Returns a warning if the file could not be fetched from the Hugging Face hub, and
    an empty string otherwise. Raises OSError if the file cannot be copied."""
    if Path(source).is_dir():
        file = Path(source) / _GENERATION
        if file.is_file():
            shutil.copyfile(file, folder / _GENERATION)
        return ""
    from huggingface_hub import _CACHED_NO_EXIST, try_to_load_from_cache
    from transformers.utils.hub import cached_file

    try:
        cached = cached_file(source, _GENERATION)
    except (OSError, ValueError) as error:
        if try_to_load_from_cache(source, _GENERATION) is _CACHED_NO_EXIST:
            return ""  # the hub's client has noted that there is none
        text = " ".join(str(error).split())[:500]
        return f"{source}: the generation config cannot be fetched: {text}"
    assert cached is not None  # by default, a file that is not there is an error
    shutil.copyfile(cached, folder / _GENERATION)
    return ""
