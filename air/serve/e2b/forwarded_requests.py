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
"""Names of request headers that are meant for this server. They are not forwarded."""


def request_headers(sandbox: Sandbox, port: int, scope: Scope) -> list[tuple[bytes, bytes]]:
    """Returns the headers for a request that is forwarded to the program on port `port` of the sandbox. They
    are the client's headers, except for those that are meant for this server (`OURS`) or concern only one
    connection (`HOP_BY_HOP`). If the sandbox's settings have a `host_header`, it replaces the client's
    `Host`."""
    headers = [
        (name, value)
        for name, value in scope["headers"]
        if name not in HOP_BY_HOP | OURS and name != b"host"
    ]
    mask = sandbox.settings.host_header.replace("${PORT}", str(port))
    host = mask or Headers(scope=scope).get("host", f"localhost:{port}")
    return [(b"host", host.encode()), *headers]


def target(scope: Scope) -> bytes:
    """Returns the path and the query of a client's request, exactly as the client sent them, for the
    forwarded request."""
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope.get("query_string", b"")
    return path + (b"?" + query if query else b"")
