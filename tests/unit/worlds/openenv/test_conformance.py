"""Remote worlds keep the rules of worlds, on servers of air's own."""

from __future__ import annotations

import pytest

from air.serve.openenv.protocol import OpenEnv
from air.serve.ors.protocol import Ors
from air.worlds import conformance, sources
from tests.episodes_server import serving


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "protocol"), [("openenv", OpenEnv), ("ors", Ors)])
async def test_it_conforms(kind: str, protocol: object) -> None:
    async with serving("question:gsm8k5", protocol=protocol, max_sessions=100) as served:
        task = sources.load(f"{kind}:{served.url}")
        assert await conformance.check(task) == {}


@pytest.mark.parametrize(("kind", "protocol"), [("openenv", OpenEnv), ("ors", Ors)])
async def test_more_episodes_than_sessions_wait(kind: str, protocol: object) -> None:
    async with serving("question:gsm8k5", protocol=protocol, max_sessions=8) as served:
        task = sources.load(f"{kind}:{served.url}")
        assert await conformance.check(task, checks=["many_play_at_once"], at_once=32) == {}
