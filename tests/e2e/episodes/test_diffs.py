"""What steps change in a workspace, in real boxes, and what a recorded episode refers to."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from air.env.diffs import DIFF_CHARS, FILE_BYTES, Differ
from air.sandbox import open_box
from air.sandbox.contract.box import Box, BoxSpec
from air.testing import replies
from air.trajectories import Diff, load, trajectory_files
from tests.e2e.conftest import attempt, containers_in_full, played_by, research


@pytest.fixture
async def box(runtime: str) -> AsyncIterator[Box]:
    provider = "docker" if runtime == "docker" else "process"
    async with await open_box(BoxSpec(provider=provider)) as box:
        yield box


async def after(box: Box, differ: Differ, script: str) -> Diff:
    done = await box.exec(script, timeout=60)
    assert done.ok, done.text
    return await differ.diff()


def notes(diff: Diff) -> dict[str, tuple[str, str]]:
    return {change.path: (change.status, change.note) for change in diff.files}


async def test_added_changed_and_removed_text(box: Box) -> None:
    await box.write("old.txt", b"a\nb\nc\n")
    await box.write("gone/x.txt", b"x\n")
    differ = Differ(box)
    await differ.start()
    assert (await differ.diff()).files == ()
    diff = await after(box, differ, "sed -i s/b/B/ old.txt; rm gone/x.txt; printf new > 'n w.txt'")
    assert diff.text == (
        "--- a/gone/x.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"
        "--- /dev/null\n+++ b/n w.txt\n@@ -0,0 +1 @@\n+new\n\\ No newline at end of file\n"
        "--- a/old.txt\n+++ b/old.txt\n@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n"
    )
    assert {c.path: (c.status, c.added, c.removed) for c in diff.files} == {
        "gone/x.txt": ("removed", 0, 1),
        "n w.txt": ("added", 1, 0),
        "old.txt": ("changed", 1, 1),
    }
    assert not diff.cut
    # Touched, or rewritten as it was, is no change; neither is what was there before.
    diff = await after(box, differ, "touch old.txt; cp old.txt t; mv t old.txt")
    assert (diff.files, diff.text) == ((), "")


async def test_a_rewrite_of_equal_length_under_an_old_date_is_seen(box: Box) -> None:
    await box.write("f", b"aaaa")
    differ = Differ(box)
    await differ.start()
    diff = await after(box, differ, "touch -r f stamp; printf bbbb > f; touch -r stamp f; rm stamp")
    assert [c.path for c in diff.files] == ["f"]
    assert "+bbbb" in diff.text


@containers_in_full
async def test_binary_and_large_files_are_named_only(box: Box) -> None:
    differ = Differ(box)
    await differ.start()
    size = FILE_BYTES + 1
    diff = await after(
        box,
        differ,
        f"printf '\\0\\1' > bin; printf '\\377' > latin; head -c {size} /dev/zero > big",
    )
    assert notes(diff) == {
        "big": ("added", "too large"),
        "bin": ("added", "binary"),
        "latin": ("added", "binary"),
    }
    assert diff.text == ""
    diff = await after(box, differ, "echo small > big")
    assert notes(diff) == {"big": ("changed", "too large")}
    diff = await after(box, differ, "echo smaller > big")
    assert diff.text.endswith("-small\n+smaller\n")


@containers_in_full
async def test_long_diffs_are_cut_at_a_line(box: Box) -> None:
    differ = Differ(box)
    await differ.start()
    diff = await after(box, differ, "for n in 1 2 3 4 5 6 7 8 9; do seq 2000 > f$n; done")
    assert diff.cut
    assert len(diff.text) <= DIFF_CHARS
    assert diff.text.endswith("\n")
    assert len(diff.files) == 9
    assert all(c.note == "cut" and c.added == 2000 for c in diff.files)


async def test_no_link_is_followed(box: Box, tmp_path: Path) -> None:
    differ = Differ(box)
    await differ.start()
    diff = await after(
        box,
        differ,
        "mkdir d; echo mine > d/real; ln -s /etc/passwd link; ln -s /etc dir; ln -s d also; "
        "mkfifo pipe; ln -s loop loop",
    )
    assert [c.path for c in diff.files] == ["d/real"]
    assert "root:" not in diff.text


@containers_in_full
async def test_lines_end_at_newlines_alone(box: Box) -> None:
    differ = Differ(box)
    await differ.start()
    text = (
        "printf 'a\\rb\\fc\\xc2\\x85d\\xe2\\x80\\xa8e\\nlast\\n' > f; yes 1 | head -n 20000 > many"
    )
    diff = await after(box, differ, text)
    assert diff.text == ("--- /dev/null\n+++ b/f\n@@ -0,0 +1,2 @@\n+a\rb\x0cc\x85d\u2028e\n+last\n")
    assert [(c.path, c.added, c.note) for c in diff.files] == [
        ("f", 2, ""),
        ("many", 0, "too many lines"),
    ]


@containers_in_full
async def test_a_step_compares_so_many_lines(box: Box) -> None:
    differ = Differ(box)
    await differ.start()
    diff = await after(box, differ, "for n in 1 2 3; do seq 9000 > f$n; done; seq 9000 > g")
    assert [(c.added, c.note) for c in diff.files] == [(9000, "cut")] * 4  # nothing to compare with
    for _ in range(2):  # it is a step's budget
        edit = "sed -i -e 5s/$/x/ -e 1996s/$/x/ f1 f2 f3; sed -i -e 5s/$/x/ -e 2006s/$/x/ g"
        diff = await after(box, differ, edit)
        assert [(c.path, c.added, c.note) for c in diff.files] == [
            ("f1", 2, ""),
            ("f2", 2, ""),
            ("f3", 0, "too many lines"),
            ("g", 0, "too many lines"),
        ]


async def test_names_that_try_to_be_something_else(box: Box) -> None:
    differ = Differ(box)
    await differ.start()
    diff = await after(box, differ, "echo a > $'two\\nlines'; echo b > '5 6 7 8 x'; echo c > -rf")
    assert sorted(c.path for c in diff.files) == ["-rf", "5 6 7 8 x", "two\nlines"]
    assert all(c.added == 1 for c in diff.files)
    assert diff.text.count("\n+++ ") == 3
    assert '\n+++ "b/two\\nlines"\n' in diff.text
    diff = await after(box, differ, "echo d > $'q\"u\\\\o\\te\\x01'")
    assert diff.text.split("\n")[1] == r'+++ "b/q\"u\\o\te\001"'


async def test_an_episode_refers_to_its_tokens_and_artefacts(runtime: str, tmp_path: Path) -> None:
    texts = (attempt(1, 1), "no action", attempt(2, 2, "submit"))
    config = research(["titanic"], runtime, record_dir=tmp_path)
    async with played_by(replies(*texts), config) as play:
        trace = (await play()).traces[0]
    (path,) = trajectory_files(tmp_path)
    one = load(path)
    assert one.start is not None
    assert one.end is not None
    assert len(one.start.config_hash) == 64
    assert one.start.versions["verifiers"]
    assert one.start.scale["baseline"] == one.start.baseline
    assert bool(one.start.image_digest) == (runtime == "docker")
    written = json.loads((tmp_path / one.end.trace_file).read_text())["traces"][0]
    assert written["id"] == one.start.trace == trace.id
    last = 0
    for step in one.steps:
        assert step.tokens is not None
        assert step.tokens.nodes is not None
        first, until = step.tokens.nodes
        assert first == last
        last = until
        assert written["nodes"][until - 1]["message"]["content"] == step.reply
        assert step.model_seconds > 0
    assert last == len(written["nodes"])
    assert [step.problem for step in one.steps] == ["", "format", ""]
    assert one.steps[1].diff is None
    diff = one.steps[0].diff
    assert diff is not None
    assert "+method=1 level=1" in diff.text
    assert all((tmp_path / v.kept).is_file() for v in one.validations)
    assert one.validations[0].anchor is not None
    assert one.end.test is not None
    assert one.end.test.artefact == one.validations[-1].artefact
    assert 0 < one.end.times["recording"] < 30


def everything(folder: Path) -> list[Path]:
    return list(folder.rglob("*"))


async def test_what_is_not_to_be_recorded_is_not(tmp_path: Path) -> None:
    off = {"record_diffs": False, "record_traces": False, "record_artefacts_mb": 0}
    config = research(["titanic"], "subprocess", record_dir=tmp_path, **off)
    async with played_by(replies(attempt(1, 1, "submit")), config) as play:
        await play()
    (path,) = trajectory_files(tmp_path)
    assert [other.name for other in everything(tmp_path)] == [path.name]
    one = load(path)
    assert one.end is not None
    assert (one.end.trace_file, one.validations[0].kept, one.steps[0].diff) == ("", "", None)
