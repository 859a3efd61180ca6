"""Attacks through the artefact: each fails on the tasks that ship, and works on weaker ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from air.integrity.attack import Attack, Target, code_only, tables_only
from air.integrity.attacks import carry_over, denial, forging, labels
from air.integrity.battery import Battery
from air.integrity.verdict import AttackVerdict
from tests import once
from tests.docker.tasks.weak_tasks import WEAK_CODE, WEAK_TABLE, make

pytestmark = pytest.mark.docker

SHORT = (
    "print-a-result-and-exit",
    "write-the-result-file",
    "answer-with-what-equals-everything",
    "answer-each-row-with-every-label",
    "make-the-artefact-a-link-to-the-labels",
    "list-the-graders-data",
    "tell-it-in-the-text-of-an-error",
    "exit-in-a-call",
    "fill-the-memory",
    "give-a-table-of-newlines",
    "leave-a-file-where-code-is-loaded",
    "leave-a-variable-in-the-interpreter",
)
"""Attacks of each family that take a moment."""
SLOW = (
    "sleep-while-it-is-loaded",
    "stop-itself-in-a-call",
    "spin",
    "spin-deaf-to-all-signals",
    "spin-in-forks-beyond-the-processor-limit",
    "answer-with-endless-pairs",
    "fill-memory-that-belongs-to-no-process",
)
"""Attacks that last until a limit of the grader's time, processor time or memory."""
ALL = (*forging.ATTACKS, *labels.ATTACKS, *denial.ATTACKS, *carry_over.ATTACKS)


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIR_CACHE", str(once.cache(tmp_path_factory)))
        yield


@pytest.fixture
def weak(tmp_path: Path) -> Path:
    make(tmp_path / "weak")
    return tmp_path / "weak"


async def played(
    attacks: Sequence[Attack], names: Sequence[str], folder: Path, **more: Any
) -> dict[str, list[AttackVerdict]]:
    """Returns the verdicts of each attack that applies to one of the tasks."""
    battery = Battery(names, "docker", attacks, at_once=4, **more)
    found: dict[str, list[AttackVerdict]] = {}
    for verdict in await battery.run(folder / "record"):
        if verdict.result != "not applicable":
            found.setdefault(verdict.attack, []).append(verdict)
    return found


def with_result(result: str, found: dict[str, list[AttackVerdict]]) -> dict[str, str]:
    """Returns the attacks of which one verdict has this result, each with the reason."""
    every = [one for verdicts in found.values() for one in verdicts]
    return {one.attack: f"{one.task}: {one.reason}" for one in every if one.result == result}


def named(names: Iterable[str]) -> list[Attack]:
    return [attack for attack in ALL if attack.name in names]


def test_there_are_enough_attacks_and_each_has_a_name_of_its_own() -> None:
    assert len({attack.name for attack in ALL}) == len(ALL) >= 60
    assert len(named(SHORT)) == len(SHORT)


async def test_some_attacks_of_each_family_fail_on_two_tasks(tmp_path: Path) -> None:
    found = await played(named(SHORT), ["titanic", "prisonersDilemma"], tmp_path)
    assert with_result("broken", found) == {}
    assert set(found) == set(SHORT)


async def test_some_attacks_work_on_a_weak_grader(tmp_path: Path, weak: Path) -> None:
    shown = (*SHORT[:3], *SHORT[5:7], SHORT[-1], "look-for-the-graders-files")
    found = await played(named(shown), [WEAK_CODE], tmp_path, task_roots=[weak])
    assert set(with_result("broken", found)) == set(shown)


_FRAMES = "the weak grader has no frames: it calls functions"
_ANSWER = "the weak grader computes with answers, and fails on what is no finite number"
_KERNEL = "the engine's filter of system calls, or a missing privilege, refuses it to everybody in the box"
NOT_ON_A_WEAK_GRADER = {
    "answer-with-not-a-number": _ANSWER,
    "answer-with-infinity": _ANSWER,
    "answer-with-a-number-of-4400-digits": _ANSWER,
    "answer-with-an-index-that-changes": _ANSWER,
    "answer-with-a-generator": _ANSWER,
    "answer-with-a-text-of-json": _ANSWER,
    "answer-with-half-a-character": _ANSWER,
    "send-answers-that-nobody-asked-for": _FRAMES,
    "send-reports-as-the-player-does": _FRAMES,
    "claim-a-frame-longer-than-what-is-sent": _FRAMES,
    "answer-twice-to-one-question": _FRAMES,
    "copy-the-memory-of-the-callers": _KERNEL,
    "take-a-descriptor-of-the-caller": _KERNEL,
    "trace-the-caller": _KERNEL,
    "become-root-in-a-namespace": _KERNEL,
    "leave-a-key": _KERNEL,
    "look-through-the-loaded-modules": "the weak grader is one script without modules",
    "read-inherited-files": "the weak grader closes its files before it runs the artefact",
    "read-what-graders-leave-in-tmp": "the weak grader writes nothing there",
    "leave-a-file-above-where-code-is-loaded": "it runs in the workspace, above which nothing can be written",
}
"""Attacks by code that the weak grader cannot show to work, with the reason."""


@pytest.mark.full
async def test_attacks_by_code_work_on_a_weak_grader(tmp_path: Path, weak: Path) -> None:
    """All but the denial attacks, which another test shows to pay if a missing score costs nothing."""
    attacks = [one for one in ALL if one.applies is code_only and one.family != "denial"]
    found = await played(attacks, [WEAK_CODE], tmp_path, task_roots=[weak])
    assert set(with_result("held", found)) == set(NOT_ON_A_WEAK_GRADER)


@pytest.mark.full
async def test_attacks_by_cells_work_on_a_weak_grader(tmp_path: Path, weak: Path) -> None:
    attacks = [one for one in forging.ATTACKS if one.applies is tables_only]
    found = await played(attacks, [WEAK_TABLE], tmp_path, task_roots=[weak])
    assert with_result("held", found) == {}


@pytest.mark.full
async def test_unscored_artefacts_that_cost_nothing_make_denial_pay(tmp_path: Path) -> None:
    names = ["titanic", "prisonersDilemma", "hyperparameters", "cheaper"]
    attacks = [
        one
        for one in ALL
        if one.bound == "lowest"
        and one.name not in SLOW
        and (one.family == "denial" or one.applies is not code_only)
    ]
    found = await played(attacks, names, tmp_path, settings={"unscored": "unchanged"})
    assert with_result("held", found) == {}


NOT_IN_ONE_BOX = {
    "leave-a-program-on-the-path": "these folders are read-only",
    "leave-a-changed-program": "these files are read-only",
    "leave-another-name-of-the-machine": "no command has the privilege",
    "leave-a-timed-job": "there is no cron in the image",
    "leave-a-key-in-the-kernel": "containers are refused the system call",
    "leave-shared-memory-of-system-v": "it does not outlive its process",
}
"""What cannot be left in a box even for the next command, with the reason."""


@pytest.mark.full
async def test_what_is_left_for_the_next_episode_is_found_within_one_box(tmp_path: Path) -> None:
    """So the attacks would notice it, if the next episode had the same box."""

    def twice(attack: Attack) -> Attack:
        def replies(target: Target) -> list[str]:
            first, last = attack.replies(target)
            return [first, first, last]

        return replace(attack, replies=replies, episodes=1)

    attacks = [twice(one) for one in carry_over.ATTACKS if one.episodes == 2]
    found = await played(attacks, ["titanic"], tmp_path)
    assert set(with_result("held", found)) == set(NOT_IN_ONE_BOX)
