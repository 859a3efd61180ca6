"""Fixtures for tests of `GET /hello?name=FILE`."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from air.testing import ScriptedServer
from tests.unit.serve.agent0.question_file_service import Service, service, solved


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Service]:
    with ScriptedServer(solved) as model:
        async with service(tmp_path, model.url, k=2) as one:
            yield one


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can enter, unlike `tmp_path`."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)
