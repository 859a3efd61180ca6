"""Tests of the boxes whose network the container engine does not set up."""

from __future__ import annotations

from typing import Any

import pytest

from air.sandbox.contract.box import BoxSpec, OpenBox
from air.sandbox.docker import oci_runtime, podman
from air.sandbox.network import container_files


@pytest.mark.parametrize(
    ("variables", "spec"),
    [
        ({"DOCKER_HOST": "tcp://127.0.0.1:1"}, BoxSpec()),
        ({oci_runtime.SETTING: "runsc"}, BoxSpec()),
        ({}, BoxSpec(open=OpenBox())),
    ],
)
async def test_the_engine_sets_the_network_up_unless_air_can(
    variables: dict[str, str], spec: BoxSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ({"DOCKER_HOST": "unix:///no/such/engine"} | variables).items():
        monkeypatch.setenv(name, value)
    async with container_files.mounts(spec, "none") as files:
        assert files == []  # and no engine was asked


@pytest.mark.parametrize(
    ("failure", "known"),
    [
        ("invalid mount config: bind source path does not exist: /c/air/network/hosts", True),
        ('runc: error mounting "/c/air/network/resolv.conf" to rootfs: permission denied', True),
        ('runc: error mounting "/a" to rootfs at "/etc/resolv.conf": not a directory', True),
        ("no space left on device", False),
    ],
)
def test_a_failed_mount_is_learned_once(
    failure: str, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix:///no/such/engine/{abs(hash(failure))}")
    assert container_files.learn_from_failed_start(failure) is known
    assert not container_files.learn_from_failed_start(failure)


def test_podman_is_not_asked_to_leave_the_network_out() -> None:
    arguments: dict[str, Any] = {"host_config": {}, "user": "0:0", "network_disabled": True}
    assert "network_disabled" not in podman.adapted(arguments)
    assert arguments["network_disabled"]
