"""`air doctor` with a real engine: it starts a box, and sees what was left behind."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from air.cli.main import main
from air.sandbox.contract import ownership
from air.sandbox.contract.box import BoxSpec
from air.sandbox.docker import container_spec
from air.sandbox.docker.engine import client, containers_of_air, remove
from tests.docker.private_engine.engine import Engine

pytestmark = pytest.mark.docker


def _doctor(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, str]]:
    code = main(["doctor", "--json"])
    said = json.loads(capsys.readouterr().out)
    assert code == (0 if said["ok"] else 1)
    return {finding["check"]: finding for finding in said["findings"]}


@pytest.fixture
def expired(engine: Engine) -> Iterator[str]:
    """A container of ours that never started and is past its time, where no other test collects."""
    arguments = container_spec.container(BoxSpec(), "air-doctor-expired", "doctor")
    arguments["labels"][ownership.EXPIRES_LABEL] = "1"
    client().create_container(**arguments)
    yield "air-doctor-expired"
    remove("air-doctor-expired")


def test_a_machine_on_which_boxes_work(capsys: pytest.CaptureFixture[str]) -> None:
    found = _doctor(capsys)
    assert found["engine"]["state"] == "ok"
    assert found["image air-base"]["state"] == "ok"
    assert found["limits"] == {
        "check": "limits",
        "state": "ok",
        "seen": "enforced: 1408 MiB, 129 processes",
        "remedy": "",
    }
    assert found["one box"]["state"] in ("ok", "warn")
    assert "a command in" in found["one box"]["seen"]
    assert {"networks", "volumes", "disk docker", "gpus"} <= set(found)
    labels = [box["Labels"] for box in containers_of_air()]
    mine = [row for row in labels if row[ownership.OWNER_LABEL] == ownership.owner()]
    assert not [row for row in mine if row[ownership.RUN_LABEL] == "doctor"]


def test_what_is_left_behind_is_named_with_what_removes_it(
    expired: str, capsys: pytest.CaptureFixture[str]
) -> None:
    finding = _doctor(capsys)["boxes"]
    assert (finding["state"], finding["remedy"]) == ("warn", "air box gc")
    assert main(finding["remedy"].split()[1:]) == 0
    assert expired in capsys.readouterr().out


def test_a_volume_of_a_dead_owner_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    host = ownership.owner().rsplit(":", 2)[0]
    machine, name = client(), "air-doctor-volume"
    machine.create_volume(name, labels={ownership.OWNER_LABEL: f"{host}:{2**22 + 1}:1"})
    try:
        finding = _doctor(capsys)["volumes"]
        assert finding["state"] == "warn"
        assert name in finding["remedy"].split()
    finally:
        machine.remove_volume(name)
