"""The generated pages of the reference, each from the code that it describes.

    configuration.md   every key of a run file and of the environment, from the pydantic models
    prime-rl-keys.md   the keys that only prime-rl reads, from air's table of its schema
    commands.md        every command and flag, from argparse
    trajectory.md      every line of a trajectory, from `air.trajectories`
    task-toml.md       every key of `task.toml` and `solvers.toml`, from `air.tasks`

A test requires that `undescribed()` is empty: every key, flag and field has a description.
"""

from __future__ import annotations

from collections.abc import Callable

from .commands import commands, commands_page, flags
from .configuration import (
    coevolution_file,
    configuration_page,
    matrix_file,
    prime_rl_page,
    run_file,
    sft_file,
)
from .formats import line_sections, solvers_file, task_file, task_page, trajectory_page

__all__ = ["PAGES", "undescribed"]

PAGES: dict[str, Callable[[], str]] = {
    "configuration.md": configuration_page,
    "prime-rl-keys.md": prime_rl_page,
    "commands.md": commands_page,
    "trajectory.md": trajectory_page,
    "task-toml.md": task_page,
}
"""Every generated page, below `reference/`."""


def undescribed() -> list[str]:
    """Returns a line for every key, flag and field without a description."""
    files = {
        "run file": run_file(),
        "sft file": sft_file(),
        "matrix file": matrix_file(),
        "co-evolution file": coevolution_file(),
        "trajectory": line_sections(),
        "task.toml": task_file(),
        "solvers.toml": solvers_file(),
    }
    lines = [
        f"{file}: {section.title} {row.name}"
        for file, sections in files.items()
        for section in sections
        for row in section.rows
        if not row.meaning
    ]
    for command in commands():
        if not command.help:
            lines.append(f"command: {command.name}")
        lines += [f"flag: {command.name} {row.name}" for row in flags(command) if not row.meaning]
    return lines
