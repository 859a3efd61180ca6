"""Images on a real engine: built when stale, and nothing of the build stays in them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from air import paths
from air.cli.main import main
from air.errors import BoxStartError
from air.sandbox.docker import air_images

# Each build removes what the one before left dangling, so they run one by one.
from tests.docker.client import docker_client

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("image builds")]

SECRET = "-----a certificate that must not stay-----"
SMALL = """
ARG BASE=air-base
FROM ${BASE}
COPY Dockerfile /workspace/
"""
DOCKERFILE = """
ARG BASE=air-base
FROM ${BASE} AS build
COPY Dockerfile ca.crt* /run/air-build/
RUN [ ! -e /run/air-build/ca.crt ] || cp /run/air-build/ca.crt /tmp/seen; \\
    wc -c < /run/air-build/ca.crt > /workspace/size || true; \\
    chown agent /workspace/size; rm -rf /run/air-build /tmp/seen; rm -rf /usr/lib/python3*
LABEL air.stage=build
FROM scratch
COPY --from=build / /
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / f"test-{tmp_path.parent.name}"
    folder.mkdir()
    (folder / "Dockerfile").write_text(SMALL)
    yield folder
    with docker_client() as client:
        for image in client.images.list(name=f"air-{folder.name}"):
            client.images.remove(image.id, force=True)


def _shell(image: str, script: str) -> str:
    with docker_client() as client:
        argv = ["sh", "-c", script]
        container = client.containers.run(image, argv, detach=True, network_mode="none")
        try:
            code = container.wait()["StatusCode"]
            output = container.logs(stderr=False)  # read while it ends, it can lack its last lines
        finally:
            container.remove(force=True)
    assert code == 0, output
    return str(output.decode().strip())


def test_ensure_builds_once_and_again_when_the_recipe_changes(recipe: Path) -> None:
    name, said = str(recipe), list[str]()
    assert not air_images.describe(name).id
    first = air_images.ensure(name, say=said.append)
    assert said == [f"Building image air-{recipe.name} from air-base."]
    assert air_images.ensure(name, say=said.append) == first == air_images.digest(name)
    assert len(said) == 1
    (recipe / "Dockerfile").write_text(SMALL + "ENV CHANGED=1\n")
    assert not air_images.describe(name).current
    assert air_images.ensure(name, say=said.append) != first
    assert air_images.describe(name).current


def test_a_ca_bundle_serves_the_build_and_is_gone(recipe: Path, tmp_path: Path) -> None:
    (recipe / "Dockerfile").write_text(DOCKERFILE)
    bundle = tmp_path / "authorities.pem"
    bundle.write_text(SECRET)
    air_images.build(str(recipe), ca_bundle=bundle, say=lambda _: None)
    tag = f"air-{recipe.name}"
    assert _shell(tag, "cat /workspace/size") == str(len(SECRET))
    assert _shell(tag, f"grep -rls -e '{SECRET}' /etc /run /tmp /usr/share || true") == ""
    with docker_client() as client:
        image = client.images.get(tag)
        assert SECRET not in str(image.history())
        dangling = client.images.list(filters={"dangling": True, "label": air_images.STAGE_LABEL})
        assert dangling == []


def test_a_failing_build_says_its_last_line(recipe: Path) -> None:
    (recipe / "Dockerfile").write_text(
        "ARG BASE=air-base\nFROM ${BASE}\nRUN echo 'E: no such thing' && exit 9\n"
    )
    with pytest.raises(BoxStartError, match=r"returned a non-zero code: 9 \(E: no such thing\)"):
        air_images.build(str(recipe), say=lambda _: None)


def test_the_base_image_has_what_boxes_need() -> None:
    script = "id -u agent; stat -c '%U %a' /workspace; ls /run /etc/apt/apt.conf.d"
    lines = _shell("air-base", script).splitlines()
    assert lines[:2] == ["1000", "agent 755"]
    assert not [line for line in lines if "air-build" in line]
    program = "import sys, numpy; print(sys.version_info >= (3, 11), numpy.arange(3).sum())"
    assert _shell("air-base", f"bash -c 'python3 -c \"{program}\"'") == "True 3"


def test_the_list_has_every_shipped_image(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["images", "ls"]) == 0
    head, *rows = (line.split() for line in capsys.readouterr().out.splitlines())
    assert head == ["IMAGE", "STATE", "SIZE", "DIGEST"]
    shipped = [f.parent.name for f in paths.shipped("images").glob("*/Dockerfile")]
    rows = [row for row in rows if not row[0].startswith("air-harbor-")]
    assert sorted(row[0] for row in rows) == sorted(f"air-{name}" for name in shipped)
    (base,) = (row for row in rows if row[0] == "air-base")
    assert (base[1], base[-1]) == ("current", air_images.digest("air-base")[:19])
