"""Lists the container images that Harbor tasks need. Does not build or pull any image."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from air.errors import AirError
from air.sandbox.images import contexts
from air.sandbox.images.contexts import WantedImage
from air.tasks.sources.harbor.datasets import find
from air.tasks.sources.harbor.folder import HarborFolder
from air.tasks.sources.harbor.schema import Environment, Step
from air.tasks.sources.harbor.unsupported_features import refusals


def agent_image(folder: HarborFolder) -> str:
    """Returns the name of the image of the agent's box: the image that the task declares, or the tag of the
    image that is built from its `environment/`.

    Raises MissingError if the task has neither an image nor a Dockerfile.
    """
    return folder.config.environment.docker_image or contexts.tag(folder.path / "environment")


def verifier_image(folder: HarborFolder, step: Step | None = None) -> str | None:
    """Returns the name of the image of a separate verifier that already contains its tests. None if the
    task's verifier has no such image, or runs in the agent's box."""
    if folder.config.verifier_mode(step) != "separate":
        return None
    declared = _declared(folder, step)
    if declared and declared.docker_image:
        return declared.docker_image
    context = _verifier_context(folder, step)
    return contexts.tag(context) if context else None


def wanted(folder: HarborFolder) -> Iterator[WantedImage]:
    """Yields the images that a task needs, each image once."""
    environment = folder.config.environment
    yield _wanted(folder, environment, folder.path / "environment")
    seen = {agent_image(folder)}
    for step in folder.config.steps or (None,):
        image = verifier_image(folder, step)
        if image is None or image in seen:
            continue
        seen.add(image)
        declared = _declared(folder, step) or environment
        yield _wanted(folder, declared, _verifier_context(folder, step))


def wanted_of(path: Path) -> tuple[list[WantedImage], list[str]]:
    """Returns two lists for the tasks at `path`: the images that they need, and one line of text for each
    task that cannot be played.

    Raises MissingError if there is no task at `path`.
    """
    images, faults = list[WantedImage](), list[str]()
    for task in find(path):
        try:
            folder = task.read()
            if reasons := refusals(folder):
                faults.append(f"{task.name}: {'; '.join(reasons)}")
                continue
            images += wanted(folder)
        except AirError as error:
            faults.append(f"{task.name}: {error}")
    return images, faults


def _wanted(folder: HarborFolder, environment: Environment, context: Path | None) -> WantedImage:
    if environment.docker_image or context is None:
        assert environment.docker_image
        return WantedImage(
            environment.docker_image, None, environment.build_timeout_sec, folder.name
        )
    return WantedImage(contexts.tag(context), context, environment.build_timeout_sec, folder.name)


def _declared(folder: HarborFolder, step: Step | None) -> Environment | None:
    own = step.verifier.environment if step else None
    return own or folder.config.verifier.environment


def _verifier_context(folder: HarborFolder, step: Step | None) -> Path | None:
    """Returns the folder with the Dockerfile of a verifier's own image: the step's or, if it has none, the
    task's. None if there is no such Dockerfile."""
    places = [folder.path / "steps" / step.name / "tests"] if step else []
    for place in (*places, folder.path / "tests"):
        if (place / "Dockerfile").is_file():
            return place
    return None
