"""Lists the resources that a task needs but this machine lacks: GPUs, container images, downloaded files."""

from __future__ import annotations

from air import paths
from air.errors import InfrastructureError, UsageError
from air.tasks import downloads
from air.tasks.rules import Rules
from air.tasks.spec import Provider, TaskSpec

_USUAL_IMAGE = "air-base"


def missing(task: TaskSpec, provider: Provider = "docker") -> list[str]:
    """Returns messages that say which GPUs, container images and downloads the task needs and this machine
    lacks; an empty list if it lacks none. `provider` is the kind of the task's boxes (sandboxes): `docker` or
    `process`.

    A message about an image or downloads names the command that gets what is missing. The image `air-base` is
    not checked here, because `air doctor` checks it.
    """
    from air.sandbox.docker import air_images
    from air.sandbox.pool import gpus

    lacks = []
    count = max(task.gpus, task.grader.gpus)
    if count and (present := len(gpus.inventory())) < count:
        lacks.append(f"{count} gpu (here: {present})")
    if task.rules is not None:
        lacks += _missing_images(task.rules)
    elif (
        provider == "docker" and task.image != _USUAL_IMAGE and air_images.why_not_ready(task.image)
    ):
        short = task.image.removeprefix("air-")
        ours = (paths.shipped("images") / short / "Dockerfile").is_file()
        how = f"air images build {short}" if ours else f"make it, and air images build ./{short}"
        lacks.append(f"image {task.image} ({how})")
    if downloads.absent(task):
        lacks.append(f"data ({downloads.command(task)})")
    return lacks


def _missing_images(rules: Rules) -> list[str]:
    """Returns one message for each container image that a task needs and this machine lacks. `rules` is the
    object that prepares and grades a task of another format, such as Harbor's, and knows its images. If the
    container engine does not answer, the only message is its error."""
    from air.sandbox.docker import engine

    try:
        absent = [name for name in rules.images if engine.image(name) is None]
    except (UsageError, InfrastructureError) as error:  # such as no container engine
        return [str(error)]
    return [f"image {name} ({rules.build_command})" for name in absent]
