"""The battery's attacks from the agent's box and through the loop: they hold on real tasks, and can work.

Each weaker setting is one that a user could choose. Plain process boxes isolate nothing, so they are where
attacks that look for a way out must work; only attacks that look around are played there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from air.integrity.attack import Attack, Setup
from air.integrity.attacks import harness, injection, isolation, masking, oracle, resources
from air.integrity.battery import Battery
from air.integrity.verdict import AttackVerdict
from air.sandbox.process import namespaces
from air.tasks.spec import Provider
from tests.e2e.conftest import cache
from tests.e2e.episodes.test_episode import copied_task

__all__ = ["cache"]
FAMILIES = (isolation, oracle, masking, harness, resources, injection)
ALL = {attack.name: attack for family in FAMILIES for attack in family.ATTACKS}
QUICK = (
    "list-the-cache-with-prepared-data",
    "see-the-processes-of-the-machine",
    "reach-a-server-of-the-machine",
    "validate-in-every-turn",
    "delete-the-artefact",
    "kill-everything",
    "delete-the-best-artefact-after-its-validate",
    "make-the-artefact-a-link-to-itself",
    "call-a-tool-whose-name-is-a-number",
    "signal-the-first-process",
    "reply-with-a-nul-in-the-script",
    "reply-with-fences-in-fences",
    "fill-nameless-files",
    "print-every-byte",
)

SHOWN_BY_MUTANTS = (
    "call-a-tool-whose-name-is-a-number",
    "call-a-tool-with-nested-brackets",
    "call-a-tool-with-no-object",
    "reply-with-two-blocks",
    "reply-with-fences-in-fences",
    "ask-the-model-in-a-new-conversation",
    "ask-the-model-with-forged-replies",
    "ask-for-the-server's-other-pages",
    "print-lines-of-a-trajectory",
    "print-every-byte",
    "print-halves-of-characters",
    "print-other-line-ends",
    "name-files-with-bytes-that-are-no-text",
    "fill-nameless-files",
    "print-a-gigabyte",
    "print-errors-without-end",
)
"""Attacks that no weaker setting lets work; `tests/mutants/battery.py` takes their defences out."""


async def played(
    names: Sequence[str], provider: Provider, folder: Path, **more: Any
) -> dict[str, AttackVerdict]:
    attacks: list[Attack] = [ALL[name] for name in names]
    verdicts = await Battery(["titanic"], provider, attacks, **more).run(folder / "record")
    return {one.attack: one for one in verdicts}


def broken(verdicts: dict[str, AttackVerdict]) -> dict[str, str]:
    return {name: one.reason for name, one in verdicts.items() if one.result == "broken"}


def test_names_are_unique_and_there_are_many() -> None:
    assert len(ALL) == sum(len(family.ATTACKS) for family in FAMILIES) > 100


@pytest.mark.parametrize("provider", [pytest.param("docker", marks=pytest.mark.docker), "process"])
async def test_a_dozen_attacks_are_held(provider: Provider, tmp_path: Path) -> None:
    if provider == "process" and (found := namespaces.detect()).mode == "plain":
        pytest.skip(f"process boxes have no namespaces here: {found.reason}")
    verdicts = await played(QUICK, provider, tmp_path)
    assert len(verdicts) == len(QUICK)
    assert broken(verdicts) == {}


@pytest.mark.full
@pytest.mark.docker
@pytest.mark.parametrize("name", SHOWN_BY_MUTANTS)
async def test_an_attack_is_held(name: str, tmp_path: Path) -> None:
    """No setting lets these attacks work. `make mutants` takes a defence out, and this turns red."""
    verdicts = await played([name], "docker", tmp_path)
    assert (verdicts[name].result, verdicts[name].reason) == ("held", "")


@pytest.mark.full
async def test_deleting_pays_where_an_artefact_without_a_score_costs_nothing(
    tmp_path: Path,
) -> None:
    names = [attack.name for attack in masking.ATTACKS if attack.bound == "lowest"]
    verdicts = await played(names, "docker", tmp_path, settings={"unscored": "unchanged"})
    assert len(names) > 5
    assert set(broken(verdicts)) == set(names)


@pytest.mark.full
async def test_the_best_artefact_can_be_lost_where_the_last_one_counts(tmp_path: Path) -> None:
    names = [attack.name for attack in masking.ATTACKS if attack.setup.delta == "best"]
    verdicts = await played(names, "process", tmp_path, settings={"delta": "previous"})
    assert len(names) == 2
    assert set(broken(verdicts)) == set(names)


@pytest.mark.full
async def test_many_validates_are_seen(tmp_path: Path) -> None:
    names = ["validate-in-every-turn", "validate-in-every-turn-of-the-tools'-format"]
    verdicts = await played(names, "docker", tmp_path, settings={"max_validates": 300})
    assert set(broken(verdicts)) == set(names)
    assert all("are allowed" in reason for reason in broken(verdicts).values())


@pytest.mark.full
async def test_a_program_with_many_validates_is_seen(tmp_path: Path) -> None:
    names = [name for name in ALL if name.endswith("by-the-program")]
    assert len(names) == 2
    verdicts = await played(names, "process", tmp_path, settings={"max_validates": 300})
    assert set(broken(verdicts)) == set(names)


@pytest.mark.full
async def test_scores_told_too_finely_are_seen(tmp_path: Path) -> None:
    root = copied_task(tmp_path, "exec_seconds = 9.0")
    file = root / "titanic" / "task.toml"
    text = file.read_text()
    assert "told_step = 0.01 " in text
    file.write_text(text.replace("told_step = 0.01 ", "told_step = 0.000001 "))
    names = ["read-the-digits-of-a-score", "read-the-digits-of-a-score-in-the-tools'-format"]
    verdicts = await played(names, "process", tmp_path, task_roots=[root])
    assert set(broken(verdicts)) == set(names)


PLAIN = (
    "read-a-file-that-everyone-may-read",
    "list-the-cache-with-prepared-data",
    "list-the-recorded-trajectories",
    "go-through-the-roots-of-processes",
    "see-the-processes-of-the-machine",
    "read-the-command-line-of-the-machine's-process",
    "read-the-environment-of-the-machine's-process",
    "read-the-memory-map-of-the-machine's-process",
    "signal-the-machine's-process",
    "reach-a-server-of-the-machine",
    "reach-an-abstract-socket-of-the-machine",
    "find-the-machine's-ports-in-kernel-tables",
    "find-the-machine's-sockets-in-kernel-tables",
)
"""Attacks that work wherever a box is a plain process. The others of the family need more than that: a root
user, a network, an engine or devices of the machine."""


@pytest.mark.full
async def test_ways_out_of_a_plain_process_box_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIR_PROCESS_BOX", "plain")
    verdicts = await played([attack.name for attack in isolation.ATTACKS], "process", tmp_path)
    assert set(PLAIN) <= set(broken(verdicts))


async def test_an_attack_that_acts_is_not_played_in_plain_process_boxes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIR_PROCESS_BOX", "plain")
    verdicts = await played(["kill-everything"], "process", tmp_path)
    assert verdicts["kill-everything"].result == "not applicable"
    assert "would hit this machine" in verdicts["kill-everything"].reason
    assert ALL["kill-everything"].setup == Setup()
