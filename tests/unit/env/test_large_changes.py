"""What a step changed is found in linear time, whatever the agent wrote."""

from __future__ import annotations

import difflib
import random
from collections.abc import AsyncIterator, Callable

import pytest

from air.env import diffs
from air.env.diffs import COMPARED_LINES, MOST_LISTED, Differ
from air.sandbox import open_box
from air.sandbox.contract.box import Box, BoxSpec
from tests.growth import MOST, growth

FILES = 5_000


@pytest.fixture
async def box() -> AsyncIterator[Box]:
    async with await open_box(BoxSpec(provider="process")) as box:
        yield box


def listing(count: int) -> bytes:
    return b"".join(b"1 2.0 3.0 4 folder/file-%d\0" % n for n in range(count))


def summary(texts: tuple[str, str]) -> object:
    return diffs._summary("a", diffs._FileVersions.of(*texts), "changed", 1)


def swapped(count: int) -> str:
    """Pairs of lines in the other order: the worst case of a comparison."""
    return "".join(f"{n ^ 1}\n" for n in range(count))


PAIRS: dict[str, Callable[[int], tuple[str, str]]] = {
    "one edit between equal lines": lambda n: (
        "a\n" * n + "b\n" * n,
        "a\n" * n + "c\n" + "b\n" * n,
    ),
    "only new lines": lambda n: ("", "a\n" * n),
    "only removed lines": lambda n: ("a\n" * n, ""),
    "one long line": lambda n: ("a" * n, "a" * n + "b"),
}


@pytest.mark.parametrize("shape", PAIRS)
def test_what_needs_no_comparison_takes_linear_time(shape: str) -> None:
    assert diffs._FileVersions.of(*PAIRS[shape](5000)).compared <= 1
    assert growth(PAIRS[shape], summary) < MOST


def test_a_listing_takes_linear_time() -> None:
    assert growth(listing, lambda output: diffs._touched({}, diffs._listed(output))) < MOST


def test_a_diff_is_that_of_the_whole_files() -> None:
    numbers = random.Random(0)
    for _ in range(500):
        old = [f"{numbers.randrange(50)}\n" for _ in range(numbers.randrange(40))]
        new = list(old)
        for _ in range(numbers.randrange(3)):
            at = numbers.randrange(len(new) + 1)
            new[at : at + numbers.randrange(3)] = ["x\n"] * numbers.randrange(3)
        versions = diffs._FileVersions.of("".join(old), "".join(new))
        assert _patched(old, list(versions.unified("a", "b"))) == new
    old = [f"{n}\n" for n in range(100)]
    new = [*old[:50], "x\n", *old[51:]]
    versions = diffs._FileVersions.of("".join(old), "".join(new))
    assert list(versions.unified("a", "b")) == list(difflib.unified_diff(old, new, "a", "b"))


def _patched(old: list[str], diff: list[str]) -> list[str]:
    """Applies a unified diff, as `patch` does."""
    new: list[str] = []
    at = 0
    for line in diff[2:]:
        if line.startswith("@@"):
            start, _, count = line.split()[1][1:].partition(",")
            first = int(start) - (count != "0")
            new += old[at:first]
            at = first
        elif line.startswith("+"):
            new.append(line[1:])
        else:
            assert old[at] == line[1:]
            new += [old[at]] if line.startswith(" ") else []
            at += 1
    return new + old[at:]


async def test_many_files_and_swapped_lines_are_named_only(box: Box) -> None:
    differ = Differ(box)
    await box.write("swapped", "".join(f"{n}\n" for n in range(COMPARED_LINES + 2)).encode())
    await differ.start()
    await box.write("swapped", swapped(COMPARED_LINES + 2).encode())
    diff = await differ.diff()
    assert [(one.path, one.note) for one in diff.files] == [("swapped", "too many lines")]
    made = await box.exec(f"mkdir many; cd many; seq 1 {FILES} | xargs touch", timeout=600)
    assert made.ok, made.text
    diff = await differ.diff()
    assert diff.cut
    assert len(diff.files) == MOST_LISTED
    assert {one.status for one in diff.files} == {"added"}
    made = await box.exec("rm -r many", timeout=600)
    assert made.ok, made.text
    diff = await differ.diff()
    assert diff.cut
    assert len(diff.files) == MOST_LISTED
    assert (await differ.diff()).files == ()
