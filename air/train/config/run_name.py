"""The name of a run: the settings in the run file's table `[run]`, and a default for runs without a name."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Sequence
from pathlib import Path

from pydantic import field_validator

from air.config import BaseConfig

_NAMED_TASKS = 3
"""Largest number of task ids in a run's default name. If there are N further tasks, the name has the text
`N-more` in place of their ids."""


class RunNameConfig(BaseConfig):
    """Settings in the run file's table `[run]`: the name of the run."""

    name: str | None = None
    """The name of the run, whose folder is `output_dir / name`. A name with slashes, such as `games/first`,
    is a path below `output_dir`. None: a new name from the date, the tasks and the model, with a random
    part."""

    @field_validator("name")
    @classmethod
    def _stays_below_output_dir(cls, value: str | None) -> str | None:
        parts = [] if value is None else value.split("/")
        if value is not None and ("\0" in value or {"", ".", ".."} & set(parts)):
            raise ValueError(
                f"{value!r} is not a name in the folder of runs; --output-dir sets this folder"
            )
        return value


def default_name(tasks: Sequence[str], model: str) -> str:
    """Returns a new name for a run. It consists of the date, the ids of its tasks (`tasks`), the name of its
    model (`model`, a hub id or folder) and a random part."""
    more = [f"{len(tasks) - _NAMED_TASKS}-more"] if len(tasks) > _NAMED_TASKS else []
    parts = "-".join([time.strftime("%Y-%m-%d"), *tasks[:_NAMED_TASKS], *more])
    name = f"{parts}--{Path(model).name}--{secrets.token_hex(3)}"
    return re.sub(r"[^\w.-]+", "_", name)  # ids of tasks and models can be paths and URLs
