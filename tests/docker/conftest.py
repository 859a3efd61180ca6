"""The private engine: one for all tests that ask for it, up and empty whenever a test begins."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.docker.private_engine.engine import Engine, private_engine, problem


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
