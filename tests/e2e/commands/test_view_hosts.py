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
TAKEN = ("cannot listen: ", "not available", "in use")
"""How `air view` and Streamlit begin or name the failure that another process has the port."""
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
    folder = tmp_path_factory.mktemp("runs")
    hostile.run(folder)
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            free: int = probe.getsockname()[1]
        argv = [sys.executable, "-m", "air.cli.main", "view", str(folder), "--port", str(free)]
        with (folder / "output").open("w") as output:
            process = subprocess.Popen(argv, stdout=output, stderr=output)
        try:
            if answers(process, free, until):
                yield free
                return
        finally:
            process.kill()
            process.wait()
        text = (folder / "output").read_text()
        # Another process may take the port between the probe and the viewer's start.
        assert any(words in text for words in TAKEN), text
    raise AssertionError("no port stayed free")


def answers(process: subprocess.Popen[bytes], port: int, until: float) -> bool:
    """Waits until the viewer answers on `port`. Returns False if its process ends before that."""
    while process.poll() is None:
        assert time.monotonic() < until, "the viewer does not answer"
        link = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
        try:
            link.request("GET", "/_stcore/health")
            if link.getresponse().read() == b"ok":
                return True
        except (OSError, http.client.HTTPException):
            pass
        finally:
            link.close()
        time.sleep(0.2)
    return False


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
