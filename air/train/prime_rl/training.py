"""Runs one training with prime-rl to its end, for an experiment of several trainings.

The training's folder is one that prime-rl writes. In it, air adds the folder `merged`: the trained model in
the Hugging Face format, made from prime-rl's last checkpoint. If `merged` exists, the training is finished.
A training that was interrupted continues after the last checkpoint that is complete.
"""

from __future__ import annotations

import asyncio
import copy
import fcntl
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from air import paths
from air.aio import cancelled_by_signals, wait_shielded
from air.errors import InfrastructureError, MissingError, UsageError, boundary
from air.train.config.overrides import MergedSettings, read_files
from air.train.loop.run_folder import WITHOUT_LOCKS
from air.train.prime_rl import launch, run_file
from air.train.prime_rl.gpu_placement import Placement

_LOG = logging.getLogger(__name__)
MERGED = "merged"
CHECKPOINTS = "checkpoints"
_STOPS_LATER = "prime-rl: stops when the checkpoint is converted"
_FILES = {"trainer": ".metadata", "orchestrator": "progress.pt"}
"""The file of each part of a prime-rl checkpoint that is written last, so that a part with it is complete."""


@dataclass(frozen=True)
class PrimeTraining:
    """A training with prime-rl. `settings` is the content of its run file; it has the keys `output_dir`,
    `run.name`, `model.name`, `max_steps` and `ckpt`."""

    settings: Mapping[str, Any]

    @property
    def folder(self) -> Path:
        """The path of the training's folder."""
        return self._output_dir / self._name

    @property
    def run_file(self) -> Path:
        """The path of the run file (JSON) that `run` writes beside the training's folder. `rl @ FILE` starts
        the same training."""
        return self._output_dir / f"{self._name}_prime_rl.json"

    def result(self) -> Path | None:
        """Returns the folder of the trained model; None if the training is not finished."""
        return self._merged if self._merged.is_dir() else None

    def check(self) -> None:
        """Checks that prime-rl is installed, that this machine has the GPUs that the training needs, and that
        episodes would not be too slow (see `launch.make_plan`). Raises MissingError or ConfigError
        otherwise."""
        self._interpreter()
        launch.make_plan(self._copied(), None).check_real()

    def placement(self) -> Placement:
        """Returns which GPUs of this machine the training uses. Raises MissingError if the machine has none,
        and ConfigError if it has too few."""
        return launch.real_placement(run_file.read(self._copied()))

    def _copied(self) -> MergedSettings:
        """Returns a copy of the settings, because their validation changes them."""
        return MergedSettings(copy.deepcopy(dict(self.settings)))

    async def run(self, say: Callable[[str], None]) -> Path:
        """Trains, or continues an interrupted training, and returns the folder of the trained model. `say`
        prints a line for the user. Call this in the main thread.

        Raises InfrastructureError if prime-rl ends with an error. Raises UsageError if prime-rl still runs in
        this folder, because it was started by a process that has been killed. If the task is cancelled, or
        this process gets SIGINT (Ctrl-C) or SIGTERM, ends prime-rl and raises CancelledError; checkpoints are
        kept. The second time, kills prime-rl. If the last checkpoint is being converted, raises
        CancelledError when that has ended.
        """
        if (done := self.result()) is not None:
            return done
        task = asyncio.current_task()
        assert task is not None

        def cancel_again() -> None:
            task.cancel()

        with self._locked() as lock, cancelled_by_signals(cancel_again):
            if not self._has(self._steps, "trainer"):
                await self._train(lock, say)
            await self._convert(say)
        return self._merged

    async def _train(self, lock: int, say: Callable[[str], None]) -> None:
        text = json.dumps(dict(self.settings), indent=1)
        paths.write_whole(self.run_file, f"{text}\n".encode())
        merged = read_files([f"@{self.run_file}"])
        plan = launch.make_plan(merged, None)
        plan.check_real()
        begun = self._how_to_begin()
        say(f"prime-rl: {' '.join(begun) or 'a new run'} (rl @ {self.run_file})")
        args = ["@", str(self.run_file), *begun]
        code = await launch.hand_over_in_task(self._interpreter(), args, plan, keep=[lock])
        logs = self.folder / "logs" / "latest"
        further = f"; its logs: {logs}" if logs.exists() else ""
        if code:
            raise InfrastructureError(f"prime-rl ended with exit code {code}{further}")
        if not self._has(self._steps, "trainer"):
            raise InfrastructureError(
                f"prime-rl ended without a checkpoint of step {self._steps}{further}"
            )

    def _how_to_begin(self) -> list[str]:
        """Returns the flags with which prime-rl continues after the last complete checkpoint, and deletes the
        incomplete ones after it. If no checkpoint is complete, the flags let prime-rl start anew, and delete
        what an interrupted start has left."""
        for step in sorted(self._saved_steps(), reverse=True):
            if all(self._has(step, part) for part in _FILES):
                return ["--resume.step", str(step)]
            # prime-rl writes this step again into the same folder, where an old `.metadata` or `progress.pt`
            # would make the half-written step look complete.
            with boundary(UsageError, str(self._checkpoint(step)), OSError):
                shutil.rmtree(self._checkpoint(step))
        return ["--clean"] if self.folder.exists() else []

    def _saved_steps(self) -> list[int]:
        names = (path.name for path in (self.folder / CHECKPOINTS).glob("step_*"))
        return [int(name[5:]) for name in names if name[5:].isdecimal()]

    def _has(self, step: int, part: str) -> bool:
        return (self._checkpoint(step) / part / _FILES[part]).is_file()

    def _checkpoint(self, step: int) -> Path:
        return self.folder / CHECKPOINTS / f"step_{step}"

    async def _convert(self, say: Callable[[str], None]) -> None:
        """Calls `_merge` in a thread. The thread cannot be stopped, and the lock must outlast it. So if the
        task is cancelled, also more than once, waits until the thread has ended, and then raises
        CancelledError. A failure of the conversion is then not shown; the next start converts again."""
        say("prime-rl: converts the last checkpoint")
        # Not `asyncio.to_thread`: it makes a task, which the end of `asyncio.run` would cancel.
        merging = asyncio.get_running_loop().run_in_executor(None, self._merge)
        await wait_shielded(merging, lambda: say(_STOPS_LATER))

    def _merge(self) -> None:
        """Converts the last checkpoint to a Hugging Face folder. This folder appears when it is complete."""
        from air.train.model.shards.merge import merge

        for unfinished in self.folder.glob(f".{MERGED}.*"):  # of a process that was killed
            shutil.rmtree(unfinished, ignore_errors=True)
        shards = self._checkpoint(self._steps) / "trainer"
        merge(shards, self._merged, base=self.settings["model"]["name"])

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Context manager: locks the training against other processes, and yields the file descriptor of the
        locked file. prime-rl's launcher inherits it. So the lock lasts until the launcher has ended, even if
        this process is killed."""
        file = self._output_dir / f".{self._name}.lock"
        with boundary(UsageError, str(file), OSError):
            self._output_dir.mkdir(parents=True, exist_ok=True)
            lock = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(
                    "prime-rl, which an earlier process started, still runs in this folder",
                    where=str(self.folder),
                    remedy="wait until it has ended",
                ) from None
            except OSError as error:
                if error.errno not in WITHOUT_LOCKS:
                    raise UsageError(f"cannot be locked: {error}", where=str(file)) from error
                _LOG.warning("%s: this file system has no locks; do not start it twice", file)
            yield lock
        finally:
            os.close(lock)

    def _interpreter(self) -> Path:
        python = launch.interpreter()
        if python is None:
            raise MissingError(launch.NOT_INSTALLED, remedy=launch.HOW_TO_INSTALL)
        return python

    @property
    def _output_dir(self) -> Path:
        return Path(self.settings["output_dir"])

    @property
    def _name(self) -> str:
        return str(self.settings["run"]["name"])

    @property
    def _steps(self) -> int:
        return int(self.settings["max_steps"])

    @property
    def _merged(self) -> Path:
        return self.folder / MERGED
