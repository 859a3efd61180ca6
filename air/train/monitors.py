"""Writes a run's metrics to Weights & Biases and TensorBoard, if the run file (TOML) asks for them.

A monitor is a service or file format that displays metrics. If a monitor fails, the failure is reported, and
the run continues without this monitor. The file `metrics.jsonl`, which the training loop always writes, does
not depend on this module.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from air import paths
from air.errors import MissingError, UsageError

if TYPE_CHECKING:
    from air.train.config.monitor_options import WandbMonitorConfig
    from air.train.config.run_config import RunConfig

_LOG = logging.getLogger(__name__)
_TOKEN_FILE = "WANDB_IDENTITY_TOKEN_FILE"
WANDB_FOLDER, TENSORBOARD_FOLDER = "wandb", "tensorboard"


class Monitor(ABC):
    """Base class of monitors: services or file formats that display a run's metrics."""

    name: str

    @abstractmethod
    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Writes the metrics of training step `step`, by name."""

    @abstractmethod
    def close(self) -> None:
        """Writes all data that is still buffered, and closes the monitor."""


class Wandb(Monitor):
    """Sends metrics to Weights & Biases. The id of the run on Weights & Biases is stored in the run's folder
    (`wandb_file`), so that a resumed run continues under the same id.

    A run that resumes from an earlier step, and so repeats steps, gets a new id and a name of its own there,
    because its curves would otherwise mix with those of the first attempt: `NAME-from-step-5`. `done` is the
    number of finished steps of the run, 0 for a new run."""

    name = "Weights & Biases"

    def __init__(self, config: RunConfig, done: int) -> None:
        import wandb

        options = config.monitors.wandb
        assert options is not None
        folder = config.folder
        mode: Any = _mode(options)
        run_id, suffix = _id_and_suffix(folder, f"-from-step-{done}" if done else "")
        self._run = wandb.init(
            id=run_id,
            resume="allow" if mode == "online" else None,
            project=options.project,
            entity=options.entity,
            name=f"{options.name or config.run.name}{suffix}",
            group=options.group,
            tags=options.tags,
            dir=folder,
            config=without_secrets(config.model_dump(mode="json")),
            mode=mode,
            settings=wandb.Settings(silent=True, console="off"),  # the terminal is air's
        )
        self._run.define_metric("*", step_metric="step")

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._run.log({**metrics, "step": step})

    def close(self) -> None:
        self._run.finish(exit_code=0)


class TensorBoard(Monitor):
    """Writes event files with a run's metrics for `tensorboard --logdir`. If a run is resumed from an earlier
    step, TensorBoard hides the old metrics of the steps that the run repeats."""

    name = "TensorBoard"

    def __init__(self, config: RunConfig, done: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = config.folder / TENSORBOARD_FOLDER
        self._writer = SummaryWriter(str(folder), purge_step=done + 1 if folder.is_dir() else None)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class Monitors:
    """All monitors of a run (Weights & Biases, TensorBoard). The argument `monitors` maps the name of each
    monitor to a function that starts it. `say` prints a line for the user when a monitor fails; the run then
    continues without this monitor."""

    def __init__(
        self, say: Callable[[str], None], monitors: Mapping[str, Callable[[], Monitor]]
    ) -> None:
        self._say = say
        self._monitors: list[Monitor] = []
        for name, start in monitors.items():
            try:
                self._monitors.append(start())
            except Exception as error:
                # Broad on purpose: whatever a monitor raises, such as a lost network, the run can go on
                # without it.
                self._report(name, error)

    def log(self, row: Mapping[str, Any]) -> None:
        """Sends `row`, a line of `metrics.jsonl` as a dict, to all monitors. A monitor that fails gets no
        more metrics."""
        metrics = flat(row)
        for monitor in list(self._monitors):
            try:
                monitor.log(metrics, int(row["step"]))
            except Exception as error:  # broad, as above
                self._monitors.remove(monitor)
                self._report(monitor.name, error)

    def close(self) -> None:
        """Closes all monitors, so that all buffered data is written."""
        for monitor in self._monitors:
            try:
                monitor.close()
            except Exception as problem:  # broad, as above
                self._report(monitor.name, problem)

    def _report(self, name: str, error: Exception) -> None:
        reason = (str(error).splitlines() or [""])[0] or type(error).__name__
        self._say(f"{name} gets no more metrics of this run (metrics.jsonl has them all): {reason}")
        _LOG.debug("%s failed", name, exc_info=error)


def of_run(config: RunConfig, done: int, say: Callable[[str], None]) -> Monitors:
    """Starts the monitors (Weights & Biases, TensorBoard) that the run's settings ask for, and returns them.
    `done` is the number of finished steps of the run, 0 for a new run; `say` prints a line for the user."""
    monitors: dict[str, Callable[[], Monitor]] = {}
    if config.monitors.wandb is not None:
        monitors[Wandb.name] = lambda: Wandb(config, done)
    if config.embedded.tensorboard:
        monitors[TensorBoard.name] = lambda: TensorBoard(config, done)
    return Monitors(say, monitors)


def flat(row: Mapping[str, Any]) -> dict[str, float]:
    """Returns the finite numbers in `row` (a line of `metrics.jsonl` as a dict) by name, without the number
    of the step. A number in the nested dict of a single task or source gets the name `tasks/<id>/…` or
    `sources/<name>/…`."""
    metrics: dict[str, float] = {}
    for name, value in row.items():
        if name in ("tasks", "sources") and isinstance(value, Mapping):
            for part, cell in value.items():
                metrics |= {f"{name}/{part}/{key}": one for key, one in flat(cell).items()}
        elif name != "step" and isinstance(value, int | float) and math.isfinite(value):
            metrics[name] = float(value)
    return metrics


def check(config: RunConfig, find: Callable[[str], object] = find_spec) -> None:
    """Checks that the monitors in the run's settings can start. Raises MissingError if the package of a
    monitor is not installed. Raises UsageError if Weights & Biases has no API key and would ask for it on the
    terminal. `find` takes the name of a package and returns None if the package is not installed."""
    needed = {
        "wandb": "[monitors.wandb]" if config.monitors.wandb is not None else "",
        "tensorboard": "embedded.tensorboard" if config.embedded.tensorboard else "",
    }
    for package, key in needed.items():
        if key and find(package) is None:
            raise MissingError(
                f"{key} needs the package {package}, which is not installed",
                remedy=f"pip install 'air-agent[{package}]'",
            )
    if config.monitors.wandb is not None and _mode(config.monitors.wandb) == "online":
        check_key(os.environ, asks=sys.stdin.isatty() and sys.stdout.isatty())


def without_secrets(settings: Any) -> Any:
    """Returns a run's settings (nested dicts and lists) without the keys whose values may be secret: HTTP
    headers, the seed of the data splits, and environment variables of programs."""
    if isinstance(settings, Mapping):
        return {k: without_secrets(v) for k, v in settings.items() if not _is_secret(k, v)}
    return [without_secrets(one) for one in settings] if isinstance(settings, list) else settings


def _is_secret(name: str, value: Any) -> bool:
    # A source's `env` with a taskset is its environment; any other `env` holds environment variables.
    variables = name == "env" and not (isinstance(value, Mapping) and "taskset" in value)
    return variables or name in ("headers", "split_seed")


def check_key(environ: Mapping[str, str], *, asks: bool) -> None:
    """Raises UsageError if the package `wandb` has no API key and would ask the user for it on the terminal,
    where the run's live table would hide the question. `environ` are the environment variables. If `asks` is
    false, `wandb` cannot ask, and nothing is checked."""
    if not asks or any(environ.get(name) for name in ("WANDB_API_KEY", _TOKEN_FILE)):
        return
    home = Path(environ.get("HOME", "/"))
    files = [Path(environ["NETRC"])] if "NETRC" in environ else [home / ".netrc", home / "_netrc"]
    host = urlsplit(environ.get("WANDB_BASE_URL", "")).hostname or "wandb"
    texts = [file.expanduser().read_text() for file in files if file.expanduser().is_file()]
    if any(host in text or "wandb" in text for text in texts):
        return
    raise UsageError(
        "Weights & Biases has no API key",
        where="[monitors.wandb]",
        remedy="run `wandb login`, set WANDB_API_KEY, or set offline = true",
    )


def _mode(options: WandbMonitorConfig) -> str:
    return os.environ.get("WANDB_MODE") or ("offline" if options.offline else "online")


def wandb_file(folder: Path) -> Path:
    """Returns the path of the file with the id that the run in `folder` has on Weights & Biases, and, on the
    second line, what its name there has after the name of the run."""
    return folder / WANDB_FOLDER / "run_id"


def _id_and_suffix(folder: Path, suffix: str) -> tuple[str, str]:
    """Returns the two lines of `wandb_file`. If there is no such file, creates it with a new random id and
    `suffix`."""
    path = wandb_file(folder)
    if not path.is_file() or not path.read_text().strip():
        paths.write_whole(path, f"{secrets.token_hex(4)}\n{suffix}\n".encode())
    run_id, *stored = path.read_text().splitlines()
    return run_id, stored[0] if stored else ""
