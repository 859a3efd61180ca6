"""Builds of images of tasks, as far as no container engine takes part."""

from __future__ import annotations

from pathlib import Path

import pytest

from air.errors import MissingError
from air.sandbox.images import build
from air.sandbox.images.build_contexts import WantedImage


def test_a_named_bundle_that_is_no_file_ends_the_builds_before_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIR_CA_BUNDLE", str(tmp_path / "absent.pem"))
    (tmp_path / "Dockerfile").write_text("FROM scratch\n")
    said: list[str] = []
    with pytest.raises(MissingError, match=r"AIR_CA_BUNDLE=.*absent\.pem.*unset it"):
        build.ensure_all([WantedImage("t", tmp_path, 1.0, "one")], jobs=1, say=said.append)
    assert said == []


def test_the_named_bundle_comes_before_that_of_other_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named, other = tmp_path / "named.pem", tmp_path / "other.pem"
    named.write_text("x")
    monkeypatch.delenv("AIR_CA_BUNDLE", raising=False)
    monkeypatch.setenv("SSL_CERT_FILE", str(other))
    assert build.authorities() is None
    other.write_text("x")
    assert build.authorities() == other
    monkeypatch.setenv("AIR_CA_BUNDLE", str(named))
    assert build.authorities() == named
