"""Builds the first line (settings, machine, versions) and the last line (outcome) of an episode's trajectory,
the file in which air records the episode. Also finds the folders and stores for such records."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import platform
from contextvars import ContextVar
from importlib import metadata
from pathlib import Path
from typing import Any

import verifiers.v1 as vf
from pydantic import TypeAdapter

from air.env.config import AirHarnessConfig, ResearchEnvConfig
from air.env.episode import Episode
from air.errors import InfrastructureError, boundary
from air.rewards.terms import RewardSettings
from air.trajectories.artefacts import ArtefactStore

TRACES = "traces"
"""The name of the subfolder, in the folder of trajectories, for traces: the records of episodes that the
library `verifiers` makes, in its own format. Each file contains one `verifiers` episode with one trace."""
_PACKAGES = ("air-agent", "verifiers", "renderers", "numpy", "pydantic", "torch", "transformers")

TRAINING_STEP: ContextVar[int | None] = ContextVar("training_step", default=None)
"""The number of the training step for which this process plays episodes, or None if unknown. The command `air
box ls` displays it."""


def folder(config: ResearchEnvConfig) -> Path | None:
    """Returns the folder for trajectories (recorded episodes), or None if the settings name none."""
    return None if config.record_dir is None else config.record_dir.expanduser()


def use(config: ResearchEnvConfig, task: str, episode: str) -> dict[str, str | int | None]:
    """Returns the keyword arguments for `Box.note_use`, which notes for what an episode's box is used: the
    ids of the task and the episode, the training step and, if trajectories are recorded, the name and the
    path of the run's folder."""
    where = folder(config)
    root = where.parent if where is not None and where.name == "trajectories" else where
    facts: dict[str, str | int | None] = {"task": task, "step": TRAINING_STEP.get()}
    if root is not None:
        facts |= {"run": root.name, "folder": str(root.resolve())}
    return facts | {"episode": episode}


def store(config: ResearchEnvConfig) -> ArtefactStore | None:
    """Returns the store for artefacts (files that agents hand in), or None if the settings turn it off."""
    where = folder(config)
    if where is None or not config.record_artefacts_mb:
        return None
    return ArtefactStore(
        where,
        most_bytes=int(config.record_artefacts_mb * 2**20),
        most_total=int(config.record_artefacts_total_mb * 2**20),
    )


@functools.cache
def versions() -> dict[str, str]:
    """Returns the versions, by name, of Python and of the installed packages that can influence a result."""
    installed = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return installed


def config_hash(config: ResearchEnvConfig) -> str:
    """Returns the SHA-256, in hex, of all settings in `config` except `record_dir` and the secret
    `split_seed`. Apart from these two, episodes with the same hash had the same settings."""
    data = config.model_dump_json(exclude={"record_dir", "split_seed"})
    return hashlib.sha256(data.encode()).hexdigest()


def started(episode: Episode) -> dict[str, Any]:
    """Returns fields, as a dict by name, for the line that air writes at the start of an episode into its
    trajectory (the file that records the episode). They come from air's settings and state;
    `air.trajectories.Start` explains each of them."""
    config = episode.config
    harness = config.agent.harness or AirHarnessConfig()
    taskset = config.taskset
    pay = config.model_dump(mode="json", include=set(RewardSettings.model_fields))
    return {
        "episode": episode.id,
        "training_step": TRAINING_STEP.get(),
        "pay": pay | {"episode_seconds": episode.seconds},
        "format": episode.format_name,
        "tools": [dict(tool) for tool in episode.format.request_tools] if episode.format else [],
        "settings": _settings(config, harness),
        "task_roots": [str(root.absolute()) for root in taskset.task_roots],
        "mlgym_root": None if taskset.mlgym_root is None else str(taskset.mlgym_root.absolute()),
        "harbor": taskset.harbor.fixed().model_dump(mode="json"),
        "isolation": episode.isolation,
        "config_hash": config_hash(config),
        "versions": versions(),
        **episode.started(),
    }


def _settings(config: ResearchEnvConfig, harness: vf.HarnessConfig) -> dict[str, Any]:
    """Returns settings that a trajectory (the file that records an episode) contains: those of air's own
    harness (its agent loop), and those that a subclass adds to `ResearchEnvConfig`."""
    added = set(type(config).model_fields) - set(ResearchEnvConfig.model_fields)
    settings = config.model_dump(mode="json", include=added)
    if isinstance(harness, AirHarnessConfig):
        settings |= harness.model_dump(mode="json", include=harness.own_fields())
    return settings


async def ended(episode: Episode, trace: vf.Trace | None) -> None:
    """Writes the last line of the trajectory, air's record of an episode. Before that, writes `verifiers`'
    record, `trace`, to another file, if there is one and the settings ask for it. Raises InfrastructureError
    if the disk is full or the folder is not writable."""
    where = await asyncio.to_thread(_write_trace, episode, trace)
    failed = episode.failed
    error = None if trace is None else trace.last_error
    episode.recorder.write(
        "end",
        ok=not failed,
        why=episode.why_ended or (trace.stop_condition if trace else "interrupted"),
        error=None if error is None else f"{error.type}: {error.message}",
        failed_action=episode.failed_action if failed else None,
        reward=None if failed else sum(episode.rewards.values()),
        terms=None if failed else episode.rewards,
        metrics=episode.metrics,
        **episode.ended(),
        branches=None if trace is None else trace.num_branches,
        trace_file=where,
    )


def _write_trace(episode: Episode, trace: vf.Trace | None) -> str:
    """Writes `trace`, `verifiers`' record of an episode, to a new file. Returns the file's path relative to
    the folder of trajectories, or "" if traces are not recorded."""
    path = episode.recorder.path
    if path is None or trace is None or not episode.config.record_traces:
        return ""
    name = f"{TRACES}/{trace.id}.jsonl"
    episode_record = vf.Episode(env={"id": "air"}, task=trace.task, traces=[trace], ok=trace.ok)
    data = TypeAdapter(type(episode_record)).dump_json(episode_record, exclude_none=True)
    with boundary(InfrastructureError, f"cannot record to {path.parent / name}", OSError):
        (path.parent / TRACES).mkdir(exist_ok=True)
        (path.parent / name).write_bytes(data + b"\n")
    return name
