"""E2B's client against a server with https, whose certificate a private authority signed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docker.serve.serving import serving
from tests.docker.serve.tls import authority

pytestmark = [pytest.mark.docker, pytest.mark.full]
PROGRAM = """
from e2b import Sandbox
with Sandbox.create("air-base", timeout=60) as sandbox:
    print(sandbox.commands.run("echo $((1 + 1))").stdout)
"""


def test_a_client_that_trusts_the_authority_is_served_and_another_is_not(tmp_path: Path) -> None:
    tls = authority(tmp_path)
    with serving("--tls-cert", str(tls.cert), "--tls-key", str(tls.key), "--warm", "0") as server:
        assert server.url.startswith("https://")
        own = {
            "E2B_API_URL": server.url,
            "E2B_SANDBOX_URL": server.url,
            "E2B_API_KEY": "e2b_" + "0" * 40,
        }
        for trusted, code in (({"SSL_CERT_FILE": str(tls.ca)}, 0), ({}, 1)):
            # A process of its own: a client reads the authorities once.
            done = subprocess.run(
                [sys.executable, "-c", PROGRAM],
                env=os.environ | own | trusted,
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
            assert done.returncode == code, done.stderr
            assert ("2" in done.stdout) is (code == 0)
