"""The battery's attacks on a server of boxes, through both interfaces, and how it judges them."""

from __future__ import annotations

from pathlib import Path

import pytest

from air.integrity.served_boxes import ATTACKS, Served, ServedAttack, attack_server
from air.integrity.verdict import AttackVerdict

pytestmark = pytest.mark.docker


async def test_every_attack_is_held(tmp_path: Path) -> None:
    verdicts: list[AttackVerdict] = []
    await attack_server(ATTACKS, "docker", tmp_path, verdicts.append)
    assert [one.attack for one in verdicts] == [one.name for one in ATTACKS]
    assert not [one for one in verdicts if one.result != "held"]


async def test_an_attack_that_works_or_harms_another_client_is_broken(tmp_path: Path) -> None:
    async def works(served: Served) -> str:
        found = await served.file("secret", served.victim)
        return found.body.decode()

    async def harms(served: Served) -> str:
        await served.send("DELETE", f"/sandboxes/{served.victim['E2b-Sandbox-Id']}")
        return ""

    attacks = [
        ServedAttack(name, "isolation", "", attempt)
        for name, attempt in (("works", works), ("harms", harms))
    ]
    verdicts: list[AttackVerdict] = []
    await attack_server(attacks, "docker", tmp_path, verdicts.append)
    assert [(one.attack, one.result) for one in verdicts] == [
        ("works", "broken"),
        ("harms", "broken"),
    ]


async def test_without_containers_the_attacks_are_not_applicable(tmp_path: Path) -> None:
    verdicts: list[AttackVerdict] = []
    await attack_server(ATTACKS, "process", tmp_path, verdicts.append)
    assert {one.result for one in verdicts} == {"not applicable"}
    assert len(verdicts) == len(ATTACKS)
