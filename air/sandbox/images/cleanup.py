"""Lists the images that were built or pulled for tasks, and removes images that have not been used for a long
time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from air.sandbox.docker import engine
from air.sandbox.docker.air_images import RECIPE_LABEL
from air.sandbox.images import usage
from air.sandbox.images.build import LABEL

DAY = 86_400.0


@dataclass(frozen=True)
class StoredImage:
    """An image on the container engine's disk."""

    tags: tuple[str, ...]
    """The tags of the image, as `name:version`, or as `name` if the version is `latest`."""
    id: str
    """The container engine's id of the image, `sha256:…`."""
    size: int
    """The size of the whole image in bytes."""
    own: int
    """The number of bytes that the image does not share with another image, so that removing the image frees
    them. Equals the field `size` if `stored_images` did not compute the shares."""
    used: float
    """The time in epoch seconds of the image's last use: when a box last started from it or when it was made,
    whichever is later."""
    busy: bool
    """Whether a container, running or stopped, uses the image."""
    shipped: bool
    """Whether the image is built from a folder that air ships, so that it serves more than one task."""

    @property
    def name(self) -> str:
        """The first tag of the image, or the beginning of its id if it has no tag."""
        return self.tags[0] if self.tags else self.id[7:19]


def stored_images(*, shipped: bool = False, shares: bool = False) -> list[StoredImage]:
    """Returns the images that were built or pulled for tasks and, if `shipped` is true, also those that are
    built from a folder that air ships. The image that was unused for the longest time comes first. Blocks.

    If `shares` is true, the container engine computes how many bytes each image shares with others, which
    takes long. Raises MissingError if no container engine answers, BoxStartError if the engine fails.
    """
    with engine.translating("listing images"):
        client = engine.client()
        rows = (client.df()["Images"] or []) if shares else client.images()
        busy = {container["ImageID"] for container in client.containers(all=True)}
    pulled = usage.pulled()
    images = [_stored(row, busy) for row in rows if _is_ours(row, pulled, shipped)]
    return sorted(images, key=lambda image: image.used)


def _is_ours(row: dict[str, Any], pulled: set[str], shipped: bool) -> bool:
    labels = row.get("Labels") or {}
    own = RECIPE_LABEL in labels
    if own and LABEL not in labels:
        return shipped
    return LABEL in labels or bool(pulled & set(row.get("RepoTags") or []))


def _stored(row: dict[str, Any], busy: set[str]) -> StoredImage:
    labels = row.get("Labels") or {}
    return StoredImage(
        tags=tuple(tag.removesuffix(":latest") for tag in row.get("RepoTags") or ()),
        id=row["Id"],
        size=int(row["Size"]),
        own=int(row["Size"]) - max(0, int(row.get("SharedSize") or 0)),
        used=max(usage.last_use(row["Id"]), float(row["Created"])),
        busy=row["Id"] in busy,
        shipped=RECIPE_LABEL in labels and LABEL not in labels,
    )


def images_to_remove(
    images: Sequence[StoredImage],
    *,
    keep_bytes: float | None = None,
    unused_seconds: float | None = None,
    now: float | None = None,
) -> list[StoredImage]:
    """Chooses which of `images` are to be removed, and returns them. Never chooses an image that a container
    uses. `images` must be sorted by last use, oldest first.

    Either `unused_seconds` or `keep_bytes` must be given. With `unused_seconds`, chooses all images whose
    last use is longer ago than this. With `keep_bytes`, chooses the images with the oldest last use, until
    the sum of `StoredImage.own` of all remaining images is at most `keep_bytes`. `now` is the present time in
    epoch seconds; by default the time of the system clock.
    """
    now = time.time() if now is None else now
    free = [image for image in images if not image.busy]
    if unused_seconds is not None:
        return [image for image in free if now - image.used > unused_seconds]
    assert keep_bytes is not None
    total, rest = sum(image.own for image in images), list[StoredImage]()
    for image in free:
        if total <= keep_bytes:
            break
        rest.append(image)
        total -= image.own
    return rest


def remove(image: StoredImage) -> str:
    """Removes an image. Returns "" on success, or the reason why it was not removed, for instance because a
    box now uses it. Blocks."""
    try:
        for name in image.tags or (image.id,):
            engine.client().remove_image(name)
    except engine.FOREIGN as error:
        return engine.reason(error)
    return ""
