"""A certificate for `localhost` and names below `DOMAIN`, by an authority that only a test knows."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

DOMAIN = "sandbox.localhost"  # not `localhost` itself: OpenSSL refuses `*.` before a single label
_NAMES = f"subjectAltName=DNS:localhost,DNS:*.{DOMAIN},IP:127.0.0.1"


class Tls(NamedTuple):
    """The files of an authority and of the certificate that it signed."""

    ca: Path
    cert: Path
    key: Path


def authority(folder: Path) -> Tls:
    """Makes an authority and a certificate in `folder`, with the program `openssl`."""
    ca, ca_key = folder / "ca.pem", folder / "ca.key"
    cert, key, request = folder / "cert.pem", folder / "cert.key", folder / "cert.csr"
    new = ["openssl", "req", "-newkey", "rsa:2048", "-nodes", "-keyout"]
    _run(*new, ca_key, "-x509", "-days", "2", "-subj", "/CN=authority", "-out", ca)
    _run(*new, key, "-subj", "/CN=localhost", "-out", request)
    names = folder / "names"
    names.write_text(_NAMES)
    sign = ["openssl", "x509", "-req", "-in", request, "-CA", ca, "-CAkey", ca_key]
    _run(*sign, "-CAcreateserial", "-days", "2", "-extfile", names, "-out", cert)
    return Tls(ca, cert, key)


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True, capture_output=True)
