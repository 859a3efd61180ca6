"""What a container is described as to the engine: nothing of the box's talk, nothing of the host's."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from air.sandbox import open_box
from air.sandbox.contract import ownership
from air.sandbox.contract.box import BoxSpec
from air.sandbox.docker import engine

pytestmark = pytest.mark.docker


async def test_the_engine_keeps_no_log_of_a_boxs_stream() -> None:
    async with await open_box(BoxSpec(), run="closed") as box:
        await box.exec("echo said", timeout=60)
        found = await asyncio.to_thread(engine.client().inspect_container, box.id)
    assert found["HostConfig"]["LogConfig"]["Type"] == "none"
    assert found["LogPath"] == ""


async def test_every_container_says_whose_it_is_and_until_when() -> None:
    async with await open_box(BoxSpec(), run="closed") as box:
        found = await asyncio.to_thread(engine.client().inspect_container, box.id)
    labels = found["Config"]["Labels"]
    assert labels[ownership.RUN_LABEL] == "closed"
    assert labels[ownership.OWNER_LABEL] == ownership.owner()
    assert float(labels[ownership.EXPIRES_LABEL]) > 0


async def test_a_box_that_is_closed_is_gone() -> None:
    for _ in range(3):
        box = await open_box(BoxSpec(), run="gone")
        await box.close()
        left = [c for c in engine.containers_of_air() if c["Labels"][ownership.RUN_LABEL] == "gone"]
        assert left == []


PROXIED = """
import asyncio
from air.sandbox.docker import engine
from air.sandbox import open_box
from air.sandbox.contract.box import BoxSpec

async def main():
    async with await open_box(BoxSpec(), run="closed") as box:
        print((await box.exec("env", timeout=60)).text)
        print(engine.client().inspect_container(box.id))

asyncio.run(main())
"""


def test_a_users_proxy_and_its_password_stay_outside(tmp_path: Path) -> None:
    proxy = {"httpProxy": "http://user:hunter2@proxy:3128"}
    (tmp_path / "config.json").write_text(json.dumps({"proxies": {"default": proxy}}))
    argv = [sys.executable, "-c", PROXIED]
    env = os.environ | {"DOCKER_CONFIG": str(tmp_path)}
    said = subprocess.check_output(argv, env=env, text=True)
    assert "AIR_COMMAND=" in said
    assert "hunter2" not in said
