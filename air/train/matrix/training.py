"""Runs one training of a matrix or co-evolution: starts it, resumes it, or skips it if it is finished."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from rich.console import Console

from air.errors import InfrastructureError
from air.train.config.run_config import ResumeConfig, RunConfig
from air.train.loop import run_folder
from air.train.loop.progress import Progress
from air.train.loop.run import EmbeddedRun

OpenTrainingLog = Callable[[Path], AbstractContextManager[Callable[[], None]]]
"""The type of functions that take the folder of a training and return a context manager. The context manager
yields a function; after a call of this function, log lines go to a file in the folder, until the `with` block
ends."""


def last_checkpoint(config: RunConfig) -> Path | None:
    """Returns the folder of the last checkpoint of the training with the settings `config`; None if the
    training has not reached its last step."""
    root = config.folder / run_folder.CHECKPOINTS
    done = config.max_steps in run_folder.steps(root)
    return run_folder.step_folder(root, config.max_steps) if done else None


async def train(
    config: RunConfig, title: str, say: Callable[[str], None], logged: OpenTrainingLog
) -> Path:
    """Runs a training, or resumes it, until it is finished, and returns the folder of its last checkpoint.
    `title` is the title of the progress display; `say` prints a line for the user; `logged` opens the
    training's log file (see `OpenTrainingLog`). Raises the errors that `EmbeddedRun.run` raises."""
    if (done := last_checkpoint(config)) is not None:
        return done
    steps = run_folder.steps(config.folder / run_folder.CHECKPOINTS)
    if run_folder.is_begun(config.folder):
        config = config.model_copy(update={"resume": ResumeConfig()})
    say(f"{title}: {'training goes on after step ' + str(steps[-1]) if steps else 'training'}")
    with (
        logged(config.folder) as open_log,
        Progress(config.max_steps, title=title, console=Console()) as progress,
    ):
        outcome = await EmbeddedRun(config, progress, open_log).run()
    if outcome.checkpoint is None:
        raise InfrastructureError(f"the training in {config.folder} wrote no checkpoint")
    return outcome.checkpoint
