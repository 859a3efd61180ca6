"""`make bench-serve`: the processes that use E2B's client at the same time."""

from __future__ import annotations

import importlib
import socket
import threading

import pytest


@pytest.mark.slow
def test_a_client_that_fails_ends_the_measurement() -> None:
    pytest.importorskip("e2b")
    client = importlib.import_module("bench.serve.e2b_client")
    steps: list[str] = []
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # nobody listens
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(threading.BrokenBarrierError):
            client.at_once(url, "base", client.CLIENTS, lambda: steps.append("settle"))
    assert steps == []
