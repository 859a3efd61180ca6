"""Writes a run's `groups.jsonl`: the episodes of each group, with their rewards and advantages.

A line is `{"v": 1, "step": …, "group": …, "task": …, "source": …, "episodes": […]}`. The groups of a step are
numbered from 0. `source` is the name of an `[[orchestrator.train.source]]` of the run file. An episode is
`{"episode": …, "reward": …, "advantage": …, "weights_version": …, "reply_versions": […], "error": …}`:
`episode` is the name of the episode's trajectory file (null if the episode failed before the first line was
written). If the episode failed, `reward` is null and `error` says why; otherwise `error` is null. `advantage`
is the mean over the episode's parts (`Rollout.advantage`). `reply_versions` has, for each of the model's
replies, the number of the training step that made the weights which sampled this reply; `weights_version` is
the smallest of these numbers. A line can also have `"greedy"`: an episode that was sampled at temperature 0
as a baseline and is not trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from air import json_lines
from air.train.loop.rollout import Group, Rollout

VERSION = 1
FILE = "groups.jsonl"


def rows(step: int, groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Returns the lines of training step `step` for `groups.jsonl`, one dict per group. Call
    `air.train.loop.samples.samples` first, because it sets the advantages of the episodes."""
    return [
        {
            "v": VERSION,
            "step": step,
            "group": number,
            "task": group.rollouts[0].task if group.rollouts else None,
            "source": group.rollouts[0].source if group.rollouts else None,
            "episodes": [_member(rollout) for rollout in group.rollouts],
            **({} if group.greedy is None else {"greedy": _member(group.greedy)}),
        }
        for number, group in enumerate(groups)
    ]


def append(folder: Path, step: int, groups: Sequence[Group]) -> None:
    """Appends one line per group of a training step to `groups.jsonl` in the run's folder `folder`."""
    json_lines.append(folder / FILE, rows(step, groups))


def _member(rollout: Rollout) -> dict[str, Any]:
    return {
        "episode": rollout.info.get("episode"),
        "reward": rollout.reward if rollout.ok else None,
        "advantage": rollout.advantage,
        "weights_version": rollout.weights_version,
        "reply_versions": [
            rollout.version_of(node)
            for trace in rollout.traces
            for node in trace.nodes
            if node.sampled and any(node.mask)
        ],
        "error": rollout.error or None,
    }
