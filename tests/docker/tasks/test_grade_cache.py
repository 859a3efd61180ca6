"""Cached grades and the images of grader boxes."""

from __future__ import annotations

import io
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from air.sandbox.docker import engine
from air.sandbox.pool.box_pool import Pool
from air.tasks.artefact import Artefact
from air.tasks.grading import Grader
from tests.unit.tasks.conftest import MakeTask, cache, make_task

__all__ = ["cache", "make_task"]
pytestmark = pytest.mark.docker


@pytest.fixture
def tag() -> Iterator[str]:
    name = f"air-test-{secrets.token_hex(4)}"
    yield name
    for image in (name, f"{name}-2", f"{name}-3"):
        if engine.image(image):
            engine.client().remove_image(image, force=True)


def make_image(tag: str, score: str) -> None:
    text = f"FROM air-base\nENV SCORE={score}\n"
    recipe = io.BytesIO(text.encode())
    for event in engine.client().build(fileobj=recipe, tag=tag, decode=True, rm=True, forcerm=True):
        assert "error" not in event, event


async def test_a_grade_belongs_to_the_image_and_not_to_its_tag(
    make_task: MakeTask, tag: str, tmp_path: Path
) -> None:
    make_image(f"{tag}-2", "2")
    make_image(f"{tag}-3", "3")
    task = make_task(
        'import os; end(0, json.dumps({"metrics": {"score": float(os.environ["SCORE"])}}))',
        toml=f'image = "{tag}"\n',
    )
    artefact = Artefact({"answer.txt": b"2"})
    async with Pool(2, warm=1) as pool:
        grader = Grader(pool, "docker", tmp_path / "grades")
        found = []
        for number in (2, 3, 3, 2):
            engine.client().tag(f"{tag}-{number}", tag)
            grade = await grader.grade(task, artefact, split="val")
            found.append((grade.score, grade.reused))
    assert found[0] == (2.0, False)
    assert found[1][0] in (2.0, 3.0)  # the pool may have started its spare box a moment before
    assert found[2] == (3.0, found[1][0] == 3.0)
    assert found[3] == (2.0, True)
