"""Runs the tests of E2B's Python SDK, unchanged, against a server of ours: `make test-serve E2B=DIR`.

    python -m tests.docker.serve.e2b_suite DIR [pytest's arguments]

They run with the SDK of the checkout, in an environment of their own, against https with a certificate of
our own authority: the tests of ports ask for `https://PORT-ID.DOMAIN`, which a plugin leads here.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from tests.docker.serve.serving import serving
from tests.docker.serve.tls import DOMAIN, authority

SUITES = [
    f"tests/{kind}/{part}_{kind}" for kind in ("sync", "async") for part in ("sandbox", "api")
]
PACKAGES = ("pytest<10", "pytest-asyncio<2", "pytest-timeout<3")
_PLUGIN = """
import socket
_resolve = socket.getaddrinfo

def getaddrinfo(host, *rest, **more):
    text = host.decode() if isinstance(host, bytes) else host
    return _resolve("127.0.0.1" if text and text.endswith(".localhost") else host, *rest, **more)

socket.getaddrinfo = getaddrinfo
"""


def main(checkout: Path, arguments: list[str]) -> int:
    """Runs the tests of a checkout; gives pytest's exit code."""
    sdk = checkout / "packages" / "python-sdk"
    if not (sdk / "tests").is_dir():
        print(f"{checkout} is no checkout of E2B: E2B=DIR", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        venv.create(folder / "venv", with_pip=True)
        python = folder / "venv" / "bin" / "python"
        subprocess.run([python, "-m", "pip", "install", "-q", sdk, *PACKAGES], check=True)
        (folder / "localhost_names.py").write_text(_PLUGIN)
        tls = authority(folder)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        flags = ("--tls-cert", str(tls.cert), "--tls-key", str(tls.key), "--port", port)
        flags += ("--domain", f"{DOMAIN}:{port}", "--max-boxes", "16", "--memory-mb", "512")
        with serving(*flags, image="air-base") as served:
            own = {"E2B_API_URL": served.url, "E2B_SANDBOX_URL": served.url}
            own |= {"E2B_API_KEY": "e2b_" + "0" * 40, "SSL_CERT_FILE": str(tls.ca)}
            command = [python, "-m", "pytest", "-c", "pytest.ini", "-q", "--tb=line"]
            command += ["-p", "localhost_names", "-p", "no:cacheprovider", "--timeout", "60"]
            env = os.environ | own | {"PYTHONPATH": str(folder)}
            return subprocess.run(
                [*command, *SUITES, *arguments], cwd=sdk, env=env, check=False
            ).returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
