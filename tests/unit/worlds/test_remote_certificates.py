"""Remote worlds load the certificates of HTTPS once in a process, and not in every episode."""

from __future__ import annotations

import pytest

from air.actions import Action
from air.errors import ConfigError
from air.serve.openenv.protocol import OpenEnv
from air.serve.ors.protocol import Ors
from air.worlds import sources
from air.worlds.remote.certificates import certificates
from tests.episodes_server import serving


@pytest.mark.parametrize(("kind", "protocol"), [("openenv", OpenEnv), ("ors", Ors)])
async def test_episodes_share_the_certificates(kind: str, protocol: object) -> None:
    certificates()
    before = certificates.cache_info()
    async with serving("question:gsm8k", protocol=protocol, max_sessions=4) as served:
        task = sources.load(f"{kind}:{served.url}")
        for seed in range(2):
            world = task.world()
            await world.reset(seed)
            assert (await world.step(Action(answer="x"))).done
            await world.close()
    after = certificates.cache_info()
    assert after.misses == before.misses
    assert after.hits > before.hits


def test_an_unreadable_file_of_certificates_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere.pem")
    with pytest.raises(ConfigError, match=r"SSL_CERT_FILE.*No such file.* name a PEM file"):
        certificates.__wrapped__()
