"""Writes and reads checkpoints: folders `checkpoints/step_N/` with the model and the training state.

The model is in the Hugging Face format. A checkpoint is written to a temporary folder, which is then renamed,
so a checkpoint is either complete or absent. The states of the global random generators are not saved,
because no training step depends on them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from air.errors import MissingError, UsageError
from air.train.loop.run_folder import step_folder, steps, unfinished_folder
from air.train.model import adapters
from air.train.model.policy import Policy

STATE_FILE = "training.pt"
_MARGIN = 1 << 20
"""The free disk space in bytes that a checkpoint needs in addition to the estimated size of its tensors."""


def save(
    root: Path,
    step: int,
    policy: Policy,
    state: dict[str, Any] | None = None,
    *,
    keep_last: int | None = None,
    keep: Collection[int] = (),
) -> Path:
    """Writes the checkpoint of training step `step` into a folder under `root`, replacing an existing one,
    and returns this folder.

    `state` is the training state, a dict that `load_state` returns later; None: an empty dict. After writing,
    deletes old checkpoints, but keeps the new one and the newest ones before it (`keep_last` in all), those
    of the steps in `keep`, and those of steps after `step`. If `keep_last` is None, deletes nothing. Raises
    UsageError if the checkpoint cannot be written (disk full, no permission); the checkpoints of earlier
    steps are then unchanged, and no incomplete files remain.
    """
    target = step_folder(root, step)
    unfinished = unfinished_folder(root, step)
    with _writing(root, unfinished):
        root.mkdir(parents=True, exist_ok=True)
        _check_space(root, size(policy, state))
        unfinished.mkdir()
        policy.save(unfinished)
        torch.save({"step": step, "state": state or {}}, unfinished / STATE_FILE)
        _flush(unfinished)
        _replace(unfinished, target)
    if keep_last is not None:
        for old in [number for number in steps(root) if number <= step][:-keep_last]:
            if old not in keep:
                _remove(root, old)
    return target


def load_state(checkpoint: Path) -> tuple[int, dict[str, Any]]:
    """Returns the training step and the training state that were passed to `save`, without loading the
    weights. Raises MissingError if the folder `checkpoint` contains no training state."""
    path = checkpoint / STATE_FILE
    if not path.is_file():
        raise MissingError(
            f"no {STATE_FILE} here",
            where=str(checkpoint),
            remedy="give a checkpoints/step_N folder of a run",
        )
    saved = torch.load(path, map_location="cpu", weights_only=True)
    return int(saved["step"]), saved["state"]


@contextmanager
def _writing(root: Path, unfinished: Path) -> Iterator[None]:
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        earlier = steps(root) if os.access(root, os.R_OK) else []
        note = f"; the checkpoint of step {earlier[-1]} is intact" if earlier else ""
        raise UsageError(
            f"the checkpoint could not be written ({error}){note}",
            where=str(root),
            remedy="free some space, or choose another output_dir, and resume",
        ) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def size(policy: Policy, state: dict[str, Any] | None = None) -> int:
    """Returns the total size in bytes of the tensors in a checkpoint of `policy` and the training state
    `state`, without writing it. If the model has a LoRA adapter, the base model's weights do not count,
    because a checkpoint then has only the adapter."""
    model = policy.model
    written = adapters.parameters(model) if policy.has_adapter else model.parameters()
    return sum(p.numel() * p.element_size() for p in written) + _tensor_bytes(state)


def _check_space(root: Path, needed: int) -> None:
    needed += _MARGIN
    free = shutil.disk_usage(root).free
    if free < needed:
        raise OSError(f"disk full: {free >> 20} MiB free, about {-(-needed >> 20)} MiB needed")


def _tensor_bytes(state: Any) -> int:
    """Returns the size in bytes of all tensors in `state`, which consists of nested dicts, lists and
    tuples."""
    if isinstance(state, torch.Tensor):
        return state.numel() * state.element_size()
    if isinstance(state, dict):
        state = list(state.values())
    return sum(map(_tensor_bytes, state)) if isinstance(state, list | tuple) else 0


def _flush(directory: Path) -> None:
    for path in [*directory.rglob("*"), directory]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _remove(root: Path, step: int) -> None:
    """Deletes the checkpoint of training step `step`. Renames its folder first, so that an interruption does
    not leave an incomplete checkpoint under this name."""
    doomed = unfinished_folder(root, step)
    step_folder(root, step).rename(doomed)
    shutil.rmtree(doomed)


def _replace(unfinished: Path, target: Path) -> None:
    old = unfinished.with_name(unfinished.name + ".old")
    if target.exists():
        target.rename(old)
    unfinished.rename(target)
    shutil.rmtree(old, ignore_errors=True)
