"""Remote worlds keep the rules of worlds, on servers of air's own."""

from __future__ import annotations

import pytest

from air.serve.openenv.protocol import OpenEnv
from air.serve.ors.protocol import Ors
from air.worlds import conformance, sources
from tests.episodes_server import serving

SLOW = {"different_seeds_differ", "facts_are_numbers_with_fixed_names"}
"""The checks that play whole episodes with eight seeds, which takes too long with ORS by default."""


@pytest.mark.parametrize(("kind", "protocol"), [("openenv", OpenEnv), ("ors", Ors)])
async def test_it_conforms_with_few_sessions(kind: str, protocol: object) -> None:
    few = sorted(set(conformance.CHECKS) - SLOW) if kind == "ors" else None
    async with serving("question:gsm8k5", protocol=protocol, max_sessions=20) as served:
        task = sources.load(f"{kind}:{served.url}")
        assert await conformance.check(task, checks=few, at_once=8) == {}


@pytest.mark.full
@pytest.mark.parametrize(("kind", "protocol"), [("openenv", OpenEnv), ("ors", Ors)])
async def test_it_conforms(kind: str, protocol: object) -> None:
    async with serving("question:gsm8k5", protocol=protocol, max_sessions=100) as served:
        task = sources.load(f"{kind}:{served.url}")
        assert await conformance.check(task) == {}
