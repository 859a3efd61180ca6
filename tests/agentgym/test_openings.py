"""Episodes with `#opening=FILE` begin like those of AgentGym's own clients: `make test-agentgym`."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from air.worlds.agentgym.environments import ENVIRONMENTS
from tests.e2e.worlds.test_agentgym_openings import REPLY, requests
from tests.unit.worlds.agentgym.corridors import Corridors

pytestmark = pytest.mark.agentgym
CLIENT = """
import json, sys
sys.path.insert(0, sys.argv[1])
from agentenv import envs
classes = {name.lower(): getattr(envs, name) for name in dir(envs) if name.endswith("EnvClient")}
seen = {}
for name, url in json.loads(sys.argv[2]).items():
    client = classes[name + "envclient"](url, data_len=100, timeout=60)
    seen[name] = []
    for task in (3, 7):
        client.reset(task)
        first = {"from": "human", "loss": None, "value": client.observe()}
        seen[name].append([*client.conversation_start, first])
print(json.dumps(seen))
"""
"""Prints the messages with which AgentGym's clients begin the tasks 3 and 7 of each environment."""


def shown_by_the_clients(urls: dict[str, str]) -> dict[str, list[list[dict[str, Any]]]]:
    clients = Path(os.environ["AIR_AGENTGYM_ROOT"]) / "agentenv"
    ran = subprocess.run(
        [sys.executable, "-c", CLIENT, str(clients), json.dumps(urls)],
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    shown: dict[str, list[list[dict[str, Any]]]] = json.loads(ran.stdout.splitlines()[-1])
    return shown


async def test_episodes_begin_with_the_messages_of_agentgyms_clients(tmp_path: Path) -> None:
    """The file has a trajectory of another task than the one that is played."""
    async with AsyncExitStack() as stack:
        servers = {
            name: await stack.enter_async_context(Corridors(name).running())
            for name in ENVIRONMENTS
        }
        urls = {name: server.url + ENVIRONMENTS[name].path for name, server in servers.items()}
        shown = await asyncio.to_thread(shown_by_the_clients, urls)
        for name, (other, played) in shown.items():
            file = tmp_path / f"{name}.json"
            talk = [*other, {"from": "gpt", "loss": True, "value": REPLY}]
            file.write_text(json.dumps([{"item_id": f"{name}_3", "conversations": talk}]))
            options = f"#opening={file}"
            seen, rollout = await requests(servers[name].url, name, options, max_round=1)
            assert [one["content"] for one in seen[0]] == [one["value"] for one in played], name
            assert rollout["conversation"][:3] == played, name
    assert set(shown) == set(ENVIRONMENTS)
