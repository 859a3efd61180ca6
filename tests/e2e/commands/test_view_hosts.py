"""`air view` answers at this machine's names alone: a page could make its own name mean this machine."""

from __future__ import annotations

import http.client
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.unit.view import hostile

SECONDS = 300
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Protocol": "streamlit",
}


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of `air view` with one run."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free: int = probe.getsockname()[1]
    folder = tmp_path_factory.mktemp("runs")
    hostile.run(folder)
    argv = [sys.executable, "-m", "air.cli.main", "view", str(folder), "--port", str(free)]
    output = (folder / "output").open("w+")
    process = subprocess.Popen(argv, stdout=output, stderr=output)
    until = time.monotonic() + SECONDS
    try:
        while True:
            assert process.poll() is None, (folder / "output").read_text()
            try:
                socket.create_connection(("127.0.0.1", free), timeout=5).close()
                break
            except OSError:
                assert time.monotonic() < until, (folder / "output").read_text()
                time.sleep(0.2)
        yield free
    finally:
        process.kill()
        process.wait()
        output.close()


def status(port: int, host: str, origin: str) -> int:
    """The status of the answer to a browser that opens the channel on which the viewer sends all runs."""
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    try:
        link.putrequest("GET", "/_stcore/stream", skip_host=True)
        for name, value in {**UPGRADE, "Host": host, "Origin": origin}.items():
            link.putheader(name, value)
        link.endheaders()
        return link.getresponse().status
    finally:
        link.close()


def test_a_page_of_this_machine_is_answered(port: int) -> None:
    for name in ("localhost", "127.0.0.1", "[::1]"):
        assert status(port, f"{name}:{port}", f"http://{name}:{port}") == 101


def test_through_a_tunnel_it_is_still_this_machine(port: int) -> None:
    """As the browser sends it with `ssh -L 9000:127.0.0.1:PORT HOST`."""
    assert status(port, "localhost:9000", "http://localhost:9000") == 101


def test_a_name_that_a_page_has_rebound_is_refused(port: int) -> None:
    assert status(port, f"example.com:{port}", f"http://example.com:{port}") == 403
    assert status(port, f"127.0.0.1:{port}", "http://example.com") == 403
