"""An engine that takes connections and never answers, as a stopped daemon does: no request waits for ever."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from air.sandbox.docker import engine


@pytest.fixture
def client(tmp_path: Path) -> Iterator[engine.Client]:
    """A client of a socket at which nobody accepts a connection; the kernel does."""
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "engine.sock"))
        silent.listen()
        url = f"unix://{tmp_path / 'engine.sock'}"
        client = engine.Client(base_url=url, version="1.44", timeout=1)
        yield client
        client.close()


@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.attach_socket("box", params={"stream": 1}),
        lambda client: list(client.events(until="1", decode=True)),
        lambda client: client.start("box"),
    ],
    ids=["attach", "events", "start"],
)
def test_a_request_to_an_engine_that_stands_still_fails(
    client: engine.Client, ask: Callable[[engine.Client], Any]
) -> None:
    with pytest.raises(engine.FOREIGN):
        ask(client)
