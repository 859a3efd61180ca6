"""Manages the folder of a training run: its lock file, its config, and the checkpoint to resume from.

This module imports no heavy package such as torch, so that a run that cannot start fails before a model is
loaded.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from air import json_lines, paths
from air.errors import MissingError, UsageError

if TYPE_CHECKING:
    from air.train.config.run_config import RunConfig

CONFIG_FILE = "config.json"
_ADAPTER_FILE = "adapter_config.json"
"""The name of the file that a LoRA adapter's folder has instead of a model's `config.json`."""
METRICS_FILE = "metrics.jsonl"
SFT_FILE = "sft.json"
"""The name of the file with the settings of an `sft` run (supervised fine-tuning). It is not `config.json`,
because the trained model, which is saved in the same folder, has a file of that name."""
CHECKPOINTS = "checkpoints"
TRAJECTORIES = "trajectories"
EVALUATIONS = "evaluations"
_LOCK_FILE = ".lock"
WITHOUT_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}
"""The numbers of the errors of file systems that have no locks."""
_NAME = re.compile(r"step_(\d+)")
_UNFINISHED = re.compile(r"\.(step_\d+)\.\d+(\.old)?")
_LOG = logging.getLogger(__name__)


def steps(root: Path) -> list[int]:
    """Returns, in ascending order, the training steps whose complete checkpoint is in the folder `root`, such
    as the folder `checkpoints/` of a run."""
    if not root.is_dir():
        return []
    matches = (_NAME.fullmatch(p.name) for p in root.iterdir() if _holds_model(p))
    return sorted(int(match[1]) for match in matches if match)


def _holds_model(folder: Path) -> bool:
    return (folder / CONFIG_FILE).is_file() or (folder / _ADAPTER_FILE).is_file()


def step_folder(root: Path, step: int) -> Path:
    """Returns the folder of the checkpoint after training step `step`: `step_<number>` under `root`."""
    return root / f"step_{step}"


def evaluation_folder(folder: Path, step: int) -> Path:
    """Returns the folder, under a run's folder `folder`, of the evaluation after training step `step`."""
    return step_folder(folder / EVALUATIONS, step)


def unfinished_folder(root: Path, step: int) -> Path:
    """Returns the temporary folder in which this process writes the checkpoint of training step `step`, or to
    which it moves the checkpoint before deleting it. The folder lies in `root`, beside the finished
    checkpoints."""
    return root / f".{step_folder(root, step).name}.{os.getpid()}"


def remove_unfinished(folder: Path) -> None:
    """Removes the incomplete checkpoints that killed processes left in the run's folder. If such a process
    had moved an older checkpoint of the same step aside, restores it. The caller must have locked the run's
    folder, so that no other process is saving there."""
    root = folder / CHECKPOINTS
    for path in sorted(root.glob(".step_*")):
        match = _UNFINISHED.fullmatch(path.name)
        if match is None:
            continue
        target = root / match[1]
        if (
            match[2] and not target.exists()
        ):  # an earlier checkpoint of this step; killed before the new one replaced it
            path.rename(target)
        else:
            shutil.rmtree(path)


def read_config(folder: Path) -> dict[str, Any]:
    """Returns the content of `config.json` in a run's folder; an empty dict if the file is missing or
    unreadable."""
    try:
        return json_lines.parsed((folder / CONFIG_FILE).read_bytes()) or {}
    except OSError:
        return {}


def is_begun(folder: Path) -> bool:
    """Returns whether a reinforcement-learning run has been started in `folder`: whether its config is there,
    with or without checkpoints."""
    return "orchestrator" in read_config(folder)


def start_from(config: RunConfig) -> Path | None:
    """Returns the folder of the checkpoint from which the run resumes, or None if it starts from the first
    step.

    A run that was killed before its first checkpoint starts from the first step, whether or not the config
    says `resume`. Raises UsageError if the config does not say `resume`, but the run's folder contains
    checkpoints, or a config or metrics that are not those of a reinforcement-learning run. Raises
    MissingError if the config says `resume` and the checkpoint does not exist.
    """
    resume, root = config.resume, config.folder / CHECKPOINTS
    checkpoints, begun = steps(root), is_begun(config.folder)
    if resume is None:
        there = [name for name in (METRICS_FILE, CONFIG_FILE) if (config.folder / name).exists()]
        if checkpoints or (there and not begun):
            raise UsageError(
                "a run of this name is there already",
                where=str(config.folder),
                remedy="give another --run.name"
                + (", or --resume to continue it" if checkpoints else ""),
            )
        return None
    if resume.step is None and not checkpoints and begun:
        return None
    if not checkpoints or (resume.step is not None and resume.step not in checkpoints):
        known = ", ".join(map(str, checkpoints)) or "none"
        raise MissingError(
            f"no checkpoint to resume from (there: {known})",
            where=str(root),
            remedy="check run.name and resume.step",
        )
    return step_folder(root, resume.step or checkpoints[-1])


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Context manager that creates a run's folder and locks it against other runs. At the end, releases the
    lock; removes the folder if it is empty, and the empty parent folders that were created. Raises UsageError
    if another process has locked the folder, or if the folder cannot be written."""
    try:
        missing = [path for path in (folder, *folder.parents) if not path.exists()]
        lock = _lock(folder)
    except BlockingIOError:
        raise UsageError(
            "another run is under way in this folder",
            where=str(folder),
            remedy="wait for its end, or give another --run.name",
        ) from None
    except OSError as error:
        raise _not_written(folder, error) from error
    try:
        yield
    finally:
        with suppress(OSError):  # the folder is not empty; an error of the run is more important
            (folder / _LOCK_FILE).unlink(missing_ok=True)
            for path in missing or [folder]:
                path.rmdir()
        os.close(lock)


def has_content(folder: Path) -> bool:
    """Returns whether a folder exists and contains anything else than a lock file and files that a killed
    process has not finished."""
    if not folder.is_dir():
        return False
    return any(p.name != _LOCK_FILE and not paths.is_unfinished(p) for p in folder.iterdir())


def in_use(folder: Path) -> bool:
    """Returns whether a process has locked the run's folder, that is, whether the run is still in
    progress."""
    try:
        lock = os.open(folder / _LOCK_FILE, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # a file system that has no locks
    finally:
        os.close(lock)
    return False


def write_config(folder: Path, text: str) -> None:
    """Writes `text` to `config.json` in the run's folder. An existing file is replaced atomically.
    Raises UsageError if the file cannot be written."""
    try:
        paths.write_whole(folder / CONFIG_FILE, f"{text}\n".encode())
    except OSError as error:
        raise _not_written(folder, error) from error


def _lock(folder: Path) -> int:
    """Creates the lock file of a run's folder, locks it, and returns its open file descriptor. Raises
    BlockingIOError if another process has locked the file. If the file system does not support locks, logs a
    warning and returns the descriptor of the unlocked file."""
    path = folder / _LOCK_FILE
    # Retries, because another run that ends at this moment may remove the file, and the folder if it is
    # empty.
    for remaining in reversed(range(100)):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except (FileNotFoundError, FileExistsError):
            if not remaining:
                raise
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_same_file(path, lock):
                return lock
        except OSError as error:
            if error.errno in WITHOUT_LOCKS:
                _LOG.warning("%s: this file system has no locks; do not start a run twice", folder)
                return lock
            os.close(lock)
            raise
        os.close(lock)
    raise BlockingIOError


def _is_same_file(path: Path, file: int) -> bool:
    """Returns whether the open file descriptor `file` refers to the file that is now at `path`. Another
    process may have removed or replaced the file since it was opened."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file))
    except FileNotFoundError:
        return False


def _not_written(folder: Path, error: OSError) -> UsageError:
    return UsageError(
        f"cannot be written: {os.strerror(error.errno or 0)}",
        where=str(folder),
        remedy="free space or give another --output-dir",
    )
