"""Builds and pulls the container images that tasks need: each image once, several images at a time. This
happens before a run starts; while it runs, no image is built or pulled."""

from __future__ import annotations

import os
import shlex
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from air import paths
from air.errors import AirError, BoxStartError, MissingError
from air.sandbox.docker import base_image, engine
from air.sandbox.docker.air_images import PROXIES
from air.sandbox.images import build_contexts, usage
from air.sandbox.images.build_contexts import WantedImage

LABEL = "air.context"
"""The label by which air recognises images that it built from a task's folder. Its value is the tag of the
image."""
State = Literal["present", "built", "pulled", "failed"]
Say = Callable[[str], None]


@dataclass(frozen=True)
class ImageOutcome:
    """What `ensure` did about one image that tasks need. `state` says whether the image was already present,
    was built, was pulled, or could not be made (`failed`). `seconds` is the time that this took; 0 if the
    image was present."""

    wanted: WantedImage
    state: State
    seconds: float = 0.0
    reason: str = ""
    """The reason for the failure, in one line; empty unless the field `state` is `failed`."""


def ensure_all(wanted: Sequence[WantedImage], *, jobs: int, say: Say = print) -> list[ImageOutcome]:
    """Builds or pulls all images in `wanted` that the container engine does not have, `jobs` images at a
    time. Returns one result for each different image, in the order of `wanted`. Calls `say` with a line of
    text about each result.

    An image that occurs several times in `wanted` is made once and has one result. If one image fails, the
    others are still made. Raises MissingError, and makes nothing, if the file that `AIR_CA_BUNDLE` names
    cannot be read.
    """
    authorities()
    each = list({image.tag: image for image in reversed(wanted)}.values())[::-1]
    lock, done = threading.Lock(), 0

    def make(image: WantedImage) -> ImageOutcome:
        nonlocal done
        outcome = ensure(image)
        with lock:
            done += 1
            say(f"[{done}/{len(each)}] {line(outcome)}")
        return outcome

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(make, each))


def ensure(image: WantedImage) -> ImageOutcome:
    """Builds or pulls one image, unless the container engine already has it, and returns what was done. If
    several processes want the image at once, only one of them makes it. A failure is part of the result; it
    is not raised."""
    began = time.monotonic()
    try:
        if engine.image(image.tag) is not None:
            return ImageOutcome(image, "present")
        with paths.locked(_lock(image.tag)):
            if engine.image(image.tag) is not None:
                return ImageOutcome(image, "present")
            state: State = "pulled" if image.folder is None else "built"
            if image.folder is None:
                _pull(image.tag)
            else:
                _build(image, image.folder)
    except AirError as error:
        return ImageOutcome(image, "failed", time.monotonic() - began, str(error))
    return ImageOutcome(image, state, time.monotonic() - began)


def line(outcome: ImageOutcome) -> str:
    """Returns one line of text for the user that describes the result for one image."""
    image = outcome.wanted
    what = f"{image.tag} ({image.where})"
    if outcome.state == "failed":
        return f"{what}: FAILED: {outcome.reason}"
    took = f" in {outcome.seconds:.0f} s" if outcome.seconds else ""
    return f"{what}: {outcome.state}{took}"


def _build(image: WantedImage, folder: Path) -> None:
    if instruction := build_contexts.needs_buildkit(folder):
        raise BoxStartError(
            f"{folder / 'Dockerfile'}, {instruction}: needs BuildKit, which air does not use; "
            f"build it by `docker build -t {image.tag} {shlex.quote(str(folder))}`"
        )
    context = build_contexts.packed(folder, authorities())
    ends = time.monotonic() + image.seconds
    late = BoxStartError(
        f"building {image.tag}: it took more than build_timeout_sec = {image.seconds:g}"
    )
    with engine.translating(f"building {image.tag}"):
        try:
            stream = engine.client().build(
                fileobj=context,
                custom_context=True,
                tag=image.tag,
                buildargs={k: v for k, v in os.environ.items() if k.lower() in PROXIES and v},
                labels={LABEL: image.tag},
                network_mode="host",
                rm=True,
                forcerm=True,
                timeout=image.seconds,  # for the next event; the loop checks the total time
                decode=True,
            )
            tail: list[str] = []
            for event in stream:
                _note(event, tail, image.tag)
                if time.monotonic() > ends:
                    stream.close()  # the engine ends a build when its client is gone
                    raise late
        except engine.FOREIGN as error:
            if "timed out" in str(error).lower():
                raise late from None
            raise
    if engine.image(image.tag) is None:
        raise BoxStartError(f"building {image.tag}: the engine ended without an image")


def _note(event: dict[str, Any], tail: list[str], tag: str) -> None:
    tail += [line.strip() for line in event.get("stream", "").splitlines() if line.strip()]
    del tail[:-40]
    if "error" in event:
        raise BoxStartError(f"building {tag}: {base_image.failure_line(tail, event['error'])}")


def _pull(tag: str) -> None:
    if reason := base_image.pull(tag):
        raise BoxStartError(f"image {tag} is not here and cannot be pulled: {reason}")
    usage.note_pulled(tag)


def authorities() -> Path | None:
    """Returns the PEM file of certificate authorities that the user has set for builds. Returns None if there
    is none; then builds trust the authorities of their base image.

    The path of the file is the value of `AIR_CA_BUNDLE` or, if this variable is not set, that of
    `SSL_CERT_FILE`. Raises MissingError if `AIR_CA_BUNDLE` names no readable file. If `SSL_CERT_FILE` names
    no file, it is ignored, because that variable is not air's own.

    This machine's system file does not count, in contrast to builds of air's own images (see
    `air.sandbox.docker.air_images.trusted`), because the file stays in a task's image.
    """
    if named := os.environ.get("AIR_CA_BUNDLE"):
        path = Path(named).expanduser()
        if not (path.is_file() and os.access(path, os.R_OK)):
            raise MissingError(
                "no such file, or it cannot be read",
                where=f"AIR_CA_BUNDLE={named}",
                remedy="name a PEM file with certificate authorities, or unset it",
            )
        return path
    path = Path(os.environ.get("SSL_CERT_FILE", ""))
    return path if path.is_file() else None


def _lock(tag: str) -> Path:
    name = "".join(letter if letter.isalnum() or letter in "-." else "_" for letter in tag)
    return paths.cache() / "locks" / f"image-{name}.lock"
