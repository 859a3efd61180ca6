"""Implements `air tasks harbor:PATH`: lists Harbor tasks (task folders in Harbor's format), each with its
image and tests and, if air cannot play it, with the reason."""

from __future__ import annotations

from collections.abc import Sequence

from air.cli.output import print_columns, safe
from air.errors import AirError

HEADER = ("task", "image", "verifier", "steps", "state")


def listing(ids: Sequence[str]) -> int:
    """Prints a table of Harbor tasks, and returns the exit code 0. `ids` are task ids `harbor:PATH`; a PATH
    may be a folder of many tasks. Only reads files: builds and downloads no image, and starts no sandbox."""
    from air import tasks

    rows = [row(task_id) for task_id in tasks.expanded(ids)]
    print_columns([HEADER, *rows])
    refused = sum(one[-1] != "ok" for one in rows)
    print(f"{len(rows)} tasks, {refused} of them refused")
    return 0


def row(task_id: str) -> tuple[str, ...]:
    """Returns the cells of one Harbor task in the table: its id; its container image; where the task wants
    its tests to run (in a sandbox of their own, or in the agent's); the number of its stages (Harbor calls
    them steps); and `ok`, or the reason why air refuses the task."""
    from air.tasks.sources import harbor_images as images
    from air.tasks.sources.harbor import ids, unsupported_features
    from air.tasks.sources.harbor.settings import HarborSettings

    try:
        folder = ids.locate(task_id, HarborSettings().folder).read()
        steps = folder.config.steps
        modes = sorted({folder.config.verifier_mode(step) for step in steps or (None,)})
        reasons = unsupported_features.refusals(folder)
        image = "-" if reasons else images.agent_image(folder)
    except AirError as error:
        return (safe(task_id), "-", "-", "-", f"refused: {_line(str(error))}")
    state = f"refused: {_line('; '.join(reasons))}" if reasons else "ok"
    return (safe(task_id), safe(image), ", ".join(modes), str(len(steps) or 1), state)


def _line(text: str) -> str:
    return safe(" ".join(text.split()))
