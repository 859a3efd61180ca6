"""Images, without an engine: names, recipes, and what an error says."""

from __future__ import annotations

from pathlib import Path

import pytest

from air.errors import MissingError, UsageError
from air.sandbox.docker import air_images, base_image


def _image(folder: Path, text: str = "ARG BASE=x\nFROM ${BASE}\n") -> str:
    folder.mkdir()
    (folder / "Dockerfile").write_text(text)
    return str(folder)


def test_a_recipe_is_the_same_by_folder_name_and_by_tag() -> None:
    assert air_images.recipe("base") == air_images.recipe("air-base")


def test_a_recipe_changes_with_contents_names_and_modes(tmp_path: Path) -> None:
    name = _image(tmp_path / "mine")
    seen = {air_images.recipe(name)}
    (tmp_path / "mine" / "Dockerfile").write_text("ARG BASE=y\nFROM ${BASE}\n")
    seen.add(air_images.recipe(name))
    (tmp_path / "mine" / "run.sh").write_text("")
    seen.add(air_images.recipe(name))
    (tmp_path / "mine" / "run.sh").chmod(0o755)
    seen.add(air_images.recipe(name))
    (tmp_path / "mine" / "run.sh").rename(tmp_path / "mine" / "go.sh")
    seen.add(air_images.recipe(name))
    assert len(seen) == 5


def test_an_unknown_image_is_named() -> None:
    with pytest.raises(MissingError, match="nowhere: no Dockerfile there"):
        air_images.recipe("nowhere")


@pytest.mark.parametrize("name", ["UPPER", "a b", "", "..", "x;y"])
def test_what_cannot_be_a_tag_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="not a name for an image"):
        air_images.recipe(name)


def test_a_folder_may_not_take_the_name_of_a_shipped_image(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="air-base is an image of air's own"):
        air_images.recipe(_image(tmp_path / "base"))


@pytest.mark.parametrize(
    ("tail", "error", "expected"),
    [
        (["E: Unable to locate package x"], "failed with status 100", "Unable to locate package x"),
        (["write: No space left on device"], "failed with status 1", "the disk is full"),
        (["E: You don't have enough free space in /var"], "failed", "the disk is full"),
        (["Err:1 http://x Temporary failure resolving 'x'"], "failed", "cannot be reached"),
        (["server certificate verification failed"], "failed", "AIR_CA_BUNDLE"),
        ([], "failed\nwith status 3", "failed with status 3"),
    ],
)
def test_a_failure_line_is_one_line_with_a_remedy(
    tail: list[str], error: str, expected: str
) -> None:
    line = base_image.failure_line(tail, error)
    assert expected in line
    assert "\n" not in line


def test_no_engine_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    assert air_images.why_not_ready() == (
        f"DOCKER_HOST=unix://{tmp_path}/none.sock: no Docker engine answers: its socket is not there — "
        "start the engine there, or correct or unset DOCKER_HOST"
    )


def test_a_build_trusts_what_is_named_and_else_what_this_machine_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, named = tmp_path / "own.pem", tmp_path / "named.pem"
    own.touch()
    monkeypatch.delenv("AIR_CA_BUNDLE", raising=False)
    monkeypatch.setenv("SSL_CERT_FILE", str(own))
    assert air_images.trusted() == own
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "gone.pem"))
    assert air_images.trusted() != own
    monkeypatch.setenv("AIR_CA_BUNDLE", str(named))
    assert air_images.trusted() == named  # though it is not there: the build then says so
