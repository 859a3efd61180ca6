"""Runs supervised fine-tuning (`sft`) in a run's folder: settings, metrics, checkpoints, and resuming.

The folder contains `sft.json` (the settings) and `metrics.jsonl`. It contains `checkpoints/` if the run file
configures checkpoints or the training was stopped. At the end, the folder also contains the trained model.
"""

from __future__ import annotations

import resource
import shlex
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from air import json_lines, paths
from air.aio import restore_signal_handlers
from air.errors import MissingError, UsageError
from air.train.config import overrides
from air.train.config.sft_config import SFTRunConfig
from air.train.devices import device
from air.train.loop import resume_branches, run_folder
from air.train.model import adapters, checkpoint
from air.train.model.demonstrations import read_examples
from air.train.model.policy import Policy, load
from air.train.model.sft import SFT
from air.trajectories import metric_rows

OnRow = Callable[[dict[str, Any]], None]


_LAST_FILES = (run_folder.CONFIG_FILE, adapters.ADAPTER_CONFIG)
"""The files that are written last into the folder of a trained model, so that their presence shows that the
folder is complete: `config.json` for a whole model, or the adapter's config for a LoRA adapter."""


def run(config: SFTRunConfig, on_row: OnRow, say: Callable[[str], None]) -> dict[str, float]:
    """Trains a model on demonstrations, and writes the trained model into `config.folder`. Returns numbers
    about the training data by name, such as the number of demonstrations (those of `SFT.facts`).

    `on_row` is called with each line of `metrics.jsonl`, and `say` with each message for the user. SIGINT
    (Ctrl-C) or SIGTERM stops the training after the present step: a checkpoint is written, and
    KeyboardInterrupt is raised. Raises UsageError if the model, the demonstrations or the folder cannot be
    used.
    """
    embedded = config.embedded
    with (
        run_folder.locked(config.folder),
        _stop_requests() as stopped,
        device.choose(embedded.device) as place,
        embedded.training_threads(),
    ):
        say(str(place))
        run_folder.remove_unfinished(config.folder)
        start = start_from(config)
        examples = read_examples(Path(config.data.name).expanduser())
        held_out = read_examples(Path(config.val.data.name).expanduser()) if config.val else []
        policy = load(
            start or _expanded(config.model.name),
            dtype=place.dtype(embedded.dtype),
            device=place.torch_device,
            attention=embedded.attention,
            lora=config.model.lora,
        )
        policy.renderer_config = config.renderer
        training = SFT(
            policy,
            examples,
            config,
            held_out=held_out,
            micro_batch_tokens=embedded.micro_batch_tokens,
            gradient_checkpointing=embedded.gradient_checkpointing,
        )
        if start is not None:
            training.load_state_dict(checkpoint.load_state(start)[1])
            say(f"resuming after step {training.steps}")
        _move_later_results(config, training.steps, say)
        _write_settings(config, config.folder)
        _steps(config, policy, training, on_row, stopped)
        save(policy, config.folder)
    return training.facts


def start_from(config: SFTRunConfig) -> Path | None:
    """Returns the folder of the checkpoint from which the training resumes, or None if it starts from the
    first step.

    A training that was killed before its first checkpoint starts from the first step, whether or not `resume`
    is set. Raises UsageError if `config.folder` contains a trained model, or if it contains checkpoints and
    `resume` is not set. Raises MissingError if the checkpoint to resume from does not exist.
    """
    folder, resume = config.folder, config.resume
    root = folder / run_folder.CHECKPOINTS
    steps = run_folder.steps(root)
    if any((folder / name).exists() for name in _LAST_FILES):
        raise UsageError(
            "the folder has a policy already",
            where=str(folder),
            remedy="use another --run.name, or remove the folder",
        )
    if resume is None:
        if steps:
            raise UsageError(
                f"a training was stopped here after step {steps[-1]}",
                where=str(folder),
                remedy="give --resume to continue it, or another --run.name",
            )
        return None
    begun = (folder / run_folder.SFT_FILE).exists()
    if resume.step is None and not steps and begun:
        return None
    if not steps or (resume.step is not None and resume.step not in steps):
        known = ", ".join(map(str, steps)) or "none"
        raise MissingError(
            f"no checkpoint to resume from (there: {known})",
            where=str(root),
            remedy="check run.name and resume.step",
        )
    return run_folder.step_folder(root, resume.step or steps[-1])


def save(policy: Policy, folder: Path) -> None:
    """Writes the trained model into the run's folder `folder`, which the caller must have locked. The last
    file written is `config.json` (for a LoRA adapter: `adapter_config.json`). So if this file is there, the
    model is complete, even if a process was killed while saving."""
    unfinished = folder / ".policy"
    shutil.rmtree(unfinished, ignore_errors=True)  # left by a killed process
    unfinished.mkdir()
    try:
        policy.save(unfinished)
        for path in sorted(unfinished.iterdir(), key=lambda p: p.name in _LAST_FILES):
            path.rename(folder / path.name)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _steps(
    config: SFTRunConfig,
    policy: Policy,
    training: SFT,
    on_row: OnRow,
    stopped: Callable[[], bool],
) -> None:
    def log(metrics: dict[str, float]) -> None:
        row = metric_rows.current(metrics)
        if metrics.get("seconds"):
            row["tokens_per_second"] = metrics["train_tokens"] / metrics["seconds"]
        row["peak_memory_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        json_lines.append(config.folder / run_folder.METRICS_FILE, [row])
        on_row(row)

    def keep() -> None:
        checkpoint.save(
            config.folder / run_folder.CHECKPOINTS,
            training.steps,
            policy,
            training.state_dict(),
            keep_last=config.ckpt.keep_last if config.ckpt else None,
        )

    if first := training.first_row():
        log(first)
    interval = config.ckpt.interval if config.ckpt else None
    while training.steps < config.max_steps:
        if stopped():
            if training.steps and training.steps not in run_folder.steps(
                config.folder / run_folder.CHECKPOINTS
            ):
                keep()
            raise KeyboardInterrupt
        log(training.step())
        if interval and training.steps % interval == 0:
            keep()


def _move_later_results(config: SFTRunConfig, step: int, say: Callable[[str], None]) -> None:
    """If an earlier process of this run trained beyond step `step`, from which the run now resumes, moves the
    results of those later steps into a new folder under `branches/` in the run's folder, and tells the user
    through `say`. Writes `sft.json` into the new folder, changed so that it describes a run with this
    folder's path and name."""
    branch = resume_branches.move_later_results(config.folder, step)
    if branch is None:
        return
    named = config.run.model_copy(update={"name": branch.name})
    _write_settings(config.model_copy(update={"output_dir": branch.parent, "run": named}), branch)
    say(f"what was trained after step {step} is now in {branch}")


def _write_settings(config: SFTRunConfig, folder: Path) -> None:
    # Without `resume`, so that a user who starts from this file must choose again where to resume.
    text = overrides.dump(config.model_copy(update={"resume": None}))
    paths.write_whole(folder / run_folder.SFT_FILE, f"{text}\n".encode())


def how_to_resume(config: SFTRunConfig) -> str:
    """Returns the shell command that resumes the training, or an empty string if there is no checkpoint."""
    if not run_folder.steps(config.folder / run_folder.CHECKPOINTS):
        return ""
    file = shlex.quote(str(config.folder / run_folder.SFT_FILE))
    return f"{paths.command('sft')} @ {file} --resume"


@contextmanager
def _stop_requests() -> Iterator[Callable[[], bool]]:
    """Context manager that intercepts the first SIGINT or SIGTERM. Yields a function that returns whether
    such a signal was received. A second signal has its usual effect. Outside the main thread, which alone may
    handle signals, nothing is intercepted."""
    requests: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, _: FrameType | None) -> None:
        requests.append(number)
        restore_signal_handlers(before)

    for number in before:
        signal.signal(number, note)
    try:
        yield lambda: bool(requests)
    finally:
        restore_signal_handlers(before)


def _expanded(name: str) -> str | Path:
    return Path(name).expanduser() if name.startswith("~") else name
