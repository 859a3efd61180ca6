"""Which images of tasks are removed."""

from __future__ import annotations

from air.sandbox.images.cleanup import DAY, StoredImage, images_to_remove

NOW = 1_000 * DAY


def _image(name: str, own: int, days: float, *, busy: bool = False) -> StoredImage:
    return StoredImage((name,), f"sha256:{name}", own * 2, own, NOW - days * DAY, busy, False)


IMAGES = [_image("a", 3, 30), _image("b", 5, 20, busy=True), _image("c", 2, 10), _image("d", 4, 1)]
"""The longest unused first, as `stored_images` returns them."""


def _names(images: list[StoredImage]) -> list[str]:
    return [image.name for image in images]


def test_the_longest_unused_go_until_the_rest_fits_and_none_in_use() -> None:
    assert _names(images_to_remove(IMAGES, keep_bytes=14)) == []
    assert _names(images_to_remove(IMAGES, keep_bytes=13)) == ["a"]
    assert _names(images_to_remove(IMAGES, keep_bytes=9)) == ["a", "c"]
    assert _names(images_to_remove(IMAGES, keep_bytes=0)) == ["a", "c", "d"]


def test_what_was_unused_for_long_goes() -> None:
    assert _names(images_to_remove(IMAGES, unused_seconds=5 * DAY, now=NOW)) == ["a", "c"]
    assert _names(images_to_remove(IMAGES, unused_seconds=60 * DAY, now=NOW)) == []
