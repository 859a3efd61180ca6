"""Lists the container images that Harbor tasks need. Does not build or pull any image."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from air.errors import AirError
from air.sandbox.images import build_contexts
from air.sandbox.images.build_contexts import WantedImage
from air.tasks.sources.harbor import ids
from air.tasks.sources.harbor.folder import HarborFolder
from air.tasks.sources.harbor.schema import Step
from air.tasks.sources.harbor.unsupported_features import refusals


def agent_image(folder: HarborFolder) -> str:
    """Returns the name of the container image of the agent's box (sandbox): the image that the task declares,
    or the tag of the image that air builds from the task's folder `environment/`.

    Raises MissingError if the task has neither an image nor a Dockerfile.
    """
    return folder.config.environment.docker_image or build_contexts.tag(folder.path / "environment")


def verifier_image(folder: HarborFolder, step: Step | None = None) -> str | None:
    """Returns the name of the container image that already contains the task's tests, so that they run in a
    sandbox of their own with this image. Returns None if there is no such image, or if the tests run in the
    agent's box. `step` is a step (stage) of the Harbor task; None if the task has no steps."""
    if folder.config.verifier_mode(step) != "separate":
        return None
    source = folder.verifier_image(step)
    return build_contexts.tag(source) if isinstance(source, Path) else source


def wanted(folder: HarborFolder) -> Iterator[WantedImage]:
    """Yields the container images that a task needs: first that of the agent's box (sandbox), then those of
    the tests, if the tests have their own. Each image appears once."""
    environment = folder.config.environment
    image = agent_image(folder)
    context = None if environment.docker_image else folder.path / "environment"
    yield WantedImage(image, context, environment.build_timeout_sec, folder.name)
    seen = {image}
    for step in folder.config.steps or (None,):
        own_image = verifier_image(folder, step)
        if own_image is None or own_image in seen:
            continue
        seen.add(own_image)
        own = step.verifier.environment if step else None
        seconds = (own or folder.config.verifier.environment or environment).build_timeout_sec
        source = folder.verifier_image(step)
        context = source if isinstance(source, Path) else None
        yield WantedImage(own_image, context, seconds, folder.name)


def wanted_of(task_id: str, root: Path) -> tuple[list[WantedImage], list[str]]:
    """Lists the container images that some Harbor tasks need, so that they can be built or pulled. `task_id`
    has the form `harbor:PATH` and names one task, or a set of tasks such as a folder; a relative path starts
    at `root`.

    Returns two lists. The first has the images of all tasks that air can run; an image that several tasks
    need appears several times. The second has one line of text for each other task: its name, and why air
    cannot run it. Raises MissingError if there is no such task, and ConfigError if a data set's file is
    invalid.
    """
    images, faults = list[WantedImage](), list[str]()
    for task in ids.named(task_id, root):
        try:
            folder = task.read()
            if reasons := refusals(folder):
                faults.append(f"{task.name}: {'; '.join(reasons)}")
                continue
            images += wanted(folder)
        except AirError as error:
            faults.append(f"{task.name}: {error}")
    return images, faults
