"""Finds the token that a request carries, in each of the places where clients of sandboxes can put one.

- `Authorization: Bearer TOKEN`
- `X-API-Key: TOKEN`, which E2B's clients send
- the password in the address, `http://air:TOKEN@HOST:8080`: clients that know no token, such as
  SandboxFusion's, send it as `Authorization: Basic …`
"""

from __future__ import annotations

import base64
import hmac

from starlette.datastructures import Headers


def carries(headers: Headers, token: str) -> bool:
    """Whether a request with these headers carries `token`."""
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
