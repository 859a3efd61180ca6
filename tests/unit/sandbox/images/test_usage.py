"""What is recorded about the use of images."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from air.sandbox.images import usage

IMAGE = "sha256:abc"


def test_a_use_is_recorded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AIR_CACHE", str(tmp_path / "cache"))
    assert usage.last_use(IMAGE) == 0
    before = time.time()
    usage.note_use(IMAGE)
    assert before - 1 <= usage.last_use(IMAGE) <= time.time() + 1


@pytest.mark.parametrize("cache", ["~no-such-user/cache", "/proc/no-folder-can-be-made-here"])
def test_a_box_starts_although_its_use_cannot_be_recorded(
    monkeypatch: pytest.MonkeyPatch, cache: str
) -> None:
    monkeypatch.setenv("AIR_CACHE", cache)
    usage.note_use(IMAGE)
