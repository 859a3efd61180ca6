"""The private engine: one for all tests that ask for it, up and empty whenever a test begins."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from air.sandbox import open_box
from air.sandbox.contract.box import BoxSpec
from tests.docker.private_engine.engine import Engine, private_engine, problem


@pytest.fixture
async def capabilities_known() -> None:
    """Starts a box, so that this process knows which capabilities the engine cannot grant. A test that starts
    a container by `container_spec` alone needs this."""
    await (await open_box(BoxSpec(), run="capabilities")).close()


@pytest.fixture(scope="session")
def _engine() -> Iterator[Engine]:
    if why := problem():
        pytest.skip(why)
    with private_engine() as engine:
        yield engine


@pytest.fixture
def engine(_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """A private engine, which `DOCKER_HOST` names for the time of the test."""
    if not _engine.answers():
        _engine.stop()
        _engine.start()
    _engine.clear()
    assert not _engine.containers()
    monkeypatch.setenv("DOCKER_HOST", _engine.host)
    return _engine
