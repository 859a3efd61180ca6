"""Finds what a task needs but this machine lacks: GPUs, a container image, downloaded files."""

from __future__ import annotations

from air.tasks import downloads
from air.tasks.spec import Provider, TaskSpec

_USUAL_IMAGE = "air-base"


def missing(task: TaskSpec, provider: Provider = "docker") -> list[str]:
    """Returns one text for each resource that the task needs but this machine lacks.

    The resources are GPUs, a container image and downloaded files. For an image and for files, the text names
    the command that gets them. The image `air-base` is not checked, because `air doctor` checks it.
    """
    from air.sandbox.docker import images
    from air.sandbox.pool import gpus

    lacks = []
    wanted = max(task.gpus, task.grader.gpus)
    if wanted and (found := len(gpus.inventory())) < wanted:
        lacks.append(f"{wanted} gpu (here: {found})")
    if provider == "docker" and task.image != _USUAL_IMAGE and images.unready(task.image):
        short = task.image.removeprefix("air-")
        lacks.append(f"image {task.image} (air images build {short})")
    if downloads.absent(task):
        lacks.append(f"data (air tasks fetch {task.id})")
    return lacks
