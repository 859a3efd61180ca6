"""Images of Harbor tasks on a real engine: each built once, failures named, listed, removed if unused."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from air.cli.main import main
from air.sandbox import open_box
from air.sandbox.contract.box import BoxSpec, OpenBox
from air.sandbox.docker import engine
from air.sandbox.images import build, cleanup
from air.tasks.sources import harbor_images as images
from tests.docker.client import docker_client

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("image builds")]
DOCKERFILE = "FROM air-base\nARG WORD=default\nWORKDIR /srv/app\nENV COLOUR=$WORD\nUSER agent\n"


@pytest.fixture
def tasks(tmp_path: Path) -> Iterator[Path]:
    """A folder of Harbor tasks: two with equal environments, one whose build fails, one that is no task."""
    folder = tmp_path / "tasks"
    mine = f"COPY word /srv/app/\nENV BUILT={os.getpid()}-{time.time_ns()}\n"
    bad = "COPY nothing-such /\n"
    for name, steps in {
        "one": mine,
        "two": mine,
        "three": bad,
    }.items():
        for part, text in {
            "task.toml": "[environment]\nbuild_timeout_sec = 500\n",
            "instruction.md": "Do it.\n",
            "tests/test.sh": "",
            "environment/Dockerfile": DOCKERFILE + steps,
            "environment/word": "hello\n",
        }.items():
            (folder / name / part).parent.mkdir(parents=True, exist_ok=True)
            (folder / name / part).write_text(text)
    (folder / "four").mkdir()
    (folder / "four" / "task.toml").write_text("no_such_key = 1\n")
    yield folder
    wanted, _ = images.wanted_of("harbor:.", folder)
    with docker_client() as client:
        for tag in {image.tag for image in wanted}:
            if client.images.list(name=tag):
                client.images.remove(tag, force=True)


async def test_tasks_images_are_built_once_and_used_and_collected(
    tasks: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIR_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    assert main(["images", "build", f"harbor:{tasks}"]) == 1
    out = capsys.readouterr().out
    (one,) = {
        image.tag
        for image in images.wanted_of("harbor:.", tasks)[0]
        if image.where in ("one", "two")
    }
    assert f"/2] {one} (one): built" in out
    assert "(three): FAILED: building air-harbor-" in out
    assert "nothing-such" in out
    assert "built: 1\nfailed: 1\n" in out
    assert "left out: four:" in out
    assert "no_such_key" in out
    monkeypatch.setenv("AIR_HARBOR_ROOT", str(tasks.parent))
    assert main(["images", "build", "harbor:tasks/two"]) == 0
    assert "(two): present\npresent: 1\n" in capsys.readouterr().out
    async with await open_box(BoxSpec(image=one, open=OpenBox(keep=True))) as box:
        said = await box.exec("id -un; pwd; cat word; echo $COLOUR ~", timeout=60)
        assert said.text.split() == ["agent", "/srv/app", "hello", "default", "/home/agent"]
        (stored,) = [image for image in cleanup.stored_images() if one in image.tags]
        assert stored.busy
        assert stored.used > time.time() - 600
        assert not stored.shipped
        assert main(["images", "ls"]) == 0
        assert f"{one} in use" in " ".join(capsys.readouterr().out.split())
    (stored,) = [image for image in cleanup.stored_images() if one in image.tags]
    assert cleanup.images_to_remove([stored], keep_bytes=0) == [stored]
    assert cleanup.remove(stored) == ""
    assert engine.image(one) is None


async def test_a_start_of_any_box_is_a_use_of_its_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIR_CACHE", str(tmp_path / "cache"))
    began = time.time()
    async with await open_box(BoxSpec()):
        pass
    (base,) = [image for image in cleanup.stored_images(shipped=True) if "air-base" in image.tags]
    assert base.used >= began - 1
    assert base not in cleanup.images_to_remove([base], unused_seconds=3600)


def test_two_builds_at_once_build_once(tasks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    wanted = [image for image in images.wanted_of("harbor:.", tasks)[0] if image.where == "one"]
    with ThreadPoolExecutor(2) as pool:
        states = [outcome.state for outcome in pool.map(build.ensure, wanted * 2)]
    assert sorted(states) == ["built", "present"]


def test_a_build_beyond_its_time_and_an_image_that_nobody_has_fail_in_one_line(
    tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    (tasks / "one/environment/Dockerfile").write_text("FROM air-base\nRUN sleep 600\n")
    (tasks / "one/task.toml").write_text("[environment]\nbuild_timeout_sec = 2\n")
    (tasks / "two/task.toml").write_text('[environment]\ndocker_image = "localhost:1/nothing:7"\n')
    wanted = [
        image for image in images.wanted_of("harbor:.", tasks)[0] if image.where in ("one", "two")
    ]
    said: list[str] = []
    reasons = {o.wanted.where: o.reason for o in build.ensure_all(wanted, jobs=2, say=said.append)}
    assert "it took more than build_timeout_sec = 2" in reasons["one"]
    assert "localhost:1/nothing:7 is not here and cannot be pulled" in reasons["two"]
    assert len(said) == 2
    assert all("FAILED" in line and "\n" not in line for line in said)


def test_gc_needs_one_bound_and_removes_nothing_unasked(
    capsys: pytest.CaptureFixture[str], tasks: Path
) -> None:
    assert main(["images", "gc"]) == 2
    assert main(["images", "gc", "--keep-gb", "1", "--unused-for", "2"]) == 2
    assert main(["images", "gc", "--unused-for", "0", "--shipped"]) == 0
    assert "to remove; --yes removes them" in capsys.readouterr().out
    assert engine.image("air-base") is not None
