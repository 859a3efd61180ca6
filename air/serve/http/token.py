"""Checks whether a request contains the server's token. These are the headers in which clients can send it:

- `Authorization: Bearer TOKEN`
- `X-API-Key: TOKEN`, which E2B's clients send
- `Authorization: Basic …`, which clients without a setting for tokens, such as SandboxFusion's, send if their
  URL has the token as its password: `http://air:TOKEN@HOST:8080`
"""

from __future__ import annotations

import base64
import hmac

from starlette.datastructures import Headers


def carries(headers: Headers, token: str) -> bool:
    """Returns whether a request contains `token` in the header `Authorization` (as bearer token or password)
    or `X-API-Key`. The comparison takes constant time, so that its duration reveals nothing about the
    token."""
    return any(hmac.compare_digest(candidate, token.encode()) for candidate in _candidates(headers))


def _candidates(headers: Headers) -> list[bytes]:
    scheme, _, value = headers.get("authorization", "").partition(" ")
    found = [headers.get("x-api-key", "").encode()]
    if scheme.lower() == "bearer":
        found.append(value.strip().encode())
    elif scheme.lower() == "basic":
        try:
            found.append(base64.b64decode(value, validate=True).partition(b":")[2])
        except ValueError:
            return found
    return found
