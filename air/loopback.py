"""Decides whether a request to a server without a token may come from a web page of another site.

Such a server listens on loopback addresses alone, but a browser on this machine reaches it for any page. Two
headers tell:

- `Origin`: the page sends a request to a loopback address. It cannot read the response, but the request may
  have an effect. A body of the type `text/plain` needs no permission of the server.
- `Host`: the page makes its own name resolve to a loopback address (DNS rebinding). To the browser, its
  requests are those of the same site, so the page can read the responses. Their `Host` is the page's name.

A server with a token needs no such check, because the page does not know the token. A program that sends no
`Host` or no `Origin` is no browser.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit


def is_loopback(host: str) -> bool:
    """Whether `host` is a loopback address, which only programs on this machine can reach."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def foreign_host(hosts: Sequence[str], domains: Sequence[str] = ()) -> str:
    """Returns why a server on a loopback address must refuse a request with these `Host` headers: a message
    for the client. Empty if it may answer. `domains` are further names at which the server is called."""
    for host in hosts:
        if not is_own(host, domains):
            return (
                f"the Host {host[:100]!r} is not this machine's: the server answers only to localhost, "
                "names below it, and loopback addresses"
            )
    return ""


def foreign_origin(origin: str | None) -> str:
    """Returns why a server on a loopback address must refuse a request with this `Origin` header: a message
    for the client. Empty if it may answer. None: the request has no such header."""
    if is_own_origin(origin):
        return ""
    return f"the Origin {str(origin)[:100]!r} is a web page of another site, which may not send requests"


def is_own(host: str, domains: Sequence[str]) -> bool:
    """Whether the value of a `Host` header is a loopback address, `localhost`, one of `domains`, or a name
    below these. Ports do not count. A server without a token listens on loopback addresses alone, so the
    address on which it listens is among them."""
    name = _name(host)
    if not name:
        return False
    names = ["localhost", *map(_name, domains)]
    return is_loopback(name) or any(name == one or name.endswith(f".{one}") for one in names if one)


def _name(host: str) -> str:
    """Returns the name or address in a `Host` header, without port; empty if there is none."""
    try:
        return (urlsplit(f"//{host}").hostname or "").removesuffix(".")
    except ValueError:
        return ""


def is_own_origin(origin: str | None) -> bool:
    """Whether the header `Origin` is absent, as in requests of programs, or names a web page of this
    machine."""
    try:
        return origin is None or is_loopback(urlsplit(origin).hostname or "")
    except ValueError:
        return False
