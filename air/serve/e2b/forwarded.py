"""Builds the headers and the path of a request that is forwarded to a program on a port of a sandbox."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import Scope

from air.serve.e2b.sandbox import Sandbox

HOP_BY_HOP = {
    *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te"),
    *(b"trailer", b"transfer-encoding", b"upgrade", b"expect"),
}
OURS = {b"e2b-sandbox-id", b"e2b-sandbox-port", b"e2b-traffic-access-token"}
"""Request headers that are meant for this server; they are not forwarded."""


def request_headers(sandbox: Sandbox, port: int, scope: Scope) -> list[tuple[bytes, bytes]]:
    """Returns the headers of a request that is forwarded to a program on the port `port` of the sandbox. They
    are the client's headers without those in `OURS` and those that hold only for one connection
    (`HOP_BY_HOP`). The header `Host` follows the sandbox's settings (`SandboxSettings.host_header`)."""
    headers = [
        (name, value)
        for name, value in scope["headers"]
        if name not in HOP_BY_HOP | OURS and name != b"host"
    ]
    mask = sandbox.settings.host_header.replace("${PORT}", str(port))
    host = mask or Headers(scope=scope).get("host", f"localhost:{port}")
    return [(b"host", host.encode()), *headers]


def target(scope: Scope) -> bytes:
    """Returns the path and the query of the request to forward, exactly as the client sent them."""
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope.get("query_string", b"")
    return path + (b"?" + query if query else b"")
