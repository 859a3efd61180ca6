"""Defines the settings in a run file's table `[monitors]`: where metrics are written besides `metrics.jsonl`.

The keys, defaults and meanings are those of prime-rl (`prime_rl.configs.monitors`), in the version that the
page "Keys of prime-rl only" of the reference documentation names.
"""

from __future__ import annotations

from typing import Literal

from air.config import BaseConfig


class WandbMonitorConfig(BaseConfig):
    """Settings in the run file's table `[monitors.wandb]`: metrics are also sent to Weights & Biases."""

    project: str = "prime-rl"
    """The project on Weights & Biases."""
    entity: str | None = None
    """The user or team on Weights & Biases. None: the default of the account."""
    name: str | None = None
    """The run's name on Weights & Biases. None: `run.name`."""
    group: str | None = None
    """The group of runs on Weights & Biases to which this run belongs. None: no group."""
    tags: list[str] | None = None
    """The tags of the run on Weights & Biases. None: no tags."""
    offline: bool = False
    """Whether to write only to the folder `wandb/` in the run's folder, without uploading; `wandb sync`
    uploads it later. The environment variable `WANDB_MODE` has precedence."""


class FileMonitorConfig(BaseConfig):
    """Settings in the run file's table `[monitors.file]`: the file `metrics.jsonl` with the run's metrics,
    which the embedded engine always writes."""

    path: Literal["metrics.jsonl"] = "metrics.jsonl"
    """The name of the file with the metrics, in the run's folder. The embedded engine accepts only
    `metrics.jsonl`."""


class MonitorsConfig(BaseConfig):
    """Settings in the run file's table `[monitors]`: where metrics are written."""

    wandb: WandbMonitorConfig | None = None
    """Weights & Biases; needs `pip install 'air-agent[wandb]'`. None: not used."""
    file: FileMonitorConfig = FileMonitorConfig()
    """The file `metrics.jsonl` in the run's folder."""
