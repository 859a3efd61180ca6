"""Staging and taking artefacts, in real process boxes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from air.errors import ArtefactError
from air.sandbox import open_box
from air.sandbox.contract.box import Box, BoxSpec
from air.tasks import stage
from air.tasks.artefact import Artefact, collect
from air.tasks.sources import lookup
from tests.unit.tasks.conftest import MakeTask


@pytest.fixture
async def box() -> AsyncIterator[Box]:
    async with await open_box(BoxSpec(provider="process")) as box:
        yield box


async def run(box: Box, script: str) -> str:
    result = await box.exec(script, timeout=60)
    assert result.ok, result.text
    return result.text


async def test_a_staged_workspace_has_starter_files_and_data_and_no_answer(
    make_task: MakeTask, box: Box
) -> None:
    await stage(make_task(), box)
    listing = await run(box, "find . -type f | sort")
    assert listing.split() == ["./answer.txt", "./data/question.txt"]
    assert "secret" not in await run(box, "cat answer.txt data/question.txt")
    await run(box, "echo 5 > answer.txt; echo x > data/question.txt; touch new")


async def test_an_artefact_is_its_names_and_bytes(make_task: MakeTask, box: Box) -> None:
    task = make_task()
    await stage(task, box)
    await run(box, "printf 5 > answer.txt")
    artefact = await collect(task, box)
    assert artefact.files == {"answer.txt": b"5"}
    assert artefact.digest == Artefact({"answer.txt": b"5"}).digest
    others = ({"answer.txt": b"6"}, {"answers.txt": b"5"}, {}, {"a": b"", "nswer.txt": b"5"})
    assert artefact.digest not in {Artefact(other).digest for other in others}


async def test_a_folder_is_an_artefact_too(make_task: MakeTask, box: Box) -> None:
    task = make_task().model_copy(update={"artefact": "model/"})
    await run(box, "mkdir -p model/a; printf 1 > model/x; printf 2 > model/a/y")
    assert (await collect(task, box)).files == {"model/x": b"1", "model/a/y": b"2"}


@pytest.mark.parametrize(
    "script",
    [
        "true",
        "mkdir answer.txt",
        "ln -s /etc/passwd answer.txt",
        "mkfifo answer.txt",
        "head -c 3000000 /dev/zero > answer.txt",
    ],
)
async def test_what_is_no_file_of_its_size_is_told_to_the_agent(
    make_task: MakeTask, box: Box, script: str
) -> None:
    task = make_task(toml="[limits]\nartefact_mb = 1\n")
    await run(box, script)
    with pytest.raises(ArtefactError, match=r"answer\.txt cannot be graded .*at most 1 MiB"):
        await collect(task, box)


async def test_the_number_of_files_is_bounded(make_task: MakeTask, box: Box) -> None:
    """Empty files have no bytes to count, but each takes the grader's box a moment."""
    task = make_task().model_copy(update={"artefact": "model/"})
    await run(box, "mkdir -p model; touch model/1 model/2 model/3")
    assert len((await collect(task, box, most_files=3)).files) == 3
    with pytest.raises(ArtefactError, match="more than 2 files"):
        await collect(task, box, most_files=2)


async def test_a_folder_may_hold_names_that_are_no_text(make_task: MakeTask, box: Box) -> None:
    task = make_task().model_copy(update={"artefact": "model/"})
    await run(box, "mkdir -p model; printf 1 > model/$'\\xff'")
    assert (await collect(task, box)).files == {"model/\udcff": b"1"}
    await run(box, "mkdir -p model; ln -s x model/$'link\\xff'")
    with pytest.raises(ArtefactError) as caught:
        await collect(task, box)
    str(caught.value).encode()  # the agent reads it


@pytest.mark.parametrize(
    "script", ["true", "touch model", "mkdir model", "mkdir model; ln -s /etc/passwd model/x"]
)
async def test_a_folder_with_something_else_in_it_is_refused(
    make_task: MakeTask, box: Box, script: str
) -> None:
    task = make_task().model_copy(update={"artefact": "model/"})
    await run(box, script)
    with pytest.raises(ArtefactError, match="model/"):
        await collect(task, box)


async def test_names_that_are_no_text_have_a_digest(make_task: MakeTask, box: Box) -> None:
    task = make_task().model_copy(update={"artefact": "model/"})
    await run(box, r"mkdir model; printf 1 > $'model/\xff\n'; printf 2 > model/y")
    artefact = await collect(task, box)
    assert sorted(artefact.files) == ["model/y", "model/\udcff\n"]
    assert len(artefact.digest) == 64


@pytest.mark.parametrize("task_id", lookup.available())
def test_a_shipped_task_accepts_no_larger_artefact_than_its_solutions_need(task_id: str) -> None:
    larger = {"languageModel": 4, "smallLanguageModel": 64}
    assert lookup.load(task_id).limits.artefact_mb == larger.get(task_id, 1)
